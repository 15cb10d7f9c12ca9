"""The answers of the Sandbox API, for the OpenAPI document. Written by `render`; tests hold both together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from atoll.api.sandbox.fields import Answer, Moment
from atoll.domain.command import EndReason
from atoll.domain.errors import ErrorCode
from atoll.domain.sandbox import OwnerKind, SandboxStatus, TerminationReason, WorkloadProfile
from atoll.domain.template import IsolationProfile, PersistenceMode

Success = Annotated[Literal[True], Field(description="Always true in an answer that is not an error.")]
Base64 = Annotated[str, Field(description="Base64.", examples=["UHl0aG9uIDMuMTIuMTUK"])]


class ErrorData(Answer):
    """What else is known of an error; only the keys that apply."""

    retryable: Annotated[bool | None, Field(description="Whether waiting and trying again can succeed.")] = None
    retry_after_seconds: Annotated[int | None, Field(description="How long to wait; also in Retry-After.")] = None
    reason: Annotated[str | None, Field(description="Which ceiling was reached.")] = None


class ErrorAnswer(Answer):
    """The one shape of every error."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "success": False,
                "error": "The sandbox is STARTING and not ready yet; retry after 2 seconds.",
                "errorCode": "SANDBOX_NOT_READY",
                "data": {"retryable": True, "retryAfterSeconds": 2},
            }
        }
    )

    success: Literal[False]
    error: Annotated[str, Field(description="A sentence for a person.")]
    error_code: Annotated[ErrorCode | None, Field(description="A stable code, where there is one.")] = None
    data: ErrorData | None = None


class Resources(Answer):
    """The size of a sandbox."""

    z_clouds: Annotated[int, Field(description="Each is 0.5 vCPU and 512 MB, reserved and never exceeded.")]
    ephemeral_disk_mb: Annotated[int | None, Field(description="Temporary disk.")] = None
    pid_limit: Annotated[int | None, Field(description="Processes and threads.")] = None


class Template(Answer):
    """A named definition of what to run."""

    template_id: str
    account_id: str
    app_id: str | None = None
    name: str
    slug: Annotated[str, Field(description="URL-safe, derived from the name.")]
    description: str | None = None
    enabled: Annotated[bool, Field(description="Whether sandboxes may be requested from it.")]
    deprecated_at: Annotated[Moment | None, Field(description="Since when it is out of use.")] = None
    current_revision_number: Annotated[int, Field(description="Number of its latest revision, 0 before the first.")]
    created_at: Moment
    updated_at: Moment


class PersistentWorkspace(Answer):
    """The volume of the volume modes."""

    size_mb: int
    mount_path: str | None = None


class WarmPool(Answer):
    """Sandboxes that wait booted."""

    desired: int
    min: int
    max: int


class NetworkControl(Answer):
    """Egress restrictions."""

    enabled: bool
    address_allowlist: list[str] | None = None
    domain_allowlist: list[str] | None = None


class Revision(Answer):
    """An immutable runtime configuration of a template."""

    revision_id: str
    template_id: str
    revision: Annotated[int, Field(description="Grows with each one appended.")]
    image_digest: str
    image_ref: str | None = None
    command: list[str] | None = None
    working_dir: str | None = None
    ports: list[int] | None = None
    resources: Resources
    persistence_mode: PersistenceMode
    persistent_workspace: PersistentWorkspace | None = None
    snapshot_exclude: list[str] | None = None
    snapshot_max_mb: int | None = None
    isolation_profile: IsolationProfile
    idle_timeout_seconds: int
    hard_lifetime_seconds: int
    suspended_retention_seconds: int
    warm_pool: WarmPool | None = None
    network_control: NetworkControl | None = None
    created_at: Moment


class ExecutionWebhook(Answer):
    """Where the ends of started commands are told; the URL and the secret are not returned."""

    host: str


class Persistence(Answer):
    """What is known of the volume and the snapshots of a sandbox."""

    mount_path: str | None = None
    last_snapshot_at: Moment | None = None
    last_snapshot_bytes: Annotated[int | None, Field(description="Size of the archive.")] = None
    last_snapshot_error: Annotated[
        str | None, Field(description="Why the latest snapshot or restore failed; absent when it did not.")
    ] = None


