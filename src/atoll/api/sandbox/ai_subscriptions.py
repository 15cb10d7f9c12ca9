"""Routes of personal AI subscriptions, with their bodies and answers. They are the caller's: none names an account."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from pydantic import ConfigDict, Field
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import Answer, Body, Id, Moment, Query, ShortName
from atoll.api.sandbox.render import json_response
from atoll.domain.ai_subscription import MAX_VALUE_BYTES, MAX_VARIABLE_LENGTH, AiSubscription
from atoll.domain.identity import Scope
from atoll.domain.times import rfc3339
from atoll.ops import ai_subscription as ops

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["AI subscriptions"])

SubscriptionId = Annotated[Id, Field(description="The subscription.", examples=["AI_SUBSCRIPTION_ID"])]
Variable = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_VARIABLE_LENGTH,
        description="The variable that commands find the value in.",
        examples=["CLAUDE_CODE_OAUTH_TOKEN"],
    ),
]
Value = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_VALUE_BYTES,
        description="The credential. Kept encrypted and never returned.",
        json_schema_extra={"writeOnly": True},
    ),
]


class CreateAiSubscriptionBody(Body):
    """A credential to keep."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "Claude Max",
                "envVarName": "CLAUDE_CODE_OAUTH_TOKEN",
                "value": "TOKEN_FROM_CLAUDE_SETUP_TOKEN",
            }
        }
    )

    name: Annotated[ShortName, Field(description="For people.")]
    env_var_name: Variable
    value: Value


class UpdateAiSubscriptionBody(Body):
    """What to change of a kept credential; what is not sent stays."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"aiSubscriptionId": "AI_SUBSCRIPTION_ID", "name": "Claude Pro"}}
    )

    ai_subscription_id: SubscriptionId
    name: Annotated[ShortName | None, Field(description="For people.")] = None
    env_var_name: Variable | None = None
    value: Value | None = None


class DeleteAiSubscriptionQuery(Query):
    """Which one to delete."""

    ai_subscription_id: SubscriptionId


class AiSubscriptionObject(Answer):
    """A kept credential, without its value."""

    ai_subscription_id: str
    name: str
    env_var_name: str
    created_at: Moment
    updated_at: Moment


class AiSubscriptionsAnswer(Answer):
    """The caller's own, oldest first."""

    success: Success
    ai_subscriptions: list[AiSubscriptionObject]


class AiSubscriptionAnswer(Answer):
    """A kept credential."""

    success: Success
    ai_subscription: AiSubscriptionObject


class AiSubscriptionDeletedAnswer(Answer):
    """What was deleted."""

    success: Success
    ai_subscription_id: str


@router.get(
    "/ai-subscriptions",
    operation_id="list-ai-subscriptions",
    openapi_extra=needs(Scope.READ),
    summary="List your AI subscriptions",
    response_model=AiSubscriptionsAnswer,
    responses=errors(),
)
async def list_ai_subscriptions(call: CurrentCall) -> Response:
    """The caller's own, without values. Needs the scope `quave:read`; `accountId` is not needed."""
    found = await ops.list_ai_subscriptions(call.services, call.principal)
    return json_response({"aiSubscriptions": [_render(subscription) for subscription in found]})


@router.post(
    "/ai-subscription",
    operation_id="create-ai-subscription",
    openapi_extra=needs(Scope.CONFIG),
    summary="Keep an AI subscription",
    status_code=201,
    response_model=AiSubscriptionAnswer,
    responses=errors(429),
)
async def create_ai_subscription(call: CurrentCall, body: CreateAiSubscriptionBody) -> Response:
    """Keep a credential of the caller's for commands in sandboxes private to the caller.

    Needs the scope `quave:write:config`. Nobody else can use it, whatever their role.
    """
    made = await ops.create_ai_subscription(
        call.services, call.principal, name=body.name, env_var_name=body.env_var_name, value=body.value
    )
    return json_response({"aiSubscription": _render(made)}, 201)


@router.patch(
    "/ai-subscription",
    operation_id="update-ai-subscription",
    openapi_extra=needs(Scope.CONFIG),
    summary="Rename or rotate an AI subscription",
    response_model=AiSubscriptionAnswer,
    responses=errors(404),
)
async def update_ai_subscription(call: CurrentCall, body: UpdateAiSubscriptionBody) -> Response:
    """Change name, variable or value; commands that run keep what they were started with.

    Needs the scope `quave:write:config`.
    """
    changed = await ops.update_ai_subscription(
        call.services,
        call.principal,
        body.ai_subscription_id,
        name=body.name,
        env_var_name=body.env_var_name,
        value=body.value,
    )
    return json_response({"aiSubscription": _render(changed)})


@router.delete(
    "/ai-subscription",
    operation_id="delete-ai-subscription",
    openapi_extra=needs(Scope.DANGEROUS),
    summary="Delete an AI subscription",
    response_model=AiSubscriptionDeletedAnswer,
    responses=errors(404),
)
async def delete_ai_subscription(
    call: CurrentCall, query: Annotated[DeleteAiSubscriptionQuery, QueryParameters()]
) -> Response:
    """Forget a credential. Needs the scope `quave:write:dangerous`."""
    await ops.delete_ai_subscription(call.services, call.principal, query.ai_subscription_id)
    return json_response({"aiSubscriptionId": query.ai_subscription_id})


def _render(it: AiSubscription) -> dict[str, Any]:
    return {
        "aiSubscriptionId": it.id,
        "name": it.name,
        "envVarName": it.env_var_name,
        "createdAt": rfc3339(it.created_at),
        "updatedAt": rfc3339(it.updated_at),
    }
