"""Regions: where sandboxes may run, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from atoll.domain.errors import Conflict, Forbidden, Invalid


@dataclass(frozen=True, slots=True)
class Region:
    """One region of the deployment."""

    name: str
    accounts: frozenset[str] | None = None
    """Ids of the accounts that may use it; None is all."""
    sandboxes: bool = True
    """Whether it has the Agent Sandbox add-on."""
    object_storage: bool = True
    """Whether the platform has a storage point there (SA-078)."""
    zcloud_hourly_rate: Decimal = Decimal(0)
    """The price of one zCloud for an hour, in the deployment's own currency; sandboxes pay a multiple (SA-374)."""


def check_region(regions: Sequence[Region], name: str, account_id: str) -> Region:
    """Find a usable region, or refuse: unknown (SA-117), not for this account (SA-118), without sandboxes (SA-119)."""
    region = next((r for r in regions if r.name == name), None)
    if region is None:
        known = ", ".join(r.name for r in regions)
        raise Invalid(f"Unknown region. Regions of this deployment: {known}.", field="region")
    if region.accounts is not None and account_id not in region.accounts:
        raise Forbidden(f"The account cannot use the region {name}.")
    if not region.sandboxes:
        raise Conflict(f"The region {name} does not have the Agent Sandbox add-on.")
    return region
