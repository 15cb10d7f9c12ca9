"""Queries about commands. Their states go one way: requested, running, exited.

Every end is recorded by `mark_exited` or `mark_lost`; both write what has to be told of it (`atoll.store.webhooks`)
and its entry in the audit trail.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, case, delete, func, insert, select, update

from atoll.domain.command import CommandState, EndReason
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.sandbox import RUNNING
from atoll.store import audit, webhooks
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import commands, sandboxes
from atoll.store.wakes import sandbox_topic

_mapper = Mapper(commands, Execution)
_c = commands.c

# Built once: building a statement costs ten times what running it does.
_GET = select(*_mapper.columns).where(_c.id == bindparam("id"), _c.sandbox_id == bindparam("sandbox_id"))
_FIND = select(*_mapper.columns).where(_c.id == bindparam("id"))
_FIND_BY_KEY = select(*_mapper.columns).where(
    _c.sandbox_id == bindparam("sandbox_id"), _c.idempotency_key == bindparam("idempotency_key")
)
_INSERT = insert(commands)
_MARK_RUNNING = (
    update(commands)
    .where(_c.id == bindparam("the_id"), _c.process_id.is_(None))
    .values(
        state=case((_c.state == ExecutionState.REQUESTED, ExecutionState.RUNNING), else_=_c.state),
        process_id=bindparam("process_id"),
        started_at=bindparam("started_at"),
    )
)
_MARK_EXITED = (
    update(commands).where(_c.id == bindparam("the_id"), _c.state != ExecutionState.EXITED).returning(_c.kind)
)
# A reader may be told of the end before it has read all the events, and so before anybody knows their number.
_LEARN_END = (
    update(commands).where(_c.id == bindparam("the_id"), _c.end_seq.is_(None)).values(end_seq=bindparam("end_seq"))
)
_ACTIVE = select(*_mapper.columns).where(_c.sandbox_id == bindparam("sandbox_id"), _c.state != ExecutionState.EXITED)
_ACTIVE_OF_INSTANCE = select(*_mapper.columns).where(
    _c.instance_id == bindparam("instance_id"), _c.state != ExecutionState.EXITED
)
_COUNT_ACTIVE = (
    select(func.count())
    .select_from(commands)
    .where(_c.sandbox_id == bindparam("sandbox_id"), _c.state != ExecutionState.EXITED)
)


def get(tx: Transaction, sandbox_id: str, execution_id: str) -> Execution | None:
    """One command of one sandbox."""
    return _mapper.maybe(tx.connection.execute(_GET, {"id": execution_id, "sandbox_id": sandbox_id}).first())


def find(tx: Transaction, execution_id: str) -> Execution | None:
    """One command, whatever its sandbox."""
    return _mapper.maybe(tx.connection.execute(_FIND, {"id": execution_id}).first())


def remove_unsent(tx: Transaction, execution_id: str) -> None:
    """Forget a command that never ran; one that the agent has taken meanwhile stays."""
    tx.connection.execute(delete(commands).where(_c.id == execution_id, _c.state == ExecutionState.REQUESTED))


def find_by_key(tx: Transaction, sandbox_id: str, idempotency_key: str) -> Execution | None:
    """The command of one idempotency key in one sandbox (SA-251)."""
    key = {"sandbox_id": sandbox_id, "idempotency_key": idempotency_key}
    return _mapper.maybe(tx.connection.execute(_FIND_BY_KEY, key).first())


def add(tx: Transaction, execution: Execution) -> None:
    """Insert a command."""
    values = {column.name: getattr(execution, column.name) for column in _mapper.columns}
    tx.connection.execute(_INSERT, values)


def mark_running(tx: Transaction, execution_id: str, *, process_id: int, started_at: datetime) -> None:
    """Record that the agent has started it; one whose end was recorded first stays ended and gets its process id."""
    values = {"the_id": execution_id, "process_id": process_id, "started_at": started_at}
    tx.connection.execute(_MARK_RUNNING, values)


def mark_exited(tx: Transaction, execution_id: str, state: CommandState) -> bool:
    """Record how it ended; the first record wins, but for how many events there were. True when this was the first."""
    values = {
        "the_id": execution_id,
        "state": ExecutionState.EXITED,
        "exit_code": state.exit_code,
        "reason": state.reason,
        "stdout_bytes": state.stdout_bytes,
        "stderr_bytes": state.stderr_bytes,
        "output_truncated": state.output_truncated,
        "started_at": state.started_at,
        "exited_at": state.exited_at,
        "end_seq": state.end_seq,
    }
    kind = tx.connection.execute(_MARK_EXITED, values).scalar()
    if kind is not None and kind is not ExecutionKind.EXECUTE:
        webhooks.enqueue(tx, [execution_id], observed=True)
    if kind is None and state.end_seq is not None:
        tx.connection.execute(_LEARN_END, {"the_id": execution_id, "end_seq": state.end_seq})
    if kind is not None:
        audit.record_ends(tx, [execution_id])
    return kind is not None


def mark_lost(tx: Transaction, execution_ids: Sequence[str], *, reason: EndReason) -> None:
    """Record the end of commands whose outcome nobody saw."""
    ended = tx.connection.execute(
        update(commands)
        .where(_c.id.in_(list(execution_ids)), _c.state != ExecutionState.EXITED)
        .values(state=ExecutionState.EXITED, exit_code=137, reason=reason, exited_at=tx.now)
        .returning(_c.id)
    )
    ids = list(ended.scalars())
    audit.record_ends(tx, ids)
    webhooks.enqueue(tx, ids, observed=False)


def end_all(tx: Transaction, sandbox_id: str, *, reason: EndReason) -> None:
    """Record the end of every command of a sandbox whose compute is gone."""
    ids = [execution.id for execution in active(tx, sandbox_id)]
    if ids:
        mark_lost(tx, ids, reason=reason)
        tx.wake(sandbox_topic(sandbox_id))


def active(tx: Transaction, sandbox_id: str) -> list[Execution]:
    """Commands that have not ended."""
    return [_mapper.one(row) for row in tx.connection.execute(_ACTIVE, {"sandbox_id": sandbox_id})]


def started(tx: Transaction, sandbox_id: str, *, limit: int) -> list[Execution]:
    """Started commands of a sandbox: those that have not ended, then those that have, each newest first."""
    query = (
        select(*_mapper.columns)
        .where(_c.sandbox_id == sandbox_id, _c.kind == ExecutionKind.START)
        .order_by(case((_c.state == ExecutionState.EXITED, 1), else_=0), _c.requested_at.desc(), _c.id)
        .limit(limit)
    )
    return [_mapper.one(row) for row in tx.connection.execute(query)]


def active_of_instance(tx: Transaction, instance_id: str) -> list[Execution]:
    """Commands of one instance that have not ended."""
    return [_mapper.one(row) for row in tx.connection.execute(_ACTIVE_OF_INSTANCE, {"instance_id": instance_id})]


def count_active(tx: Transaction, sandbox_id: str) -> int:
    """How many have not ended."""
    return int(tx.connection.execute(_COUNT_ACTIVE, {"sandbox_id": sandbox_id}).scalar_one())


def unanswered_instances(tx: Transaction, *, before: datetime) -> list[str]:
    """Running instances with a command that was asked for before a time and has neither begun nor ended on record."""
    query = (
        select(_c.instance_id)
        # By the instances, of which there are few, and their index: of commands there are many, nearly all ended.
        .join(sandboxes, sandboxes.c.instance_id == _c.instance_id)
        .where(sandboxes.c.status.in_(sorted(RUNNING)), _c.state == ExecutionState.REQUESTED, _c.requested_at <= before)
        .distinct()
    )
    return list(tx.connection.execute(query).scalars())
