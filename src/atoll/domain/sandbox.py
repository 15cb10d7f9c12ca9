"""The sandbox: its statuses, the transitions between them as data, and the decisions of its lifecycle.

`atoll.store.transitions` is the only writer of a status and takes every step from `TRANSITIONS`; an unknown pair
raises. Pure: the clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from atoll.domain.errors import Conflict, ErrorCode, Forbidden, Invalid
from atoll.domain.snapshot import Pause
from atoll.domain.template import IsolationProfile, PersistenceMode

RETRY_AFTER_SECONDS = 2
"""What a caller of a sandbox that is not ready yet is told to wait."""
CAPACITY_RETRY_AFTER_SECONDS = 30
"""What a caller at a ceiling is told to wait (SA-424)."""


class SandboxStatus(StrEnum):
    """Where a sandbox stands in its life (SA-361)."""

    REQUESTED = "REQUESTED"
    """Waiting to be allocated."""
    ALLOCATING = "ALLOCATING"
    """Capacity and image are being found."""
    STARTING = "STARTING"
    """Its instance boots."""
    READY = "READY"
    """Runs and is idle."""
    BUSY = "BUSY"
    """Runs work."""
    SUSPENDING = "SUSPENDING"
    """A pause is under way."""
    SUSPENDED = "SUSPENDED"
    """Paused: no compute, its volume is kept."""
    RESUMING = "RESUMING"
    """Being deployed again."""
    FAILED = "FAILED"
    """See errorCode."""
    TERMINATING = "TERMINATING"
    """Being ended."""
    TERMINATED = "TERMINATED"
    """Over for good (SA-369)."""


class Action(StrEnum):
    """What moves a sandbox from one status to the next."""

    ALLOCATE = "allocate"
    START = "start"
    BECOME_READY = "become_ready"
    BEGIN_WORK = "begin_work"
    END_WORK = "end_work"
    SUSPEND = "suspend"
    ABORT_SUSPEND_IDLE = "abort_suspend_idle"
    ABORT_SUSPEND_BUSY = "abort_suspend_busy"
    FINISH_SUSPEND = "finish_suspend"
    RESUME = "resume"
    FAIL = "fail"
    TERMINATE = "terminate"
    FINISH_TERMINATE = "finish_terminate"


S, A = SandboxStatus, Action
TRANSITIONS: dict[tuple[SandboxStatus, Action], SandboxStatus] = {
    (S.REQUESTED, A.ALLOCATE): S.ALLOCATING,
    (S.REQUESTED, A.FAIL): S.FAILED,
    (S.ALLOCATING, A.START): S.STARTING,
    (S.ALLOCATING, A.FAIL): S.FAILED,
    (S.STARTING, A.BECOME_READY): S.READY,
    (S.STARTING, A.FAIL): S.FAILED,
    (S.READY, A.BEGIN_WORK): S.BUSY,
    (S.READY, A.SUSPEND): S.SUSPENDING,
    (S.READY, A.FAIL): S.FAILED,
    (S.READY, A.TERMINATE): S.TERMINATING,
    (S.BUSY, A.END_WORK): S.READY,
    (S.BUSY, A.SUSPEND): S.SUSPENDING,
    (S.BUSY, A.FAIL): S.FAILED,
    (S.BUSY, A.TERMINATE): S.TERMINATING,
    (S.SUSPENDING, A.ABORT_SUSPEND_IDLE): S.READY,
    (S.SUSPENDING, A.ABORT_SUSPEND_BUSY): S.BUSY,
    (S.SUSPENDING, A.FINISH_SUSPEND): S.SUSPENDED,
    (S.SUSPENDING, A.FAIL): S.FAILED,
    (S.SUSPENDING, A.TERMINATE): S.TERMINATING,
    (S.SUSPENDED, A.RESUME): S.RESUMING,
    (S.SUSPENDED, A.TERMINATE): S.TERMINATING,
    (S.RESUMING, A.BECOME_READY): S.READY,
    (S.RESUMING, A.FAIL): S.FAILED,
    (S.FAILED, A.TERMINATE): S.TERMINATING,
    (S.TERMINATING, A.FINISH_TERMINATE): S.TERMINATED,
}
"""Every allowed step. REQUESTED to RESUMING is left for TERMINATING through FAILED where it never ran (SA-144)."""

PROVISIONING = frozenset({S.REQUESTED, S.ALLOCATING, S.STARTING, S.RESUMING})
"""On the way to READY; get waits on these (SA-138)."""
RUNNING = frozenset({S.READY, S.BUSY})
"""Accepts commands."""
HOLDS_CAPACITY = frozenset(set(S) - {S.SUSPENDED, S.TERMINATED})
"""Counts toward a ceiling (SA-414, SA-416)."""
BILLED = frozenset({S.STARTING, S.READY, S.BUSY, S.SUSPENDING, S.RESUMING})
"""Billed by the second (SA-379 … SA-383)."""


class WorkloadProfile(StrEnum):
    """What a sandbox is for (SA-109)."""

    CODE_INTERPRETER_TURN = "CODE_INTERPRETER_TURN"
    """Code of one external session."""
    QUAVE_INTERACTIVE_AGENT = "QUAVE_INTERACTIVE_AGENT"
    """An agent that talks with a person."""
    QUAVE_AUTOMATION_RUN = "QUAVE_AUTOMATION_RUN"
    """An agent that runs by itself."""


class OwnerKind(StrEnum):
    """What a sandbox is attached to (SA-110)."""

    EXTERNAL_SESSION = "EXTERNAL_SESSION"
    """A session of another system."""
    AGENT_CONVERSATION = "AGENT_CONVERSATION"
    """A conversation."""
    AGENT_RUN = "AGENT_RUN"
    """A run."""


OWNER_OF_PROFILE = {
    WorkloadProfile.CODE_INTERPRETER_TURN: OwnerKind.EXTERNAL_SESSION,
    WorkloadProfile.QUAVE_INTERACTIVE_AGENT: OwnerKind.AGENT_CONVERSATION,
    WorkloadProfile.QUAVE_AUTOMATION_RUN: OwnerKind.AGENT_RUN,
}


class TerminationReason(StrEnum):
    """Why a sandbox was terminated."""

    USER_REQUESTED = "USER_REQUESTED"
    """Somebody asked (SA-146)."""
    IDLE_TIMEOUT = "IDLE_TIMEOUT"
    """Idle for too long (SA-370)."""
    HARD_LIFETIME = "HARD_LIFETIME"
    """Its lifetime is over (SA-371)."""
    SUSPENDED_RETENTION = "SUSPENDED_RETENTION"
    """Paused for too long."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One isolated machine, as the store keeps it."""

    id: str
    account_id: str
    app_id: str
    template_id: str
    template_revision_id: str
    template_revision_number: int
    region: str
    workload_profile: WorkloadProfile
    isolation_profile: IsolationProfile
    persistence_mode: PersistenceMode
    volume_name: str | None
    owner_kind: OwnerKind
    owner_id: str
    external_session_id: str | None
    caller_key: str
    idempotency_key: str
    project_id: str | None
    max_project_concurrency: int | None
    supervised: bool | None
    status: SandboxStatus
    status_reason: str | None
    desired_status: SandboxStatus | None
    generation: int
    is_warm_allocation: bool
    zclouds: int
    ephemeral_disk_mb: int | None
    pid_limit: int | None
    idle_timeout_seconds: int
    suspended_retention_seconds: int
    instance_id: str | None
    """The driver's name for its compute; None before allocation."""
    allocation_pending: bool
    """Whether compute may exist that is not cleaned up yet (SA-415)."""
    claimed_at: datetime | None
    ready_at: datetime | None
    last_active_at: datetime
    suspended_at: datetime | None
    resumed_at: datetime | None
    terminated_at: datetime | None
    expires_at: datetime
    termination_reason: TerminationReason | None
    error_code: ErrorCode | None
    correlation_id: str
    created_at: datetime
    updated_at: datetime
    volume_id: str | None = None
    mount_path: str | None = None
    """Where its volume is mounted; None where the mode mounts none."""
    last_snapshot_at: datetime | None = None
    last_snapshot_bytes: int | None = None
    last_snapshot_error: str | None = None
    """Why the latest snapshot or restore failed; None when it did not (SA-050)."""
    restore_failed: bool = False
    """Its workspace lacks what the latest snapshot holds; a pause needs force (SA-156)."""
    pause: Pause | None = None
    """The pause under way, or the one that was given up last."""
    private: bool | None = None
    """Whether only its creator may use it; None when nobody asked."""
    webhook_host: str | None = None
    """Where the ends of its commands are told; None when nobody asked."""

    @property
    def idle_deadline(self) -> datetime:
        """When it has been idle for too long, counted from the last activity."""
        return self.last_active_at + timedelta(seconds=self.idle_timeout_seconds)


