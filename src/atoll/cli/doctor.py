"""`atoll doctor`: what the machine needs, and the command that mends each thing it finds missing."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from atoll.agent.binary import agent_binary
from atoll.cli.options import AsJson
from atoll.cli.output import emit
from atoll.drivers.gvisor.doctor import Finding, Machine, Status, examine
from atoll.drivers.gvisor.images import ImageStore
from atoll.settings import load_settings
from atoll.storage.doctor import examine_volumes

_MARKS = {Status.OK: "ok     ", Status.WARNING: "warning", Status.MISSING: "MISSING"}


def doctor(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="The data directory to look at.", envvar="ATOLL_DATA_DIR")
    ] = Path(".atoll"),
    as_json: AsJson = False,
) -> None:
    """Check the machine. Exit status 1 while something is missing."""
    settings = load_settings(data_dir)
    machine = Machine(
        images=ImageStore.from_settings(settings), agent=agent_binary(), runsc=settings.runsc or Path("runsc")
    )
    findings = asyncio.run(_examine(machine))
    healthy = all(finding.status is not Status.MISSING for finding in findings)
    emit(
        {"healthy": healthy, "findings": [asdict(finding) for finding in findings]},
        as_json=as_json,
        text=lambda: "\n".join(_line(finding) for finding in findings),
    )
    raise typer.Exit(0 if healthy else 1)


async def _examine(machine: Machine) -> list[Finding]:
    return [*await examine(machine), await examine_volumes()]


def _line(finding: Finding) -> str:
    line = f"{_MARKS[finding.status]}  {finding.name}: {finding.detail}"
    return f"{line}\n         mend it with: {finding.remedy}" if finding.remedy else line
