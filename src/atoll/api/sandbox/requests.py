"""The bodies and queries of the Sandbox API."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from atoll.api.sandbox.fields import (
    MAX_INTEGER,
    MAX_SEQUENCE,
    AbsolutePath,
    AccountId,
    Argument,
    Body,
    Count,
    Directory,
    ExecutionId,
    Id,
    Label,
    LongText,
    Query,
    QueryBoolean,
    QueryInteger,
    SandboxId,
    Seconds,
    ShortName,
    TemplateId,
    VariableName,
    WaitSeconds,
)
from atoll.domain.command import (
    EXECUTE_DEFAULT_TIMEOUT_SECONDS,
    EXECUTE_MAX_TIMEOUT_SECONDS,
    IDEMPOTENCY_KEY_MAX_LENGTH,
    START_MAX_TIMEOUT_SECONDS,
)
from atoll.domain.gateway import GatewayScope
from atoll.domain.sandbox import OwnerKind, WorkloadProfile
from atoll.domain.template import MAX_ZCLOUDS, PersistenceMode
from atoll.domain.webhook import MAX_SECRET_LENGTH

MAX_COMMAND_BYTES = 240_000
"""Arguments and variables of one command together: they travel to the agent in one frame."""
RESERVED_VARIABLE_PREFIX = "SANDBOX_AGENT_"
_LOOSE = Field(strict=False)
"""For enums: JSON has only their values."""
Profile = Annotated[WorkloadProfile, _LOOSE]
Owner = Annotated[OwnerKind, _LOOSE]
Mode = Annotated[PersistenceMode, _LOOSE]


class ExecutionWebhookBody(Body):
    """Where to tell of the ends of started commands."""

    url: Annotated[
        str, Field(description="Public https URL on port 443.", examples=["https://hooks.example.com/atoll"])
    ]
    secret: Annotated[
        str,
        Field(
            max_length=MAX_SECRET_LENGTH,
            description="Signs each request: whsec_ and the base64 of 24 to 64 random bytes. Never returned.",
            json_schema_extra={"writeOnly": True},
        ),
    ]


class CreateSandboxBody(Body):
    """What to create, or to connect to."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "accountId": "ACCOUNT_ID",
                "appId": "APP_ID",
                "templateId": "TEMPLATE_ID",
                "workloadProfile": "QUAVE_INTERACTIVE_AGENT",
                "ownerKind": "AGENT_CONVERSATION",
                "ownerId": "CONVERSATION_ID",
                "region": "local",
                "idempotencyKey": "conversation-42",
            }
        }
    )

    account_id: AccountId
    app_id: Annotated[Id, Field(description="The app that the sandbox belongs to.")]
    template_id: Annotated[
        Id | None, Field(description="What to run, by its latest revision. Needed without templateRevisionId.")
    ] = None
    template_revision_id: Annotated[Id | None, Field(description="Pins one revision of the template.")] = None
    workload_profile: Annotated[Profile, Field(description="What the sandbox is for; decides ownerKind.")]
    owner_kind: Annotated[Owner, Field(description="The kind of owner that the workload profile requires.")]
    owner_id: Annotated[Label, Field(description="The owner that the sandbox is attached to.")]
    external_session_id: Annotated[Label | None, Field(description="A session id of your own.")] = None
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]*$", description="Where to run it.")]
    idempotency_key: Annotated[
        Label, Field(description="Repeating a call with the same key connects to the first call's sandbox.")
    ]
    persistence_mode: Annotated[Mode | None, Field(description="What to keep; the revision's unless sent.")] = None
    project_id: Annotated[Label | None, Field(description="A grouping of your own inside the app.")] = None
    max_project_concurrency: Annotated[
        Count | None,
        Field(description="Your own ceiling on active sandboxes of the project, or of the app without one."),
    ] = None
    supervised: Annotated[bool | None, Field(description="Run the workload under the runtime supervisor.")] = None
    volume_name: Annotated[
        ShortName | None, Field(description="An active shared volume of the account; one is made unless sent.")
    ] = None
    execution_webhook: Annotated[
        ExecutionWebhookBody | None, Field(description="Called when a started command ends; kept from the first call.")
    ] = None
    private: Annotated[
        bool | None, Field(description="Only the caller may use it; needs the persistence mode EPHEMERAL.")
    ] = None

    @model_validator(mode="after")
    def _names_what_to_run(self) -> Self:
        if self.template_id is None and self.template_revision_id is None:
            raise PydanticCustomError("template", "templateId is required unless templateRevisionId is sent")
        return self


class SandboxBody(Body):
    """Names a sandbox."""

    model_config = ConfigDict(json_schema_extra={"example": {"accountId": "ACCOUNT_ID", "sandboxId": "SANDBOX_ID"}})

    account_id: AccountId
    sandbox_id: SandboxId


