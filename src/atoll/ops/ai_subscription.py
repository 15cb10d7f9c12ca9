"""Personal AI subscriptions: kept for a user, used for single commands of that user in sandboxes private to them.

They belong to no account (SA-324), so no account, role or entitlement is looked at; the token's scope is. A value goes
in sealed and comes out in `prepare_command` alone, into the environment of the one command (SA-327, SA-330).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atoll.domain.ai_subscription import (
    MAX_PER_USER,
    AiSubscription,
    check_value,
    check_variable,
    value_context,
)
from atoll.domain.audit import AuditAction, AuditTarget
from atoll.domain.errors import Forbidden, LimitReached, NotFound
from atoll.domain.identity import Principal, Scope, require_scope
from atoll.domain.sandbox import Sandbox
from atoll.ops.command_request import CommandRequest
from atoll.ops.services import Services
from atoll.store import ai_subscriptions, audit
from atoll.store.database import Transaction


async def list_ai_subscriptions(services: Services, principal: Principal) -> list[AiSubscription]:
    """The caller's own, oldest first, without values (SA-343)."""
    require_scope(principal, Scope.READ)
    return await services.database.read(lambda tx: ai_subscriptions.list_of_user(tx, principal.user_id))


async def create_ai_subscription(
    services: Services, principal: Principal, *, name: str, env_var_name: str, value: str
) -> AiSubscription:
    """Keep a credential for the caller (SA-344). Raises `Invalid`, or `LimitReached` beyond 100 of one user."""
    require_scope(principal, Scope.CONFIG)
    check_variable(env_var_name)
    check_value(value)
    subscription_id = services.new_id()
    sealed = services.sealer.seal(value.encode(), value_context(subscription_id))

    def add(tx: Transaction) -> AiSubscription:
        if ai_subscriptions.count_of_user(tx, principal.user_id) >= MAX_PER_USER:
            raise LimitReached(f"A user can keep {MAX_PER_USER} AI subscriptions; delete one first.")
        subscription = AiSubscription(
            id=subscription_id,
            user_id=principal.user_id,
            name=name,
            env_var_name=env_var_name,
            created_at=tx.now,
            updated_at=tx.now,
        )
        ai_subscriptions.add(tx, subscription, sealed)
        _record(tx, principal, AuditAction.CREATE_SUBSCRIPTION, subscription_id)
        return subscription

    return await services.database.write(add)


async def update_ai_subscription(
    services: Services,
    principal: Principal,
    subscription_id: str,
    *,
    name: str | None,
    env_var_name: str | None,
    value: str | None,
) -> AiSubscription:
    """Change what is not None (SA-345). Commands that run already keep what they were started with."""
    require_scope(principal, Scope.CONFIG)
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = name
    if env_var_name is not None:
        check_variable(env_var_name)
        changes["env_var_name"] = env_var_name
    if value is not None:
        check_value(value)
        changes["value"] = services.sealer.seal(value.encode(), value_context(subscription_id))

    def change(tx: Transaction) -> AiSubscription:
        if changes:
            ai_subscriptions.change(tx, principal.user_id, subscription_id, **changes)
        subscription = ai_subscriptions.get(tx, principal.user_id, subscription_id)
        if subscription is None:
            raise _unknown()
        _record(tx, principal, AuditAction.UPDATE_SUBSCRIPTION, subscription_id)
        return subscription

    return await services.database.write(change)


async def delete_ai_subscription(services: Services, principal: Principal, subscription_id: str) -> None:
    """Forget a credential (SA-346). Raises `NotFound` for one that is not the caller's."""
    require_scope(principal, Scope.DANGEROUS)

    def remove(tx: Transaction) -> None:
        if not ai_subscriptions.remove(tx, principal.user_id, subscription_id):
            raise _unknown()
        _record(tx, principal, AuditAction.DELETE_SUBSCRIPTION, subscription_id)

    await services.database.write(remove)


def prepare_command(
    tx: Transaction, services: Services, principal: Principal, sandbox: Sandbox, request: CommandRequest
) -> CommandRequest:
    """The command as it is run: with the credential it asks for in its environment, over a variable of the same name.

    Called as the command is admitted. Raises `NotFound` unless the credential is the caller's (SA-341), and `Forbidden`
    unless the sandbox is private to the caller (SA-342): in any other, somebody else could read it out of the command.
    """
    subscription_id = request.ai_subscription_id
    if subscription_id is None:
        return request
    subscription = ai_subscriptions.get_sealed(tx, principal.user_id, subscription_id)
    if subscription is None:
        raise _unknown()
    if not sandbox.private or sandbox.caller_key != principal.caller_key:
        raise Forbidden("AI subscriptions can be used only in a private sandbox that you created.")
    value = services.sealer.open(subscription.value, value_context(subscription.id)).decode()
    return replace(request, env={**request.env, subscription.env_var_name: value})


def _record(tx: Transaction, principal: Principal, action: AuditAction, subscription_id: str) -> None:
    """Subscriptions belong to no account; their deeds stand in the trail of the token's."""
    audit.record(tx, principal, action, principal.account_id, target=(AuditTarget.AI_SUBSCRIPTION, subscription_id))


def _unknown() -> NotFound:
    return NotFound("You have no such AI subscription.")
