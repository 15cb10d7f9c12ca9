"""Report what was billed: per sandbox, app and project (SA-443)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from atoll.domain.errors import Invalid
from atoll.domain.identity import Principal
from atoll.domain.usage import BilledInterval, billed_intervals
from atoll.ops.access import authorize_read
from atoll.ops.services import Services
from atoll.store import usage
from atoll.store.database import Transaction

DEFAULT_RANGE = timedelta(days=30)
LONGEST_RANGE = timedelta(days=92)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Amount:
    """Billed seconds, and the same times the size."""

    billed_seconds: int
    zcloud_seconds: int

    def __add__(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.billed_seconds + other.billed_seconds, self.zcloud_seconds + other.zcloud_seconds)


NOTHING = Amount(0, 0)


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """What one sandbox used."""

    sandbox_id: str
    app_id: str
    project_id: str | None
    zclouds: int
    amount: Amount
    intervals: list[BilledInterval]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What an account used between two times."""

    since: datetime
    until: datetime
    sandboxes: list[SandboxUsage]
    apps: dict[str, Amount]
    projects: dict[tuple[str, str], Amount]
    """By app and project; sandboxes without a project are in none."""
    total: Amount


async def report_usage(
    services: Services,
    principal: Principal,
    account_id: str,
    *,
    since: datetime | None,
    until: datetime | None,
    app_id: str | None,
) -> UsageReport:
    """Add up the billed intervals of an account (SA-375 … SA-384). Without times: the last 30 days, 92 at most."""
    now = services.clock()
    end = min(until or now, now)
    if end < EARLIEST:
        raise Invalid("until must not be before the year 2000.", field="until")
    begin = since or end - DEFAULT_RANGE
    if begin >= end:
        raise Invalid("since must be before until and before now.", field="since")
    if end - begin > LONGEST_RANGE:
        raise Invalid(f"A report covers at most {LONGEST_RANGE.days} days.", field="since")

    def look(tx: Transaction) -> list[usage.Life]:
        authorize_read(tx, principal, account_id)
        return usage.lives(tx, account_id, since=begin, until=end, app_id=app_id)

    lives = await services.database.read(look)
    found = [used for used in (_usage_of(life, begin, end) for life in lives) if used.intervals]
    return UsageReport(
        since=begin,
        until=end,
        sandboxes=found,
        apps=_sum_by(found, lambda used: used.app_id),
        projects=_sum_by(
            [used for used in found if used.project_id is not None], lambda used: (used.app_id, str(used.project_id))
        ),
        total=sum((used.amount for used in found), NOTHING),
    )


def _usage_of(life: usage.Life, since: datetime, until: datetime) -> SandboxUsage:
    intervals = [
        interval
        for interval in billed_intervals(life.changes)
        if interval.started_at < until and (interval.ended_at is None or interval.ended_at > since)
    ]
    seconds = sum(interval.seconds(since, until) for interval in intervals)
    return SandboxUsage(
        life.sandbox_id, life.app_id, life.project_id, life.zclouds, Amount(seconds, seconds * life.zclouds), intervals
    )


def _sum_by(found: list[SandboxUsage], key: Callable[[SandboxUsage], K]) -> dict[K, Amount]:
    sums: dict[K, Amount] = {}
    for used in found:
        sums[key(used)] = sums.get(key(used), NOTHING) + used.amount
    return sums
