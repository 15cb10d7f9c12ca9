"""Execution completion webhooks: where they may go, what they say, and when they are tried again.

Pure. `atoll.store.webhooks` writes what has to be delivered, `atoll.workers.webhooks` delivers it.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from atoll.domain.command import EndReason
from atoll.domain.errors import Invalid
from atoll.domain.execution import Execution
from atoll.domain.public_host import is_address_literal, is_host_name, is_internal_name
from atoll.domain.times import rfc3339

EVENT_TYPE = "sandbox.execution.completed"
PORT = 443
MAX_URL_LENGTH = 2_048
MAX_SECRET_LENGTH = 200
"""Longer than any that is valid; what is longer is refused unread."""
SECRET_PREFIX = "whsec_"  # noqa: S105 - the start of every one
ATTEMPT_SECONDS = 10.0
"""An attempt's limit from the look-up of the host to the status of the answer (SA-315)."""
MAX_ATTEMPTS = 8
MAX_RETRY_SECONDS = 3_600.0

_URL_FIELD = "executionWebhook.url"
_SECRET_FIELD = "executionWebhook.secret"  # noqa: S105 - a field's name
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64
_JITTER = 0.25
# Parsers differ about white space, backslashes and what is not ASCII; none of it is let through to differ about.
_PRINTABLE = re.compile(r"[!-\[\]-~]+")
_URL = re.compile(r"https://(?P<authority>[^/?#]*)(?P<target>[/?][^#]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class WebhookTarget:
    """Where to send, and how to sign. Never shown: a URL can be a secret too."""

    url: str
    secret: str
    host: str
    """In lower case, without a final dot."""
    path: str
    """Path and query, as they came."""


class ExecutionStatus(StrEnum):
    """How a command ended, in one word."""

    SUCCEEDED = "SUCCEEDED"
    """With the exit code 0."""
    FAILED = "FAILED"
    """With another exit code."""
    TIMED_OUT = "TIMED_OUT"
    """Its deadline passed."""
    CANCELED = "CANCELED"
    """Somebody asked for its end."""
    UNKNOWN = "UNKNOWN"
    """Its sandbox ended first."""


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "PENDING"
    """To be attempted."""
    DELIVERED = "DELIVERED"
    """Confirmed by a 2xx answer."""
    STOPPED = "STOPPED"
    """Answered with something that another attempt would not change."""
    EXHAUSTED = "EXHAUSTED"
    """Attempted as often as is allowed."""


def parse_target(url: str, secret: str) -> WebhookTarget:
    """Check a URL and a secret (SA-289 … SA-294, SA-296). The host's addresses are checked where they are looked up.

    Raises `Invalid` naming the field; the message never repeats what was sent.
    """
    if len(url) > MAX_URL_LENGTH:
        raise Invalid(f"The URL is longer than {MAX_URL_LENGTH} characters.", field=_URL_FIELD)
    if not _PRINTABLE.fullmatch(url):
        raise Invalid(
            "The URL must be printable ASCII without spaces and backslashes; write the host in its xn-- form.",
            field=_URL_FIELD,
        )
    if "#" in url:
        raise Invalid("The URL must not have a #fragment.", field=_URL_FIELD)
    parts = _URL.fullmatch(url)
    if parts is None:
        raise Invalid("The URL must be absolute and begin with https://.", field=_URL_FIELD)
    host = _public_host(parts["authority"])
    target = parts["target"] or "/"
    _check_secret(secret)
    return WebhookTarget(url, secret, host, target if target.startswith("/") else f"/{target}")


def signing_key(secret: str) -> bytes:
    """The bytes that a secret stands for."""
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def webhook_id(execution_id: str) -> str:
    """The id of the one delivery of a command, the same at every attempt (SA-298, SA-320)."""
    return f"evt_{execution_id}"


def execution_status(exit_code: int | None, reason: EndReason | None) -> ExecutionStatus:
    """How a command ended, from what the sandbox reported of it (SA-302 … SA-306)."""
    match reason:
        case EndReason.DEADLINE_EXCEEDED:
            return ExecutionStatus.TIMED_OUT
        case EndReason.CANCELED:
            return ExecutionStatus.CANCELED
        case EndReason.AGENT_SHUTDOWN:
            return ExecutionStatus.UNKNOWN
        case _:
            return ExecutionStatus.SUCCEEDED if exit_code == 0 else ExecutionStatus.FAILED


def completed_event(
    execution: Execution, *, account_id: str, app_id: str, observed: bool, now: datetime
) -> dict[str, Any]:
    """What is sent (SA-298 … SA-308). `observed`: the sandbox reported the end; otherwise it ended itself first."""
    status = execution_status(execution.exit_code, execution.reason) if observed else ExecutionStatus.UNKNOWN
    outcome: dict[str, Any] = {}
    if observed:
        outcome["exitCode"] = execution.exit_code
        outcome["reason"] = execution.reason
    return {
        "id": webhook_id(execution.id),
        "type": EVENT_TYPE,
        "timestamp": rfc3339(now),
        "data": {
            "accountId": account_id,
            "appId": app_id,
            "sandboxId": execution.sandbox_id,
            "executionId": execution.id,
            "executionType": execution.execution_type,
            "status": status,
            **{name: value for name, value in outcome.items() if value is not None},
            "startedAt": rfc3339(execution.started_at or execution.requested_at),
            "finishedAt": rfc3339(execution.exited_at or now),
            "stdoutBytes": execution.stdout_bytes,
            "stderrBytes": execution.stderr_bytes,
            "outputTruncated": execution.output_truncated,
        },
    }


def state_after_answer(status: int) -> DeliveryState:
    """What an answer's status makes of a delivery; PENDING means another attempt (SA-313, SA-314, SA-318, SA-319)."""
    if 200 <= status <= 299:
        return DeliveryState.DELIVERED
    return DeliveryState.PENDING if status == 429 or 500 <= status <= 599 else DeliveryState.STOPPED


def retry_delay(attempts: int, base_seconds: float, chance: float) -> float:
    """Seconds to wait after the failure of attempt number `attempts` (SA-316).

    Doubles from `base_seconds`, up to an hour. `chance`, from 0 to 1, spreads it by up to a quarter more: a receiver
    that comes back is not met by everyone at once.
    """
    return min(base_seconds * 2.0 ** (attempts - 1) * (1 + _JITTER * chance), MAX_RETRY_SECONDS)


def _public_host(authority: str) -> str:
    if "@" in authority:
        raise Invalid("The URL must not have credentials.", field=_URL_FIELD)
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, str(PORT)
    host = host.lower().removesuffix(".")
    if not host or is_address_literal(host):
        raise Invalid("The URL must name its host, not give an IP address.", field=_URL_FIELD)
    if port != str(PORT):
        raise Invalid(f"The URL must use the default port, {PORT}.", field=_URL_FIELD)
    if not is_host_name(host):
        raise Invalid("The host of the URL is not a DNS name.", field=_URL_FIELD)
    if is_internal_name(host):
        raise Invalid("The host of the URL is a name of internal networks.", field=_URL_FIELD)
    return host


def _check_secret(secret: str) -> None:
    try:
        key = signing_key(secret) if secret.startswith(SECRET_PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise Invalid(
            f"The secret must be {SECRET_PREFIX} followed by the base64 of {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} bytes.",
            field=_SECRET_FIELD,
        )
