"""Capacity: the ceilings that a sandbox must fit under before it holds compute, at its create and at each resume."""

from __future__ import annotations

from atoll.domain.errors import LimitReached
from atoll.domain.identity import Account
from atoll.domain.sandbox import CAPACITY_RETRY_AFTER_SECONDS
from atoll.ops.services import Services
from atoll.store import sandboxes
from atoll.store.database import Transaction


def check_capacity(
    tx: Transaction,
    services: Services,
    account: Account,
    *,
    app_id: str,
    project_id: str | None,
    max_project_concurrency: int | None,
) -> None:
    """Refuse at a ceiling (SA-417, SA-424, SA-425, SA-431, SA-432). The caller holds the account's fence."""
    ceiling = account.sandbox_ceiling(services.settings.account_active_sandbox_limit)
    if sandboxes.count_active(tx, account.id) >= ceiling:
        raise LimitReached(
            f"The account has reached its ceiling of {ceiling} active sandboxes.",
            reason="account_concurrency_exceeded",
            retry_after_seconds=CAPACITY_RETRY_AFTER_SECONDS,
        )
    own = max_project_concurrency
    if own is None:
        return
    if sandboxes.count_active(tx, account.id, app_id=app_id, project_id=project_id) >= own:
        raise LimitReached(
            f"The project has reached its maximum of {own} active sandboxes.",
            reason="project_concurrency_exceeded",
            retry_after_seconds=CAPACITY_RETRY_AFTER_SECONDS,
        )
