"""Usage: which stretches of a sandbox's life are billed, to the second. Pure: told by the statuses it went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from atoll.domain.sandbox import BILLED, SandboxStatus

_BEGINS_ANEW = frozenset({SandboxStatus.SUSPENDING, SandboxStatus.RESUMING})
"""Each pause and each resume begins a billed interval of its own (SA-384)."""


@dataclass(frozen=True, slots=True)
class StatusChange:
    """When a sandbox took a status."""

    status: SandboxStatus
    at: datetime


@dataclass(frozen=True, slots=True)
class BilledInterval:
    """A stretch during which a sandbox held its allocation; `ended_at` None while it still does."""

    started_at: datetime
    ended_at: datetime | None

    def seconds(self, since: datetime, until: datetime) -> int:
        """Whole seconds of it between two times; there is no minimum (SA-375)."""
        end = until if self.ended_at is None else min(self.ended_at, until)
        return max(int((end - max(self.started_at, since)).total_seconds()), 0)


def billed_intervals(changes: Sequence[StatusChange]) -> list[BilledInterval]:
    """The billed stretches of a life, told in order (SA-379 … SA-384)."""
    intervals: list[BilledInterval] = []
    started: datetime | None = None
    for change in changes:
        ends = change.status not in BILLED or change.status in _BEGINS_ANEW
        if started is not None and ends:
            intervals.append(BilledInterval(started, change.at))
            started = None
        if started is None and change.status in BILLED:
            started = change.at
    if started is not None:
        intervals.append(BilledInterval(started, None))
    return intervals
