"""Every error the domain can name, with its stable code and what a caller may do about it.

AtollError
 ├── Refused             the request cannot be honoured
 │    ├── Invalid        it is malformed or names a value out of range (a field)
 │    ├── Unauthenticated
 │    ├── Forbidden
 │    ├── NotFound
 │    ├── Conflict       the present state does not allow it
 │    └── LimitReached   a ceiling is in the way
 ├── RuntimeFailure      the sandbox, its agent or its machine did not do what it should
 │    └── AgentMissing   it was deployed without an agent that this version can speak with
 ├── SnapshotFailed      a pause was given up because the workspace could not be archived
 │    └── SnapshotTimedOut   … within its time
 └── StaleGeneration     a compare-and-swap lost; the caller reads again

Raised by domain, store, ops and drivers; translated once at each edge (`atoll.api.errors`).
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The stable product error codes (SA-385 … SA-401)."""

    SANDBOX_SUSPENDED = "SANDBOX_SUSPENDED"
    """The sandbox is paused and has to be resumed first."""
    SANDBOX_NOT_READY = "SANDBOX_NOT_READY"
    """The sandbox cannot accept work yet, or its machine could not start it for now."""
    AGENT_UNREACHABLE = "AGENT_UNREACHABLE"
    """The agent inside the sandbox does not answer for now."""
    SANDBOX_EXPIRED = "SANDBOX_EXPIRED"
    """The hard lifetime is over."""
    SANDBOX_NOT_FOUND = "SANDBOX_NOT_FOUND"
    """The runtime does not know the sandbox."""
    NAMESPACE_DENIED = "NAMESPACE_DENIED"
    """The runtime rejected the namespace."""
    UNAUTHENTICATED = "UNAUTHENTICATED"
    """The runtime did not accept the credential."""
    TOKEN_EXPIRED = "TOKEN_EXPIRED"  # noqa: S105 - a code, not a secret
    """The runtime credential is past its time."""
    INSUFFICIENT_SCOPE = "INSUFFICIENT_SCOPE"
    """The runtime credential lacks the scope."""
    PATH_ESCAPE = "PATH_ESCAPE"
    """A path outside the workspace."""
    EXECUTION_NOT_FOUND = "EXECUTION_NOT_FOUND"
    """The sandbox does not know the execution."""
    EXECUTION_EXITED = "EXECUTION_EXITED"
    """The command has ended and cannot be signalled."""
    TOO_MANY_EXECUTIONS = "TOO_MANY_EXECUTIONS"
    """256 commands run already."""
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    """The key was used with a different command."""
    INVALID_REQUEST = "INVALID_REQUEST"
    """The runtime rejected the request."""
    UNKNOWN = "UNKNOWN"
    """Unclassified."""

    @property
    def retryable(self) -> bool:
        """Whether waiting and trying again can succeed."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {
        ErrorCode.SANDBOX_SUSPENDED,
        ErrorCode.SANDBOX_NOT_READY,
        ErrorCode.AGENT_UNREACHABLE,
        ErrorCode.TOO_MANY_EXECUTIONS,
    }
)


class AtollError(Exception):
    """The root. `message` is a sentence for a person and names no secret, path of the host or raw runtime text."""

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        reason: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Refused(AtollError):  # noqa: N818 - reads as the domain says it
    """The request cannot be honoured."""


class Invalid(Refused):
    """A malformed request. `field` names the offending field, dotted for nested ones."""

    def __init__(self, message: str, *, field: str | None = None, code: ErrorCode | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class Unauthenticated(Refused):
    """No token, or one that is not known."""


class Forbidden(Refused):
    """A known caller that may not do this."""


class NotFound(Refused):
    """Not there, or not for this caller to know of."""


class Conflict(Refused):
    """The present state does not allow it."""


class LimitReached(Refused):
    """A ceiling on how much may exist at once."""


class RuntimeFailure(AtollError):  # noqa: N818 - as above
    """The sandbox, its agent or its machine failed. Always carries a code."""

    def __init__(
        self, message: str, *, code: ErrorCode, reason: str | None = None, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(message, code=code, reason=reason, retry_after_seconds=retry_after_seconds)
        self.code: ErrorCode = code


class SnapshotFailed(AtollError):  # noqa: N818 - as above
    """A pause was given up; the sandbox runs on, and the pause may be tried again (SA-163, SA-166)."""


class SnapshotTimedOut(SnapshotFailed):
    """The archive was not finished in time (SA-165)."""


class AgentMissing(RuntimeFailure):
    """The sandbox was deployed without the agent, or with one of another protocol (SA-215); commands are refused with
    409, the sandbox itself is left alone."""

    def __init__(self) -> None:
        super().__init__(
            "The sandbox was deployed without a runtime agent that this version speaks with; create a new one.",
            code=ErrorCode.UNKNOWN,
        )


class StaleGeneration(AtollError):  # noqa: N818 - as above
    """Another writer changed the row first."""
