"""The warm pool: how many booted sandboxes wait, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from atoll.domain.template import WarmPool


class WarmState(StrEnum):
    """The life of one waiting instance. A claim is final: none is ever claimed twice or goes back."""

    BOOTING = "BOOTING"
    """Being made."""
    WAITING = "WAITING"
    """Booted and free."""
    DISCARDED = "DISCARDED"
    """Superseded, surplus or broken; to be destroyed. A claimed one has no row: it is the sandbox's."""


@dataclass(frozen=True, slots=True)
class WarmInstance:
    """One instance of a pool."""

    id: str
    pool_key: str
    """Names what is booted (`pool_key`); every revision that boots the same shares the pool."""
    state: WarmState
    allocation_pending: bool
    created_at: datetime
    ready_at: datetime | None


MISSED_FOR = timedelta(minutes=10)
"""How long a pool that was found empty is kept at its maximum."""


def pool_target(pool: WarmPool, *, missed: bool) -> int:
    """How many should wait: what is desired, or the maximum for ten minutes after a create has found none."""
    return pool.max if missed else pool.desired


def shortfall(desired: int, booting: int, waiting: int) -> int:
    """Instances to boot now; negative for those to discard."""
    return desired - booting - waiting
