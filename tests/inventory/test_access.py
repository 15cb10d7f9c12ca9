"""Every operation refuses whoever may not call it. New ones are found by themselves."""

from __future__ import annotations

import httpx
import pytest
from tests.inventory.operations import Operation, operations, specified
from tests.plane import ALL_SCOPES, Api, Plane, refused

from atoll.domain.identity import Role, Scope, TokenKind


async def call(caller: Api, operation: Operation, account_id: str | None = None) -> httpx.Response:
    """A valid request, of things that do not exist."""
    account = account_id or caller.ids.account
    return await caller.send(
        operation.method, operation.path, params=operation.query(account), json=operation.body(account)
    )


@pytest.mark.spec("SA-434")
async def test_every_operation_answers_401_without_a_token_or_with_an_unknown_one(plane: Plane) -> None:
    for operation in operations(plane.app.openapi()):
        refused(await call(plane.anonymous(), operation), 401)
        refused(await call(plane.anonymous("atoll_unknown"), operation), 401)


@pytest.mark.spec("SA-004")
async def test_every_operation_needs_the_scope_that_its_rule_names(plane: Plane) -> None:
    powerless = await plane.caller(scopes=[])
    rules = specified()
    for operation in operations(plane.app.openapi()):
        refused(await call(powerless, operation), 403, "scope")
        scope = rules[operation.method, operation.path]
        if scope is None:
            continue
        all_others = await plane.caller(scopes=ALL_SCOPES - {scope})
        body = refused(await call(all_others, operation), 403, scope)
        assert body["errorCode"] == "INSUFFICIENT_SCOPE"
        this_alone = await plane.caller(scopes=[scope])
        assert (await call(this_alone, operation)).status_code != 403, operation


@pytest.mark.spec("SA-005", "SA-006")
async def test_no_operation_takes_a_token_of_another_kind_than_user_and_oauth(plane: Plane) -> None:
    for kind in set(TokenKind) - {TokenKind.USER, TokenKind.OAUTH}:
        caller = await plane.caller(kind=kind)
        for operation in operations(plane.app.openapi()):
            refused(await call(caller, operation), 403)


@pytest.mark.spec("SA-011", "SA-010")
async def test_every_operation_about_an_account_refuses_a_stranger(plane: Plane) -> None:
    stranger = await plane.add_account("stranger")
    for operation in operations(plane.app.openapi()):
        if not operation.names_account:
            assert "ai-subscription" in operation.path, operation
            continue
        refused(await call(stranger, operation, plane.api.ids.account), 403, "no access")
        refused(await call(stranger, operation, "unknown"), 403, "no access")


@pytest.mark.spec("SA-012", "SA-013", "SA-014", "SA-240", "SA-280")
async def test_a_plain_member_may_read_everything_and_write_nothing(plane: Plane) -> None:
    member = await plane.caller(user="member", role=Role.MEMBER)
    for operation in operations(plane.app.openapi()):
        if not operation.names_account:
            continue
        answer = await call(member, operation)
        if operation.is_write:
            refused(answer, 403, "admin or technical")
        else:
            assert answer.status_code in {200, 404}, operation


@pytest.mark.spec("SA-120")
async def test_no_operation_about_an_account_serves_one_without_the_entitlement(plane: Plane) -> None:
    await plane.sql("UPDATE accounts SET entitled = false")
    for operation in operations(plane.app.openapi()):
        if operation.names_account:
            refused(await call(plane.api, operation), 403, "entitlement")


async def test_every_scope_of_the_sandbox_api_is_needed_by_some_operation(plane: Plane) -> None:
    served = {(operation.method, operation.path) for operation in operations(plane.app.openapi())}
    needed = {scope for key, scope in specified().items() if key in served and scope is not None}
    assert needed == {Scope.READ, Scope.DEPLOY, Scope.CONFIG, Scope.DANGEROUS}