class Sandbox(Answer):
    """One isolated machine."""

    sandbox_id: str
    account_id: str
    app_id: str
    template_id: str
    template_revision_id: Annotated[str, Field(description="The exact revision that it runs.")]
    template_revision_number: int
    region: str
    workload_profile: WorkloadProfile
    isolation_profile: IsolationProfile
    persistence_mode: PersistenceMode
    volume_name: Annotated[str | None, Field(description="Its shared volume; in the volume modes only.")] = None
    persistence: Annotated[Persistence | None, Field(description="In the volume modes only.")] = None
    owner_kind: OwnerKind
    owner_id: str
    external_session_id: str | None = None
    caller_key: Annotated[str, Field(description="Who requested it.", examples=["user:USER_ID"])]
    project_id: str | None = None
    max_project_concurrency: int | None = None
    supervised: bool | None = None
    private: Annotated[bool | None, Field(description="Whether only its creator may use it.")] = None
    execution_webhook: ExecutionWebhook | None = None
    status: SandboxStatus
    status_reason: str | None = None
    desired_status: Annotated[SandboxStatus | None, Field(description="Where it is driven, while that differs.")] = None
    generation: Annotated[int, Field(description="Grows with every change of status.")]
    is_warm_allocation: Annotated[bool, Field(description="Whether it came from a warm pool.")]
    resources: Resources
    claimed_at: Moment | None = None
    ready_at: Moment | None = None
    last_active_at: Annotated[Moment, Field(description="When it was last called; idleness counts from here.")]
    suspended_at: Moment | None = None
    resumed_at: Moment | None = None
    terminated_at: Moment | None = None
    expires_at: Annotated[Moment, Field(description="When its lifetime is over.")]
    termination_reason: TerminationReason | None = None
    error_code: ErrorCode | None = None
    error_retryable: bool | None = None
    correlation_id: Annotated[str, Field(description="The id of the request that created it.")]
    created_at: Moment
    updated_at: Moment


class Execution(Answer):
    """A command that runs."""

    execution_id: str
    process_id: int
    started_at: Moment


class Result(Answer):
    """A command that ran to its end."""

    exit_code: Annotated[int, Field(description="137 after a kill for memory, usually 143 after the deadline.")]
    stdout: Annotated[Base64 | None, Field(description="Standard output in base64; absent when empty.")] = None
    stderr: Annotated[Base64 | None, Field(description="Standard error in base64; absent when empty.")] = None
    stdout_truncated: Annotated[bool | None, Field(description="true when it was cut.")] = None
    stderr_truncated: Annotated[bool | None, Field(description="true when it was cut.")] = None
    reason: Annotated[EndReason | None, Field(description="Why it did not exit on its own.")] = None


class ExitEvent(Answer):
    """How a command ended."""

    exit_code: int
    reason: EndReason | None = None


class TruncatedEvent(Answer):
    """Output that will not be delivered."""

    dropped_bytes: int
    dropped_events: int


class InitEvent(Answer):
    """The start of a command."""

    process_id: int


class Event(Answer):
    """One event: its number, and exactly one of the others."""

    seq: int
    stdout: Base64 | None = None
    stderr: Base64 | None = None
    exit: ExitEvent | None = None
    truncated: TruncatedEvent | None = None
    init: InitEvent | None = None


class Command(Answer):
    """A started command and a page of its events."""

    execution_id: str
    state: Literal["running", "exited"]
    exit_code: int | None = None
    reason: EndReason | None = None
    started_at: Moment
    exited_at: Moment | None = None
    stdout_bytes: Annotated[int, Field(description="Written so far, dropped output included.")]
    stderr_bytes: Annotated[int, Field(description="Written so far, dropped output included.")]
    output_truncated: Annotated[bool, Field(description="Whether the buffer dropped output.")]
    events: list[Event]
    next_seq: Annotated[int, Field(description="The from to send next.")]
    complete: Annotated[bool, Field(description="Whether every event, exit included, was delivered.")]


class CreatedAnswer(Answer):
    """A sandbox, and whether this call made it."""

    success: Success
    was_created: bool
    sandbox: Sandbox


class SandboxAnswer(Answer):
    """A sandbox."""

    success: Success
    sandbox: Sandbox


class SandboxesAnswer(Answer):
    """A page of sandboxes."""

    success: Success
    account_id: str
    page: int
    limit: int
    total_count: Annotated[int, Field(description="All matches, not only those on the page.")]
    sandboxes: list[Sandbox]


class TemplatesAnswer(Answer):
    """The templates of an account."""

    success: Success
    account_id: str
    templates: list[Template]


class TemplateAnswer(Answer):
    """A template."""

    success: Success
    template: Template


class TemplateWithRevisionAnswer(Answer):
    """A template with what it runs at present."""

    success: Success
    template: Template
    current_revision: Annotated[Revision | None, Field(description="null before the first.")]


class RevisionAnswer(Answer):
    """The revision that was appended."""

    success: Success
    revision: Revision


class ExecuteAnswer(Answer):
    """How a command ended and what it said."""

    success: Success
    result: Result


class StartAnswer(Answer):
    """A command that runs."""

    success: Success
    execution: Execution


class CommandAnswer(Answer):
    """A command and its output."""

    success: Success
    command: Command


class KillAnswer(Answer):
    """The signal that was sent."""

    success: Success
    execution_id: str
    signal: Literal["SIGTERM", "SIGINT", "SIGKILL"]


class SessionAnswer(Answer):
    """A gateway session."""

    success: Success
    endpoint: Annotated[str, Field(description="The base URL of the sandbox's gateway.")]
    token: Annotated[str, Field(description="Send it to the gateway as Authorization: Bearer TOKEN; shown this once.")]
    expires_at: Annotated[Moment, Field(description="When the token ends, if its sandbox does not end earlier.")]