def next_status(status: SandboxStatus, action: Action) -> SandboxStatus:
    """Look the step up; a step that is not in the table raises `Conflict`."""
    try:
        return TRANSITIONS[status, action]
    except KeyError:
        raise Conflict(f"A sandbox that is {status} cannot {action.replace('_', ' ')}.") from None


def check_owner(profile: WorkloadProfile, owner_kind: OwnerKind) -> None:
    """Refuse an owner of another kind than the profile requires (SA-110)."""
    required = OWNER_OF_PROFILE[profile]
    if owner_kind is not required:
        raise Invalid(f"ownerKind must be {required} for the workload profile {profile}.", field="ownerKind")


def check_private_mode(private: bool | None, mode: PersistenceMode) -> None:  # noqa: FBT001 - a field of the request
    """Refuse a private sandbox that would leave something on a volume of the account (SA-116, SA-340)."""
    if private and mode is not PersistenceMode.EPHEMERAL:
        raise Invalid("private needs the persistence mode EPHEMERAL.", field="private")


def check_private_use(sandbox: Sandbox, caller_key: str) -> None:
    """Refuse commands and sessions of a private sandbox to all but its creator, also to admins (SA-332 … SA-336)."""
    if sandbox.private and sandbox.caller_key != caller_key:
        raise Forbidden("The sandbox is private: only the user who created it can use it.")


