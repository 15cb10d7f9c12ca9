"""Pause a sandbox: write down that it is to be paused, wait for the worker, and tell how it went."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.domain.audit import AuditAction
from atoll.domain.errors import Conflict, ErrorCode, Invalid, RuntimeFailure, SnapshotFailed, SnapshotTimedOut
from atoll.domain.identity import Principal, Scope
from atoll.domain.sandbox import RETRY_AFTER_SECONDS, RUNNING, Action, Sandbox, SandboxStatus
from atoll.domain.snapshot import Pause, PauseFailure
from atoll.ops.access import authorize_manage, load_sandbox
from atoll.ops.services import Services
from atoll.ops.waiting import wait_while
from atoll.store import audit, sandboxes
from atoll.store.database import Transaction
from atoll.store.transitions import transition

_RELEASE_SECONDS = 120.0
"""What a pause may take beside its snapshot."""


@dataclass(frozen=True, slots=True)
class PauseSandbox:
    """What a caller asks for; None is the revision's."""

    account_id: str
    sandbox_id: str
    snapshot_exclude: tuple[str, ...] | None
    snapshot_max_mb: int | None
    force: bool


async def pause_sandbox(services: Services, principal: Principal, request: PauseSandbox) -> Sandbox:
    """Pause a sandbox and return it SUSPENDED; one that is paused already is returned as it is (SA-147 … SA-166).

    Raises `Invalid` for an EPHEMERAL sandbox and `Conflict` for one that cannot be paused now. After `SnapshotFailed`,
    `SnapshotTimedOut` and `RuntimeFailure` AGENT_UNREACHABLE the sandbox runs on as before.
    """
    attempt = services.new_id()

    def begin(tx: Transaction) -> Sandbox:
        authorize_manage(tx, principal, request.account_id, Scope.DEPLOY)
        sandbox = load_sandbox(tx, principal, request.account_id, request.sandbox_id, lock=True)
        sandboxes.touch(tx, sandbox.id)
        if not sandbox.persistence_mode.uses_volume:
            raise Invalid("An EPHEMERAL sandbox keeps nothing, so it cannot be paused; terminate it instead.")
        if sandbox.status is SandboxStatus.SUSPENDED:
            return sandbox
        _check(sandbox, request)
        audit.record(tx, principal, AuditAction.PAUSE_SANDBOX, request.account_id, sandbox_id=sandbox.id)
        pause = Pause(attempt, request.snapshot_exclude, request.snapshot_max_mb)
        return transition(tx, sandbox, Action.SUSPEND, desired_status=SandboxStatus.SUSPENDED, pause=pause)

    def under_way(sandbox: Sandbox) -> bool:
        return sandbox.status is SandboxStatus.SUSPENDING and _is_ours(sandbox, attempt)

    sandbox = await wait_while(
        services,
        request.sandbox_id,
        lambda: services.database.write(begin),
        under_way,
        services.settings.snapshot_timeout_seconds + _RELEASE_SECONDS,
    )
    if _is_ours(sandbox, attempt):
        _raise_failure(sandbox)
    return sandbox


def _is_ours(sandbox: Sandbox, attempt: str) -> bool:
    return sandbox.pause is not None and sandbox.pause.attempt == attempt


def _check(sandbox: Sandbox, request: PauseSandbox) -> None:
    if sandbox.status not in RUNNING:
        raise Conflict(f"A sandbox that is {sandbox.status} cannot be paused; only a READY or BUSY one can.")
    if sandbox.restore_failed and sandbox.persistence_mode.takes_snapshots and not request.force:
        raise Conflict(
            "The workspace could not be restored when the sandbox started, so a snapshot of it would replace the last "
            "good one. Send force to take it all the same."
        )


def _raise_failure(sandbox: Sandbox) -> None:
    """Tell why the pause did not come to its end."""
    pause = sandbox.pause
    if pause is None or sandbox.status is SandboxStatus.SUSPENDED:
        return
    message = pause.message or "The sandbox could not be paused."
    match pause.failure:
        case PauseFailure.SNAPSHOT_FAILED:
            raise SnapshotFailed(message)
        case PauseFailure.TIMED_OUT:
            raise SnapshotTimedOut(message)
        case PauseFailure.UNREACHABLE:
            raise RuntimeFailure(message, code=ErrorCode.AGENT_UNREACHABLE, retry_after_seconds=RETRY_AFTER_SECONDS)
    if sandbox.status is SandboxStatus.SUSPENDING:
        raise SnapshotTimedOut("The pause takes longer than expected; look at the sandbox again later.")
    if not pause.archived and sandbox.status is not SandboxStatus.RESUMING:
        raise Conflict(f"The sandbox was {sandbox.status} before it was paused.")
