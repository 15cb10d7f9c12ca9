"""Results as a table on the terminal, as JSON, and as Markdown for the README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.figures import Result, Row
from bench.machine import Machine

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    at: datetime
    machine: Machine
    quick: bool
    results: Sequence[Result]
    failures: dict[str, str]
    """Measures that could not be taken, with the reason."""


def show(result: Result, console: Console) -> None:
    """One measure on the terminal."""
    table = Table(title=result.title, title_justify="left", title_style="bold")
    for heading in ("", "p50", "p90", "p99", "n", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for row in result.rows:
        table.add_row(*(escape(cell) for cell in _cells(row)))
    console.print(table)
    for verdict in result.verdicts:
        mark = "[green]met[/green]    " if verdict.met else "[red]not met[/red]"
        console.print(f"  {mark} {escape(verdict.target)}: [bold]{escape(verdict.measured)}[/bold]")
    for note in result.notes:
        console.print(f"  [dim]{escape(note)}[/dim]")


def write(report: Report, folder: Path, name: str) -> None:
    """`NAME.json` and `NAME.md`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    value = asdict(report) | {"at": report.at.isoformat(timespec="seconds")}
    for suffix, text in (("json", json.dumps(value, indent=1) + "\n"), ("md", markdown(report))):
        temporary = folder / f"{name}.{suffix}.tmp"
        temporary.write_text(text)
        temporary.replace(folder / f"{name}.{suffix}")


def markdown(report: Report) -> str:
    """Targets first, then every figure."""
    shortened = " A quick run: fewer rounds than the targets ask for." if report.quick else ""
    lines = [f"Measured on {report.at:%Y-%m-%d} by `make bench`: {report.machine.describe()}.{shortened}", ""]
    lines += ["| target | measured | met |", "|---|---|---|"]
    for result in report.results:
        lines += [f"| {v.target} | {v.measured} | {'yes' if v.met else '**no**'} |" for v in result.verdicts]
    lines += ["", "| | p50 | p90 | p99 | n | |", "|---|---:|---:|---:|---:|---|"]
    for result in report.results:
        lines.append(f"| **{result.title}** | | | | | |")
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in result.rows]
    notes = [note for result in report.results for note in result.notes]
    notes += [f"{name} was not measured: {reason}" for name, reason in report.failures.items()]
    return "\n".join([*lines, *([""] if notes else []), *(f"- {note}" for note in notes), ""])


def update_readme(text: str, table: str) -> str:
    """The README with the table between its markers. Raises `ValueError` without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{table.strip()}\n{END}{after}"


def _cells(row: Row) -> tuple[str, ...]:
    summary = row.summary
    if summary.n == 1:
        return row.what, f"{_number(summary.p50)} {row.unit}".strip(), "", "", "1", row.note
    p50, p90, p99 = (_number(value) for value in (summary.p50, summary.p90, summary.p99))
    return row.what, f"{p50} {row.unit}".strip(), p90, p99, f"{summary.n:,}", row.note


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"