class PauseBody(Body):
    """Which sandbox to pause, and how to archive it."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"accountId": "ACCOUNT_ID", "sandboxId": "SANDBOX_ID", "snapshotExclude": ["node_modules"]}
        }
    )

    account_id: AccountId
    sandbox_id: SandboxId
    snapshot_exclude: Annotated[
        list[Annotated[str, Field(max_length=1_000, pattern=r"^[^\x00]*$")]] | None,
        Field(max_length=1_000, description="Replaces the revision's exclude patterns for this pause."),
    ] = None
    snapshot_max_mb: Annotated[Count | None, Field(description="Replaces the revision's cap for this pause.")] = None
    force: Annotated[bool | None, Field(description="Snapshot even when the restore at start failed.")] = None


class CommandFields(Body):
    """What to run."""

    command: Annotated[
        list[Argument],
        Field(
            min_length=1, max_length=10_000, description="The argv, run without a shell.", examples=[["python3", "-V"]]
        ),
    ]
    cwd: Annotated[Directory | None, Field(description="Where to run it.")] = None
    env_vars: Annotated[
        dict[VariableName, Argument] | None, Field(description="Variables added to its environment; never stored.")
    ] = None
    ai_subscription_id: Annotated[
        Id | None, Field(description="Run with this AI subscription of yours; in a private sandbox of yours only.")
    ] = None

    @model_validator(mode="after")
    def _fits_into_one_frame(self) -> Self:
        if not self.command[0]:
            raise PydanticCustomError("command", "command.0 must name a program")
        variables = self.env_vars or {}
        for name in variables:
            if name.startswith(RESERVED_VARIABLE_PREFIX):
                raise PydanticCustomError("reserved", "envVars must not name SANDBOX_AGENT_ variables")
        size = sum(len(argument.encode()) + 4 for argument in self.command)
        size += sum(len(name.encode()) + len(value.encode()) + 5 for name, value in variables.items())
        if size > MAX_COMMAND_BYTES:
            raise PydanticCustomError("size", f"command and envVars together must not exceed {MAX_COMMAND_BYTES} bytes")
        return self


class _CommandBody(CommandFields):
    account_id: AccountId
    sandbox_id: SandboxId
    ai_subscription_id: Annotated[
        Id | None, Field(description="Run with this AI subscription of yours; in a private sandbox of yours only.")
    ] = None


class ExecuteBody(_CommandBody):
    """A command to run to its end."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "accountId": "ACCOUNT_ID",
                "sandboxId": "SANDBOX_ID",
                "command": ["sh", "-c", "python3 -V && uname -a"],
                "timeoutSeconds": 60,
            }
        }
    )

    timeout_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=EXECUTE_MAX_TIMEOUT_SECONDS,
            description=f"Deadline; {EXECUTE_DEFAULT_TIMEOUT_SECONDS} unless sent.",
        ),
    ] = None


class StartBody(_CommandBody):
    """A command to start."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "accountId": "ACCOUNT_ID",
                "sandboxId": "SANDBOX_ID",
                "command": ["sh", "-c", "cd repo && npm test"],
                "idempotencyKey": "test-run-42",
            }
        }
    )

    timeout_seconds: Annotated[
        int | None,
        Field(
            ge=1, le=START_MAX_TIMEOUT_SECONDS, description="Deadline; without it the sandbox's lifetime is the bound."
        ),
    ] = None
    idempotency_key: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=IDEMPOTENCY_KEY_MAX_LENGTH,
            pattern=r"^[^\x00]*$",
            description="Starting again with the same key answers with the same execution.",
        ),
    ] = None


class KillBody(Body):
    """A signal to send."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "accountId": "ACCOUNT_ID",
                "sandboxId": "SANDBOX_ID",
                "executionId": "EXECUTION_ID",
                "signal": "SIGTERM",
            }
        }
    )

    account_id: AccountId
    sandbox_id: SandboxId
    execution_id: ExecutionId
    signal: Annotated[
        Literal["SIGTERM", "SIGINT", "SIGKILL"] | None, Field(description="Reaches children too; SIGTERM unless sent.")
    ] = None


