"""The audit trail: what an entry says, and what it never says (a command line, an environment, output, a secret).

Entries are written by `atoll.store.audit`, in the transaction of the deed where the deed is a write, and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class AuditAction(StrEnum):
    """What was done. Those of a caller are named after the operation."""

    CREATE_SANDBOX = "create-sandbox"
    """A sandbox was created, or connected to."""
    TERMINATE_SANDBOX = "terminate-sandbox"
    """A sandbox was ended, by a caller or by its time."""
    PAUSE_SANDBOX = "pause-sandbox"
    """A pause was begun."""
    RESUME_SANDBOX = "resume-sandbox"
    """A resume was begun."""
    EXECUTE_COMMAND = "execute-sandbox-command"
    """A command was admitted that is run to its end within the request."""
    START_COMMAND = "start-sandbox-command"
    """A command was admitted that goes on after the answer."""
    KILL_COMMAND = "kill-sandbox-command"
    """A signal was sent."""
    END_COMMAND = "end-sandbox-command"
    """A command ended; nobody's call, so it has the exit code instead of an address."""
    OPEN_SESSION = "open-sandbox-session"
    """A gateway session was opened."""
    SAVE_TEMPLATE = "save-sandbox-template"
    """A template was made or changed."""
    CREATE_REVISION = "create-sandbox-template-revision"
    """A revision was appended."""
    CREATE_VOLUME = "create-shared-volume"
    """A volume was made."""
    REMOVE_VOLUME = "delete-shared-volume"
    """The purge delay of a volume began."""
    RESTORE_VOLUME = "restore-shared-volume"
    """A removal was taken back."""
    CONNECT_STORAGE = "create-object-storage"
    """A bucket was connected."""
    CREATE_SUBSCRIPTION = "create-ai-subscription"
    """A credential was stored."""
    UPDATE_SUBSCRIPTION = "update-ai-subscription"
    """A credential was renamed or rotated."""
    DELETE_SUBSCRIPTION = "delete-ai-subscription"
    """A credential was deleted."""
    CREATE_TOKEN = "create-token"  # noqa: S105 - a deed, not a secret
    """The operator issued a token."""
    REVOKE_TOKEN = "revoke-token"  # noqa: S105 - a deed, not a secret
    """The operator took a token back."""
    CHANGE_ACCOUNT = "change-account"
    """The operator changed an account's ceiling or entitlement."""
    BOOTSTRAP = "bootstrap"
    """The operator made an account, or issued another token of its admin."""


class AuditOutcome(StrEnum):
    """How it went."""

    ACCEPTED = "accepted"
    """It was done, or begun; a `failed` entry of the same request tells when it came to nothing."""
    REFUSED = "refused"
    """The caller may not, or the present state does not allow it; nothing changed."""
    FAILED = "failed"
    """The sandbox or its machine failed."""
    ENDED = "ended"
    """A command ended; `exitCode` and `reason` say how."""


class AuditTarget(StrEnum):
    """The kind of thing that it was done to."""

    SANDBOX = "sandbox"
    """By its id."""
    TEMPLATE = "template"
    """By its id."""
    VOLUME = "volume"
    """By its name."""
    STORAGE_SERVER = "storage-server"
    """By its id."""
    AI_SUBSCRIPTION = "ai-subscription"
    """By its id."""
    TOKEN = "token"  # noqa: S105 - a kind of thing
    """By its id, never its text."""


class Channel(StrEnum):
    """The way that a call came."""

    REST = "rest"
    """The Sandbox API."""
    MCP = "mcp"
    """A tool of the MCP server."""
    GATEWAY = "gateway"
    """A gateway session."""
    OPERATOR = "operator"
    """The command line on the server."""
    SYSTEM = "system"
    """The control plane itself: a time limit."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a call came from."""

    channel: Channel = Channel.REST
    address: str | None = None
    """The client's address; behind a proxy that the server trusts, the one the proxy tells."""
    request_id: str | None = None


NOWHERE = Origin()
"""Of a caller that no edge has looked at."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the trail. `id` rises in the order of writing."""

    id: int
    account_id: str
    occurred_at: datetime
    action: str
    outcome: AuditOutcome
    status: int | None
    """The HTTP status of a refusal or failure."""
    error_code: str | None
    user_id: str | None
    token_id: str | None
    channel: Channel
    address: str | None
    request_id: str | None
    target_kind: AuditTarget | None
    target_id: str | None
    execution_id: str | None
    exit_code: int | None
    reason: str | None
