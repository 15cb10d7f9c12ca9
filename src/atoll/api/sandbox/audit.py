"""The route of the audit trail, with its query and answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import AccountId, Answer, Id, Moment, Query, QueryInteger
from atoll.api.sandbox.render import json_response
from atoll.domain.audit import AuditEntry, AuditOutcome, AuditTarget, Channel
from atoll.domain.identity import Scope
from atoll.domain.times import rfc3339
from atoll.ops import audit as ops

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Audit"])


class AuditQuery(Query):
    """Whose trail, and which of its entries."""

    account_id: AccountId
    sandbox_id: Annotated[Id | None, Field(description="What was done to one sandbox.")] = None
    user_id: Annotated[Id | None, Field(description="What one user did.")] = None
    action: Annotated[
        str | None,
        Field(max_length=64, pattern=r"^[a-z-]+$", description="One action: the name of an operation, as in MCP."),
    ] = None
    since: Annotated[AwareDatetime | None, Field(description="From this time on.")] = None
    until: Annotated[AwareDatetime | None, Field(description="Before this time.")] = None
    limit: Annotated[QueryInteger, Field(ge=1, le=100, description="Entries per page.")] = 50
    cursor: Annotated[
        str | None, Field(pattern=r"^[0-9]{1,18}$", description="`nextCursor` of the page before this one.")
    ] = None


class TargetAnswer(Answer):
    """What it was done to."""

    kind: AuditTarget
    id: Annotated[str, Field(description="Its id; of a volume its name.")]


class ActorAnswer(Answer):
    """Who did it, and from where."""

    channel: Channel
    user_id: str | None = None
    token_id: Annotated[str | None, Field(description="Which of the user's tokens.")] = None
    address: Annotated[str | None, Field(description="The address of the client.")] = None
    request_id: Annotated[str | None, Field(description="`X-Request-Id` of the call.")] = None


class EntryAnswer(Answer):
    """One entry. Command lines, environments and output are in none."""

    entry_id: str
    occurred_at: Moment
    action: str
    outcome: AuditOutcome
    actor: ActorAnswer
    target: TargetAnswer | None = None
    execution_id: Annotated[str | None, Field(description="The command, where it was about one.")] = None
    exit_code: Annotated[int | None, Field(description="How the command ended.")] = None
    reason: Annotated[str | None, Field(description="Why it ended, where nobody's call or exit ended it.")] = None
    status: Annotated[int | None, Field(description="The HTTP status of a refusal or failure.")] = None
    error_code: str | None = None


class AuditAnswer(Answer):
    """A page of the trail, newest first."""

    success: Success
    account_id: str
    entries: list[EntryAnswer]
    next_cursor: Annotated[str | None, Field(description="Where the next page goes on; absent on the last.")] = None


@router.get(
    "/audit",
    operation_id="list-audit-entries",
    openapi_extra=needs(Scope.READ),
    summary="Read the audit trail",
    response_model=AuditAnswer,
    responses=errors(404),
)
async def list_audit_entries(call: CurrentCall, query: Annotated[AuditQuery, QueryParameters()]) -> Response:
    """Who did what to which sandbox, template, volume or token, when, from where and with what outcome; newest first.

    Needs the scope `quave:read`. Commands are there with how they ended, never with what they were or said.
    """
    wanted = ops.AuditFilter(
        sandbox_id=query.sandbox_id,
        user_id=query.user_id,
        action=query.action,
        since=query.since,
        until=query.until,
    )
    before = None if query.cursor is None else int(query.cursor)
    found, following = await ops.list_entries(
        call.services, call.principal, query.account_id, wanted, before=before, limit=query.limit
    )
    cursor = {} if following is None else {"nextCursor": str(following)}
    return json_response({"accountId": query.account_id, "entries": [_entry(entry) for entry in found], **cursor})


def _entry(it: AuditEntry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "entryId": str(it.id),
        "occurredAt": rfc3339(it.occurred_at),
        "action": it.action,
        "outcome": it.outcome,
        "actor": _present(
            {
                "channel": it.channel,
                "userId": it.user_id,
                "tokenId": it.token_id,
                "address": it.address,
                "requestId": it.request_id,
            }
        ),
    }
    if it.target_kind is not None:
        value["target"] = {"kind": it.target_kind, "id": it.target_id}
    return value | _present(
        {
            "executionId": it.execution_id,
            "exitCode": it.exit_code,
            "reason": it.reason,
            "status": it.status,
            "errorCode": it.error_code,
        }
    )


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
