"""The audit trail: read it, and record attempts that came to nothing.

Deeds record themselves, in their own transaction (`atoll.store.audit`); an attempt that was refused left none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from atoll.domain.audit import AuditEntry, AuditOutcome, AuditTarget
from atoll.domain.errors import RuntimeFailure, SnapshotFailed
from atoll.domain.identity import Principal
from atoll.domain.restriction import check_whole_account
from atoll.ops.access import authorize_read, load_sandbox
from atoll.ops.services import Services
from atoll.store import audit, identity
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; None is all. `until` is exclusive."""

    sandbox_id: str | None = None
    user_id: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was tried, as far as the request named it."""

    action: str
    """The operation's id."""
    account_id: str | None
    target: tuple[AuditTarget, str] | None
    execution_id: str | None


async def list_entries(
    services: Services,
    principal: Principal,
    account_id: str,
    wanted: AuditFilter,
    *,
    before: int | None,
    limit: int,
) -> tuple[list[AuditEntry], int | None]:
    """One page of an account's trail, newest first, and from where the next one goes on; None at the end.

    A token that is restricted to a part of the account sees that of single sandboxes inside. Raises `Forbidden`.
    """

    def look(tx: Transaction) -> list[AuditEntry]:
        authorize_read(tx, principal, account_id)
        if wanted.sandbox_id is None:
            check_whole_account(principal.restriction)
        elif principal.restriction is not None and principal.restriction.is_narrow:
            load_sandbox(tx, principal, account_id, wanted.sandbox_id)
        return audit.page(
            tx,
            account_id,
            before=before,
            limit=limit + 1,
            sandbox_id=wanted.sandbox_id,
            user_id=wanted.user_id,
            action=wanted.action,
            since=wanted.since,
            until=wanted.until,
        )

    found = await services.database.read(look)
    return found[:limit], found[limit - 1].id if len(found) > limit else None


async def record_refusal(
    services: Services, principal: Principal, attempt: Attempt, error: Exception, status: int, error_code: str | None
) -> None:
    """Record an attempt that was refused or that failed, in the trail of the account that it was about.

    One about an account of which the caller is no member stands in the trail of the token's own: nobody writes into the
    trail of strangers.
    """
    failed = isinstance(error, RuntimeFailure | SnapshotFailed)

    def record(tx: Transaction) -> None:
        named = attempt.account_id
        inside = named is not None and identity.is_member(tx, named, principal.user_id)
        audit.record_refusal(
            tx,
            principal,
            attempt.action,
            named if inside and named is not None else principal.account_id,
            outcome=AuditOutcome.FAILED if failed else AuditOutcome.REFUSED,
            status=status,
            error_code=error_code,
            target=attempt.target,
            execution_id=attempt.execution_id,
        )

    await services.database.write(record)