def check_accepts_commands(sandbox: Sandbox) -> None:
    """Refuse work in a sandbox that does not run, saying whether waiting helps (SA-214, SA-218 … SA-221)."""
    if sandbox.status in RUNNING:
        return
    if sandbox.status in PROVISIONING or sandbox.status is S.SUSPENDING:
        raise Conflict(
            f"The sandbox is {sandbox.status} and not ready yet; retry after {RETRY_AFTER_SECONDS} seconds.",
            code=ErrorCode.SANDBOX_NOT_READY,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    if sandbox.status is S.SUSPENDED:
        raise Conflict(
            "The sandbox is paused. Resume it, or run a command in it, which does; then try again.",
            code=ErrorCode.SANDBOX_SUSPENDED,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    expired = sandbox.termination_reason is TerminationReason.HARD_LIFETIME
    why = f" ({sandbox.status_reason.rstrip('.')})" if sandbox.status_reason else ""
    raise Conflict(
        f"The sandbox is {sandbox.status}{why} and accepts no commands. Create a new one.",
        code=ErrorCode.SANDBOX_EXPIRED if expired else ErrorCode.SANDBOX_NOT_FOUND,
    )


def due_termination(sandbox: Sandbox, now: datetime) -> TerminationReason | None:
    """Say why time ends this sandbox now, or None (SA-244, SA-245, SA-370, SA-371)."""
    if sandbox.status in {S.TERMINATING, S.TERMINATED}:
        return None
    if sandbox.expires_at <= now:
        return TerminationReason.HARD_LIFETIME
    if sandbox.status is S.READY and sandbox.idle_deadline <= now:
        return TerminationReason.IDLE_TIMEOUT
    if sandbox.status is S.SUSPENDED and sandbox.suspended_at is not None:
        retained_until = sandbox.suspended_at + timedelta(seconds=sandbox.suspended_retention_seconds)
        if retained_until <= now:
            return TerminationReason.SUSPENDED_RETENTION
    return None
