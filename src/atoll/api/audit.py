"""Records refused and failed attempts in the audit trail. Called by `route.AuthenticatedRoute` with the error.

Reads are recorded when the caller may not (403); writes at every refusal but a malformed body, and at every failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.requests import Request

from atoll.api.errors import failure_of
from atoll.domain.audit import AuditTarget
from atoll.domain.errors import AtollError
from atoll.domain.identity import Principal
from atoll.ops.audit import Attempt, record_refusal
from atoll.ops.services import Services

_log = structlog.get_logger("atoll.api")
_NOT_RECORDED = frozenset({400, 401, 500})
# What a caller sent goes into the trail only where it can be an id or a name: never more of a request.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TARGETS = (
    ("sandboxId", AuditTarget.SANDBOX),
    ("templateId", AuditTarget.TEMPLATE),
    ("aiSubscriptionId", AuditTarget.AI_SUBSCRIPTION),
)
_NAMES_A_VOLUME = "shared-volume"


async def audit_refusal(
    services: Services, principal: Principal, request: Request, operation_id: str, error: AtollError
) -> None:
    """Record the attempt; a trail that cannot be written to is logged and does not change the refusal."""
    failure = failure_of(error)
    if failure.status in _NOT_RECORDED or (request.method == "GET" and failure.status != 403):
        return
    try:
        attempt = _attempt(request, operation_id)
        await record_refusal(services, principal, attempt, error, failure.status, failure.code)
    except Exception as trouble:
        _log.error("refusal not audited", request_id=request.state.request_id, error=type(trouble).__name__)


def _attempt(request: Request, action: str) -> Attempt:
    named: Mapping[str, Any] = request.query_params
    value = getattr(request, "value", None)
    if isinstance(value, dict):
        named = value
    target = next(((kind, name) for key, kind in _TARGETS if (name := _name(named.get(key))) is not None), None)
    if target is None and _NAMES_A_VOLUME in action and (volume := _name(named.get("name"))) is not None:
        target = (AuditTarget.VOLUME, volume)
    return Attempt(action, _name(named.get("accountId")), target, _name(named.get("executionId"), 36))


def _name(value: Any, longest: int = 100) -> str | None:
    return value if isinstance(value, str) and len(value) <= longest and _NAME.fullmatch(value) else None
