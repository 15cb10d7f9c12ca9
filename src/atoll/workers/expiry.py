"""Ends sandboxes whose time is over: idle too long, past their lifetime, paused too long."""

from __future__ import annotations

import structlog

from atoll.domain.errors import Conflict, StaleGeneration
from atoll.domain.sandbox import Sandbox, TerminationReason, due_termination
from atoll.ops.sandbox_terminate import begin_termination
from atoll.ops.services import Services
from atoll.store import sandboxes
from atoll.store.database import Transaction
from atoll.store.wakes import STATUSES

log = structlog.get_logger()

_SHORTEST_SLEEP_SECONDS = 0.25


class ExpiryWorker:
    """The worker of deadlines. It sleeps until the next one it knows of."""

    name = "expiry"
    topics: tuple[str, ...] = (STATUSES,)
    interval = 60.0
    patience = 0.25

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run_once(self) -> float | None:
        """Begin the termination of everything that is due; returns the seconds to the next deadline."""
        now = self._services.clock()
        candidates = await self._services.database.read(sandboxes.with_deadlines)
        for sandbox in candidates:
            reason = due_termination(sandbox, now)
            if reason is not None:
                await self._end(sandbox, reason)
        deadline = sandboxes.next_deadline([s for s in candidates if due_termination(s, now) is None], now)
        if deadline is None:
            return None
        return max((deadline - self._services.clock()).total_seconds(), _SHORTEST_SLEEP_SECONDS)

    async def close(self) -> None:
        """Nothing is under way between passes."""

    async def _end(self, sandbox: Sandbox, reason: TerminationReason) -> None:
        def end(tx: Transaction) -> bool:
            current = sandboxes.get(tx, sandbox.id, lock=True)
            # Looked at again under the lock: activity since the first look keeps a sandbox alive (SA-236).
            if current is None or due_termination(current, tx.now) is not reason:
                return False
            begin_termination(tx, current, reason)
            return True

        try:
            ended = await self._services.database.write(end)
        except (StaleGeneration, Conflict):
            return  # it changed meanwhile; the next pass sees how
        if ended:
            log.info("sandbox_expired", sandbox_id=sandbox.id, reason=reason)
