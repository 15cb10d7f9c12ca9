"""Forgets what is older than the deployment keeps it: entries of the audit trail, commands of ended sandboxes."""

from __future__ import annotations

from datetime import timedelta

from atoll.ops.services import Services
from atoll.store import audit, records


class RetentionWorker:
    """The worker of what is forgotten. Nothing wakes it; an hour sooner or later is no matter."""

    name = "retention"
    topics: tuple[str, ...] = ()
    interval = 3_600.0
    patience = 0.0

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run_once(self) -> float | None:
        """Forget a bounded number at a time, so that no transaction holds the database for long."""
        settings, database = self._services.settings, self._services.database
        trail = timedelta(days=settings.audit_retention_days)
        work = timedelta(days=settings.command_retention_days)
        entries = await database.write(lambda tx: audit.remove_before(tx, tx.now - trail))
        more = await database.write(lambda tx: records.remove_ended_before(tx, tx.now - work))
        await database.write(lambda tx: records.remove_webhooks_ended_before(tx, tx.now - work))
        return 0.1 if entries or more else None

    async def close(self) -> None:
        """Nothing is under way between passes."""
