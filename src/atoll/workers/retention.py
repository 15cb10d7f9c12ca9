"""Forgets entries of the audit trail that are older than the deployment keeps them."""

from __future__ import annotations

from datetime import timedelta

from atoll.ops.services import Services
from atoll.store import audit


class RetentionWorker:
    """The worker of the trail's end. Nothing wakes it; an hour sooner or later is no matter."""

    name = "retention"
    topics: tuple[str, ...] = ()
    interval = 3_600.0
    patience = 0.0

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run_once(self) -> float | None:
        """Forget a bounded number at a time, so that no transaction holds the database for long."""
        kept = timedelta(days=self._services.settings.audit_retention_days)
        removed = await self._services.database.write(lambda tx: audit.remove_before(tx, tx.now - kept))
        return 0.1 if removed else None

    async def close(self) -> None:
        """Nothing is under way between passes."""
