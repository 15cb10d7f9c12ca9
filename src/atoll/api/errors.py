"""Errors at the HTTP edge: one table from the domain's classes and codes to statuses, and the one error shape.

Called by the application's exception handlers and by nothing else; nothing below this layer knows a status code.
The body never repeats what the caller sent, and never holds the text of an unexpected exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import orjson
from pydantic_core.core_schema import ErrorType
from starlette.responses import Response

from atoll.domain.errors import (
    AgentMissing,
    AtollError,
    Conflict,
    ErrorCode,
    Forbidden,
    Invalid,
    LimitReached,
    NotFound,
    SnapshotFailed,
    SnapshotTimedOut,
    StaleGeneration,
    Unauthenticated,
)

STATUS_OF_CODE: dict[ErrorCode, int] = {
    ErrorCode.SANDBOX_SUSPENDED: 409,
    ErrorCode.SANDBOX_NOT_READY: 409,
    ErrorCode.AGENT_UNREACHABLE: 503,
    ErrorCode.SANDBOX_EXPIRED: 409,
    ErrorCode.SANDBOX_NOT_FOUND: 404,
    ErrorCode.NAMESPACE_DENIED: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.TOKEN_EXPIRED: 401,
    ErrorCode.INSUFFICIENT_SCOPE: 403,
    ErrorCode.PATH_ESCAPE: 400,
    ErrorCode.EXECUTION_NOT_FOUND: 404,
    ErrorCode.EXECUTION_EXITED: 409,
    ErrorCode.TOO_MANY_EXECUTIONS: 429,
    ErrorCode.IDEMPOTENCY_CONFLICT: 409,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.UNKNOWN: 502,
}
"""The contract's row "status of an error code". A code decides before the class does."""

STATUS_OF_CLASS: dict[type[AtollError], int] = {
    Invalid: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    StaleGeneration: 409,
    LimitReached: 429,
    SnapshotFailed: 502,
    SnapshotTimedOut: 504,
}

