"""What a measure hands over: rows of figures, and verdicts on the targets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles


@dataclass(frozen=True, slots=True)
class Summary:
    """Percentiles of samples in one unit."""

    n: int
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured: percentiles, or a single value that stands in `p50` with n = 1."""

    what: str
    unit: str
    summary: Summary
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target."""

    target: str
    measured: str
    met: bool


@dataclass(slots=True)
class Result:
    """One measure's outcome."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def samples(self, what: str, unit: str, values: Sequence[float], note: str = "") -> Summary:
        """Add a row of percentiles."""
        summary = summarize(values)
        self.rows.append(Row(what, unit, summary, note))
        return summary

    def value(self, what: str, unit: str, value: float, note: str = "") -> None:
        """Add a row with one value."""
        self.rows.append(Row(what, unit, Summary(1, value, value, value), note))

    def target(self, target: str, measured: str, *, met: bool) -> None:
        """Add a verdict."""
        self.verdicts.append(Verdict(target, measured, met))


def summarize(values: Sequence[float]) -> Summary:
    """Percentiles; of a single value that value."""
    if not values:
        raise ValueError("nothing was measured")
    if len(values) == 1:
        return Summary(1, values[0], values[0], values[0])
    cuts = quantiles(values, n=100, method="inclusive")
    return Summary(len(values), cuts[49], cuts[89], cuts[98])