class SessionBody(Body):
    """A gateway session to open."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"accountId": "ACCOUNT_ID", "sandboxId": "SANDBOX_ID", "scopes": ["exec", "pty", "status"]}
        }
    )

    account_id: AccountId
    sandbox_id: SandboxId
    scopes: Annotated[
        list[Annotated[GatewayScope, _LOOSE]],
        Field(min_length=1, max_length=20, description="What the token of the session may do."),
    ]


class SaveTemplateBody(Body):
    """A template to create, or with templateId to update."""

    model_config = ConfigDict(json_schema_extra={"example": {"accountId": "ACCOUNT_ID", "name": "python-repl"}})

    account_id: AccountId
    template_id: Annotated[Id | None, Field(description="The template to update; a new one is made without it.")] = None
    app_id: Annotated[Id | None, Field(description="The app of a new template.")] = None
    name: Annotated[ShortName, Field(description="For people; the slug is derived from it.")]
    description: Annotated[LongText | None, Field(description="For people.")] = None
    enabled: Annotated[bool | None, Field(description="Whether sandboxes may be requested; true for a new one.")] = None
    deprecated: Annotated[bool | None, Field(description="Takes the template out of use, or back into it.")] = None


class WarmPoolBody(Body):
    """How many booted sandboxes wait."""

    desired: Annotated[int, Field(ge=0, le=1_000)]
    min: Annotated[int, Field(ge=0, le=1_000)]
    max: Annotated[int, Field(ge=0, le=1_000)]


class NetworkControlBody(Body):
    """Restricts egress; each list is a trigger of its own."""

    enabled: Annotated[bool, Field(description="Whether addresses are restricted to addressAllowlist.")]
    address_allowlist: Annotated[
        list[Annotated[str, Field(max_length=100, pattern=r"^[^\x00]*$")]] | None, Field(max_length=1_000)
    ] = None
    domain_allowlist: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=r"^[^\x00]*$")]] | None, Field(max_length=1_000)
    ] = None


class CreateRevisionBody(Body):
    """A runtime configuration to append to a template."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "accountId": "ACCOUNT_ID",
                "templateId": "TEMPLATE_ID",
                "imageDigest": f"docker.io/library/debian@sha256:{'0' * 64}",
                "imageRef": "debian:bookworm-slim",
                "command": ["sleep", "infinity"],
                "zClouds": 1,
            }
        }
    )

    account_id: AccountId
    template_id: TemplateId
    image_digest: Annotated[Label, Field(description="repo/image@sha256: and 64 hexadecimal characters.")]
    image_ref: Annotated[Label | None, Field(description="A name for people; it does not decide what runs.")] = None
    command: Annotated[
        list[Argument] | None,
        Field(min_length=1, max_length=1_000, description="Entrypoint argv; the image's unless sent."),
    ] = None
    working_dir: Annotated[AbsolutePath | None, Field(description="Default directory of commands.")] = None
    ports: Annotated[
        list[Annotated[int, Field(ge=1, le=65_535)]] | None, Field(max_length=100, description="Declared ports.")
    ] = None
    z_clouds: Annotated[int | None, Field(ge=1, le=MAX_ZCLOUDS, description="Size; 1 unless sent.")] = None
    ephemeral_disk_mb: Annotated[Count | None, Field(description="Temporary disk.")] = None
    pid_limit: Annotated[int | None, Field(ge=1, le=4_194_304, description="Processes and threads.")] = None
    persistence_mode: Annotated[Mode | None, Field(description="EPHEMERAL unless sent.")] = None
    volume_size_mb: Annotated[Count | None, Field(description="Size of a volume made for a sandbox.")] = None
    mount_path: Annotated[AbsolutePath | None, Field(description="Where the volume's directory is mounted.")] = None
    snapshot_exclude: Annotated[
        list[Annotated[str, Field(max_length=1_000, pattern=r"^[^\x00]*$")]] | None,
        Field(max_length=1_000, description="Gitignore-like patterns left out of snapshots."),
    ] = None
    snapshot_max_mb: Annotated[Count | None, Field(description="Largest uncompressed snapshot.")] = None
    idle_timeout_seconds: Annotated[Seconds | None, Field(description="Idle time that ends a sandbox.")] = None
    hard_lifetime_seconds: Annotated[Seconds | None, Field(description="Life time that ends a sandbox.")] = None
    suspended_retention_seconds: Annotated[Seconds | None, Field(description="How long a paused one is kept.")] = None
    warm_pool: Annotated[WarmPoolBody | None, Field(description="Sandboxes kept booted; not with volume modes.")] = None
    network_control: Annotated[NetworkControlBody | None, Field(description="Egress; unrestricted unless sent.")] = None


class ListSandboxesQuery(Query):
    """Which sandboxes to list."""

    account_id: AccountId
    app_id: Annotated[Id | None, Field(description="Those of one app.")] = None
    status: Annotated[
        str | None,
        Field(
            max_length=1_000,
            description="Those in one of these statuses, comma-separated; unknown ones are ignored.",
            examples=["READY,BUSY"],
        ),
    ] = None
    limit: Annotated[QueryInteger, Field(ge=1, le=100, description="Sandboxes on a page.")] = 50
    page: Annotated[QueryInteger, Field(ge=1, le=MAX_INTEGER, description="Which page, from 1.")] = 1


class GetSandboxQuery(Query):
    """Which sandbox to get, and how long to wait for it."""

    account_id: AccountId
    sandbox_id: SandboxId
    wait_seconds: Annotated[WaitSeconds, Field(description="How long to wait while it is being provisioned.")] = 0


class ListTemplatesQuery(Query):
    """Which templates to list."""

    account_id: AccountId
    app_id: Annotated[Id | None, Field(description="Those of one app.")] = None
    include_deprecated: Annotated[QueryBoolean, Field(description="Whether to list deprecated ones too.")] = False


class GetTemplateQuery(Query):
    """Which template to get."""

    account_id: AccountId
    template_id: TemplateId


class GetCommandQuery(Query):
    """Which command to read, from where, and how long to wait for output."""

    account_id: AccountId
    sandbox_id: SandboxId
    execution_id: ExecutionId
    from_seq: Annotated[
        QueryInteger,
        Field(alias="from", ge=0, le=MAX_SEQUENCE, description="The first event wanted; nextSeq of the last answer."),
    ] = 0
    wait_seconds: Annotated[WaitSeconds, Field(description="How long to wait for new output.")] = 0