DEFAULT_RETRY_AFTER_SECONDS = 2
"""The delay told with a retryable code when whoever raised it named none."""
MAX_NAMED_FIELDS = 5
_LONGEST_FIELD_NAME = 100
_NO_OBJECT = frozenset({"missing", "model_type", "model_attributes_type", "dict_type"})
_PYDANTIC_KINDS = frozenset(get_args(ErrorType))
_LIMIT_NAMES = ("ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of")
_KIND_SENTENCES = {
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "datetime_from_date_parsing": "must be an RFC 3339 time, such as 2026-08-07T12:00:00Z",
    "datetime_parsing": "must be an RFC 3339 time, such as 2026-08-07T12:00:00Z",
    "datetime_type": "must be an RFC 3339 time, such as 2026-08-07T12:00:00Z",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode text",
    "timezone_aware": "must name its time zone, such as Z",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "tuple_type": "must be a list",
}
"""What each refusal of pydantic means, in the words of the API."""
_PATTERN_SENTENCES = {
    r"^[^\x00]*$": "must not contain a NUL character",
    r"^[^\x00]*[^\x00\s][^\x00]*$": "must not be blank or contain a NUL character",
    r"^/[^\x00]*$": "must be an absolute path",
    r"^[^=\x00]+$": "must be a name without an equals sign or a NUL character",
    r"^0?[0-7]{3}$": "must be permission bits in octal, from 0000 to 0777",
    r"^[\x21-\x7e]*$": "must be ASCII without spaces",
    r"^[\x21-\x7e]+$": "must be ASCII without spaces",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A refused or failed request, ready to be written in the shape of either API family."""

    status: int
    message: str
    code: str | None = None
    reason: str | None = None
    retryable: bool | None = None
    retry_after_seconds: int | None = None


def failure_of(error: AtollError) -> Failure:
    """Translate a domain error. One that is in neither table is a fault of this program: 500."""
    status = _status_of(error)
    if status is None:
        return INTERNAL
    retry_after = error.retry_after_seconds
    retryable = error.code.retryable if error.code is not None else None
    if retryable and retry_after is None:
        retry_after = DEFAULT_RETRY_AFTER_SECONDS
    if retry_after is not None or isinstance(error, StaleGeneration | SnapshotFailed):
        retryable = True
    message = error.message
    if isinstance(error, Invalid) and error.field is not None and error.field not in message:
        message = f"{error.field}: {message}"
    return Failure(status, message, error.code, error.reason, retryable, retry_after)


def invalid_fields(errors: Sequence[Mapping[str, Any]]) -> Failure:
    """Name the fields that pydantic refused, in camelCase and dotted, without a word of their values (SA-440)."""
    sentences = list(dict.fromkeys(_sentence(error) for error in errors))
    shown = sentences[:MAX_NAMED_FIELDS]
    if len(sentences) > len(shown):
        shown.append(f"and {len(sentences) - len(shown)} more")
    return Failure(400, "; ".join(shown) + ".")


def render(failure: Failure, headers: Mapping[str, str] | None = None) -> Response:
    """Write a failure in the Sandbox API's shape (SA-438), with Retry-After where a delay is told (SA-439)."""
    body: dict[str, Any] = {"success": False, "error": failure.message}
    if failure.code is not None:
        body["errorCode"] = str(failure.code)
    data: dict[str, Any] = {}
    if failure.retryable is not None:
        data["retryable"] = failure.retryable
    if failure.retry_after_seconds is not None:
        data["retryAfterSeconds"] = failure.retry_after_seconds
    if failure.reason is not None:
        data["reason"] = failure.reason
    if data:
        body["data"] = data
    sent = dict(headers or {})
    if failure.retry_after_seconds is not None:
        sent["Retry-After"] = str(failure.retry_after_seconds)
    if failure.status == 401:
        sent["WWW-Authenticate"] = "Bearer"
    return Response(orjson.dumps(body), failure.status, sent, media_type="application/json")


INTERNAL = Failure(500, "Something went wrong on our side. Tell the operator the X-Request-Id of this answer.")
MAX_BODY_BYTES = 10 * 1024 * 1024
"""Of a JSON body."""
TOO_LARGE = Failure(413, f"The body is too large: it may have {MAX_BODY_BYTES // 1024**2} MiB.")
NO_SUCH_ROUTE = Failure(404, "There is no such operation.")


def _status_of(error: AtollError) -> int | None:
    if isinstance(error, AgentMissing):
        return 409
    if error.code is not None:
        return STATUS_OF_CODE[error.code]
    for kind in type(error).__mro__:
        if kind in STATUS_OF_CLASS:
            return STATUS_OF_CLASS[kind]
    return None


def _sentence(error: Mapping[str, Any]) -> str:
    location = error["loc"]
    path = location[1:]
    kind = error["type"]
    if not path:
        # Checks over several fields name them in their own message.
        return (
            "The body must be a JSON object" if kind in _NO_OBJECT else str(error["msg"]).removeprefix("Value error, ")
        )
    field = ".".join(str(part) or '""' for part in path if part != "[key]")[:_LONGEST_FIELD_NAME]
    if kind == "missing":
        return f"{field} is required"
    if kind == "extra_forbidden":
        return f"{field} is not a field of this request"
    if kind == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        return f"{field} {_PATTERN_SENTENCES.get(pattern, f'must match {pattern}')}"
    if kind in _KIND_SENTENCES:
        return f"{field} {_KIND_SENTENCES[kind].format(**_limits(error))}"
    message = str(error["msg"])
    if kind == "value_error":
        return f"{field} {message.removeprefix('Value error, ')}"
    if message.startswith("Input should be "):
        return f"{field} must be {message.removeprefix('Input should be ')}"
    # A check of our own has words of its own; of any other only the field is told.
    return f"{field}: {message}" if kind not in _PYDANTIC_KINDS else f"{field} is malformed"


def _limits(error: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that a refusal names: never what was sent."""
    context = dict(error.get("ctx", {}))
    return {name: context[name] for name in _LIMIT_NAMES if name in context}
