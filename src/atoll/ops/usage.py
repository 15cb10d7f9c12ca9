"""Report what was billed: per sandbox, app and project (SA-443)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeVar

from atoll.domain.billing import Charge, Plan, amount_of, settle
from atoll.domain.errors import Invalid
from atoll.domain.identity import Account, Principal
from atoll.domain.restriction import check_inside
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
    region: str
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
    plan: Plan
    charge: Charge


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

    def look(tx: Transaction) -> tuple[Account, list[usage.Life], list[usage.Life]]:
        account = authorize_read(tx, principal, account_id)
        check_inside(principal.restriction, app_id=app_id)
        found = usage.lives(tx, account_id, since=begin, until=end, app_id=app_id, restriction=principal.restriction)
        if app_id is not None or (principal.restriction is not None and principal.restriction.is_narrow):
            # Credits are the account's: a part of its usage cannot tell what of them is left for it.
            return replace(account, credit_micros=0), found, []
        earlier = usage.lives(tx, account_id, since=EARLIEST, until=begin) if account.credit_micros else []
        return account, found, earlier

    account, lives, earlier = await services.database.read(look)
    rates = {region.name: region.zcloud_hourly_rate for region in services.settings.regions}
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
        plan=account.plan,
        charge=_charge(account, rates, found, [_usage_of(life, EARLIEST, begin) for life in earlier]),
    )


def _usage_of(life: usage.Life, since: datetime, until: datetime) -> SandboxUsage:
    intervals = [
        interval
        for interval in billed_intervals(life.changes)
        if interval.started_at < until and (interval.ended_at is None or interval.ended_at > since)
    ]
    seconds = sum(interval.seconds(since, until) for interval in intervals)
    return SandboxUsage(
        life.sandbox_id,
        life.app_id,
        life.region,
        life.project_id,
        life.zclouds,
        Amount(seconds, seconds * life.zclouds),
        intervals,
    )


def _charge(
    account: Account,
    rates: Mapping[str, Decimal],
    found: Sequence[SandboxUsage],
    earlier: Sequence[SandboxUsage],
) -> Charge:
    """What the usage costs, less the credits that earlier usage has left (SA-374 … SA-378)."""
    amount = _price(account.plan, rates, found)
    return settle(amount, spent_before=_price(account.plan, rates, earlier), credit_micros=account.credit_micros)


def _price(plan: Plan, rates: Mapping[str, Decimal], found: Sequence[SandboxUsage]) -> Decimal:
    seconds: dict[str, int] = {}
    for used in found:
        seconds[used.region] = seconds.get(used.region, 0) + used.amount.zcloud_seconds
    # A region that is no longer one of the deployment has no rate any more.
    return sum((amount_of(plan, used, rates.get(region, Decimal(0))) for region, used in seconds.items()), Decimal(0))


def _sum_by(found: list[SandboxUsage], key: Callable[[SandboxUsage], K]) -> dict[K, Amount]:
    sums: dict[K, Amount] = {}
    for used in found:
        sums[key(used)] = sums.get(key(used), NOTHING) + used.amount
    return sums
