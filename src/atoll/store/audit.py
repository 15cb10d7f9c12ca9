"""Queries about the audit trail. Whoever does a deed records it here, in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, literal, select

from atoll.domain.audit import AuditAction, AuditEntry, AuditOutcome, AuditTarget, Channel
from atoll.domain.identity import Principal
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import audit_entries, commands, sandboxes

_mapper = Mapper(audit_entries, AuditEntry)
_e = audit_entries.c
_USER_KEY_START = len("user:") + 1
_BATCH = 5_000
# Built once: they run with every command, and building a statement costs ten times what running it does.
_INSERT = insert(audit_entries)
_INSERT_END = insert(audit_entries).from_select(
    [
        "account_id",
        "occurred_at",
        "action",
        "outcome",
        "user_id",
        "channel",
        "target_kind",
        "target_id",
        "execution_id",
        "exit_code",
        "reason",
    ],
    select(
        sandboxes.c.account_id,
        bindparam("now", type_=_e.occurred_at.type),
        literal(str(AuditAction.END_COMMAND)),
        literal(AuditOutcome.ENDED, _e.outcome.type),
        func.substr(commands.c.caller_key, _USER_KEY_START),
        literal(Channel.SYSTEM, _e.channel.type),
        literal(AuditTarget.SANDBOX, _e.target_kind.type),
        commands.c.sandbox_id,
        commands.c.id,
        commands.c.exit_code,
        commands.c.reason,
    )
    .join_from(commands, sandboxes, sandboxes.c.id == commands.c.sandbox_id)
    .where(commands.c.id == bindparam("the_id")),
)


def record(
    tx: Transaction,
    principal: Principal,
    action: AuditAction,
    account_id: str,
    *,
    sandbox_id: str | None = None,
    target: tuple[AuditTarget, str] | None = None,
    execution_id: str | None = None,
) -> None:
    """Record a deed of a caller; a sandbox is named by `sandbox_id`, anything else by `target`."""
    if sandbox_id is not None:
        target = (AuditTarget.SANDBOX, sandbox_id)
    _insert(
        tx,
        **_caller(principal),
        account_id=account_id,
        action=str(action),
        outcome=AuditOutcome.ACCEPTED,
        target=target,
        execution_id=execution_id,
    )


def record_refusal(
    tx: Transaction,
    principal: Principal,
    action: str,
    account_id: str,
    *,
    outcome: AuditOutcome,
    status: int,
    error_code: str | None,
    target: tuple[AuditTarget, str] | None,
    execution_id: str | None,
) -> None:
    """Record an attempt that came to nothing. `action` is the operation's id."""
    _insert(
        tx,
        **_caller(principal),
        account_id=account_id,
        action=action,
        outcome=outcome,
        status=status,
        error_code=error_code,
        target=target,
        execution_id=execution_id,
    )


def record_unattended(
    tx: Transaction,
    channel: Channel,
    action: AuditAction,
    account_id: str,
    target: tuple[AuditTarget, str] | None,
    *,
    user_id: str | None = None,
    reason: str | None = None,
) -> None:
    """Record a deed of nobody who called: of the operator's command line, or of the control plane itself."""
    _insert(
        tx,
        channel=channel,
        account_id=account_id,
        action=str(action),
        outcome=AuditOutcome.ACCEPTED,
        target=target,
        user_id=user_id,
        reason=reason,
    )


def record_ends(tx: Transaction, execution_ids: Sequence[str]) -> None:
    """Record how commands ended, from their rows (SA-237): that they ran, never what they were or said (SA-238)."""
    if execution_ids:
        values = [{"now": tx.now, "the_id": execution_id} for execution_id in execution_ids]
        tx.connection.execute(_INSERT_END, values)


def page(
    tx: Transaction,
    account_id: str,
    *,
    before: int | None,
    limit: int,
    sandbox_id: str | None,
    user_id: str | None,
    action: str | None,
    since: datetime | None,
    until: datetime | None,
) -> list[AuditEntry]:
    """Entries of an account, newest first, from before an entry on; `until` is exclusive."""
    query = select(*_mapper.columns).where(_e.account_id == account_id).order_by(_e.id.desc()).limit(limit)
    if before is not None:
        query = query.where(_e.id < before)
    if sandbox_id is not None:
        query = query.where(_e.target_kind == AuditTarget.SANDBOX, _e.target_id == sandbox_id)
    if user_id is not None:
        query = query.where(_e.user_id == user_id)
    if action is not None:
        query = query.where(_e.action == action)
    if since is not None:
        query = query.where(_e.occurred_at >= since)
    if until is not None:
        query = query.where(_e.occurred_at < until)
    return [_mapper.one(row) for row in tx.connection.execute(query)]


def remove_before(tx: Transaction, moment: datetime) -> int:
    """Forget what is older, a bounded number at a time; how many that were."""
    # Ids rise with time, so the oldest are found without an index that every deed would have to pay for.
    oldest = select(_e.id).order_by(_e.id).limit(_BATCH)
    return tx.connection.execute(delete(audit_entries).where(_e.id.in_(oldest), _e.occurred_at < moment)).rowcount


def _caller(principal: Principal) -> dict[str, Any]:
    origin = principal.origin
    return {
        "user_id": principal.user_id,
        "token_id": principal.token_id,
        "channel": origin.channel,
        "address": origin.address,
        "request_id": origin.request_id,
    }


def _insert(tx: Transaction, *, target: tuple[AuditTarget, str] | None, **values: Any) -> None:
    kind, name = target or (None, None)
    tx.connection.execute(_INSERT, {"occurred_at": tx.now, "target_kind": kind, "target_id": name, **values})
