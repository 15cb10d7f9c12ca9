"""Personal AI subscriptions: kept for a user, used by that user alone, and never seen again but by the command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from tests.api.test_webhook_config import dump_lacks
from tests.plane import PREFIX, Api, Plane, decoded, expect, refused

from atoll.domain.ai_subscription import MAX_PER_USER, MAX_VALUE_BYTES
from atoll.domain.identity import Role, Scope, TokenKind

VALUE = "sk-ant-oat01-value-that-nobody-sees"
PATH = PREFIX + "/ai-subscription"


async def create(api: Api, **body: Any) -> httpx.Response:
    return await api.send("POST", PATH, json={"name": "Claude Max", "envVarName": "AI_TOKEN", "value": VALUE, **body})


async def made(api: Api, **body: Any) -> str:
    return str(expect(await create(api, **body), 201)["aiSubscription"]["aiSubscriptionId"])


async def listed(api: Api) -> list[dict[str, Any]]:
    answer = await api.send("GET", PREFIX + "/ai-subscriptions")
    assert VALUE not in answer.text
    found: list[dict[str, Any]] = expect(answer, 200)["aiSubscriptions"]
    return found


async def change(api: Api, subscription_id: str, **body: Any) -> httpx.Response:
    return await api.send("PATCH", PATH, json={"aiSubscriptionId": subscription_id, **body})


async def delete(api: Api, subscription_id: str) -> httpx.Response:
    return await api.send("DELETE", PATH, params={"aiSubscriptionId": subscription_id})


async def token_in(api: Api, sandbox_id: str, subscription_id: str | None, variable: str = "AI_TOKEN") -> str:
    """What a command finds in its environment."""
    body = {} if subscription_id is None else {"aiSubscriptionId": subscription_id}
    result = await api.execute(sandbox_id, "sh", "-c", f'printf %s "${variable}"', **body)
    return decoded(result.get("stdout")).decode()


@pytest.mark.both_databases
@pytest.mark.spec("SA-324", "SA-343", "SA-344", "SA-345", "SA-346")
async def test_a_subscription_is_made_listed_changed_and_deleted_without_an_account(plane: Plane, api: Api) -> None:
    answer = await create(api)
    assert VALUE not in answer.text
    subscription = expect(answer, 201)["aiSubscription"]
    assert set(subscription) == {"aiSubscriptionId", "name", "envVarName", "createdAt", "updatedAt"}
    assert await listed(api) == [subscription]
    subscription_id = subscription["aiSubscriptionId"]
    renamed = expect(await change(api, subscription_id, name="Claude Pro"), 200)["aiSubscription"]
    assert (renamed["name"], renamed["envVarName"]) == ("Claude Pro", "AI_TOKEN")
    moved = expect(await change(api, subscription_id, envVarName="OTHER"), 200)["aiSubscription"]
    assert (moved["name"], moved["envVarName"]) == ("Claude Pro", "OTHER")
    assert expect(await delete(api, subscription_id), 200)["aiSubscriptionId"] == subscription_id
    assert await listed(api) == []
    refused(await delete(api, subscription_id), 404)
    refused(await change(api, subscription_id, name="x"), 404)


@pytest.mark.spec("SA-324")
async def test_an_account_in_the_body_is_refused(api: Api) -> None:
    refused(await create(api, accountId=api.ids.account), 400, "accountId")


@pytest.mark.spec("SA-343", "SA-344", "SA-345", "SA-346", "SA-004")
async def test_each_call_needs_its_scope_and_no_role(plane: Plane, api: Api) -> None:
    every = {Scope.READ, Scope.CONFIG, Scope.DANGEROUS}
    subscription_id = await made(api)
    calls: list[tuple[Scope, Callable[[Api], Awaitable[httpx.Response]], int]] = [
        (Scope.READ, lambda caller: caller.send("GET", PREFIX + "/ai-subscriptions"), 200),
        (Scope.CONFIG, create, 201),
        (Scope.CONFIG, lambda caller: change(caller, subscription_id, name="x"), 200),
        (Scope.DANGEROUS, lambda caller: delete(caller, subscription_id), 200),
    ]
    for scope, call, status in calls:
        lacking = await plane.caller(scopes=every - {scope}, role=Role.MEMBER)
        body = refused(await call(lacking), 403, scope)
        assert body["errorCode"] == "INSUFFICIENT_SCOPE"
        expect(await call(await plane.caller(scopes=[scope], role=Role.MEMBER)), status)
    refused(await plane.anonymous().send("GET", PREFIX + "/ai-subscriptions"), 401)


async def test_no_entitlement_and_no_membership_is_needed(plane: Plane, api: Api) -> None:
    await plane.sql("UPDATE accounts SET entitled = :no", no=False)
    assert len(await listed(api)) == 0
    await made(api)


@pytest.mark.both_databases
@pytest.mark.spec("SA-328", "SA-329", "SA-330", "SA-325")
async def test_a_command_finds_the_value_in_its_environment_and_the_next_one_does_not(plane: Plane, api: Api) -> None:
    subscription_id = await made(api)
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    assert await token_in(api, sandbox_id, subscription_id) == VALUE
    assert await token_in(api, sandbox_id, None) == ""
    started = await api.start(
        sandbox_id, "sh", "-c", 'printf %s "$AI_TOKEN" | wc -c; printf %s "$OTHER"',
        aiSubscriptionId=subscription_id, envVars={"OTHER": "too"},
    )  # fmt: skip
    _, events = await api.finished(sandbox_id, started["executionId"])
    output = b"".join(decoded(event["stdout"]) for event in events if "stdout" in event)
    assert output.decode().split() == [str(len(VALUE)), "too"]
    oauth = await plane.caller(kind=TokenKind.OAUTH)
    assert await token_in(oauth, sandbox_id, subscription_id) == VALUE


@pytest.mark.spec("SA-330", "SA-345")
async def test_a_rotated_value_and_a_moved_variable_are_used_from_then_on(api: Api) -> None:
    subscription_id = await made(api)
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    expect(await change(api, subscription_id, value="rotated"), 200)
    assert await token_in(api, sandbox_id, subscription_id) == "rotated"
    expect(await change(api, subscription_id, envVarName="MOVED"), 200)
    assert await token_in(api, sandbox_id, subscription_id, "MOVED") == "rotated"
    assert await token_in(api, sandbox_id, subscription_id) == ""
    expect(await delete(api, subscription_id), 200)
    answer = await api.post(
        "/sandbox/execute", sandboxId=sandbox_id, command=["true"], aiSubscriptionId=subscription_id
    )
    refused(answer, 404)


async def test_the_longest_value_goes_with_the_longest_command(api: Api) -> None:
    subscription_id = await made(api, value="v" * MAX_VALUE_BYTES)
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    padding = ["x" * 100_000, "x" * 100_000, "x" * 39_000]
    command = ["sh", "-c", 'printf %s "$AI_TOKEN" | wc -c', *padding]
    result = await api.execute(sandbox_id, *command, aiSubscriptionId=subscription_id)
    assert int(decoded(result["stdout"])) == MAX_VALUE_BYTES


@pytest.mark.both_databases
@pytest.mark.spec("SA-326", "SA-341")
async def test_nobody_but_the_owner_sees_changes_or_uses_it(plane: Plane, api: Api) -> None:
    subscription_id = await made(api)
    for other in (await plane.caller(user="other-admin"), await plane.add_account("elsewhere")):
        assert await listed(other) == []
        refused(await change(other, subscription_id, value="stolen"), 404)
        refused(await delete(other, subscription_id), 404)
        theirs = (await other.ready_sandbox(private=True))["sandboxId"]
        for path in ("/sandbox/execute", "/sandbox/command/start"):
            body = {"sandboxId": theirs, "command": ["env"], "aiSubscriptionId": subscription_id}
            answer = await other.post(path, **body)
            refused(answer, 404, "AI subscription")
            assert VALUE not in answer.text
    own = (await api.ready_sandbox(private=True))["sandboxId"]
    assert await token_in(api, own, subscription_id) == VALUE


@pytest.mark.both_databases
@pytest.mark.spec("SA-342")
async def test_it_is_refused_where_the_sandbox_is_not_private_to_the_caller_and_nothing_runs(
    plane: Plane, api: Api
) -> None:
    subscription_id = await made(api)
    shared = (await api.ready_sandbox())["sandboxId"]
    foreign = (await (await plane.caller(user="other")).ready_sandbox(private=True))["sandboxId"]
    for sandbox_id in (shared, foreign):
        for path in ("/sandbox/execute", "/sandbox/command/start"):
            body = {"sandboxId": sandbox_id, "command": ["touch", "/workspace/ran"]}
            refused(await api.post(path, **body, aiSubscriptionId=subscription_id), 403, "private")
    assert await plane.sql("SELECT id FROM commands") == []
    assert (await api.execute(shared, "test", "-e", "/workspace/ran"))["exitCode"] == 1


@pytest.mark.spec("SA-329", "SA-330")
async def test_a_start_is_the_same_only_with_the_same_subscription(api: Api) -> None:
    first, second = await made(api), await made(api, name="two")
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    started = await api.start(sandbox_id, "true", idempotencyKey="k", aiSubscriptionId=first)
    expect(await change(api, first, value="rotated"), 200)
    again = await api.start(sandbox_id, "true", idempotencyKey="k", aiSubscriptionId=first)
    assert again["executionId"] == started["executionId"]
    for other in ({}, {"aiSubscriptionId": second}):
        body = {"sandboxId": sandbox_id, "command": ["true"], "idempotencyKey": "k"}
        answer = await api.post("/sandbox/command/start", **body, **other)
        assert refused(answer, 409)["errorCode"] == "IDEMPOTENCY_CONFLICT"


@pytest.mark.both_databases
@pytest.mark.spec("SA-327", "SA-330")
async def test_the_value_is_in_no_answer_no_row_and_no_log(
    plane: Plane, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    subscription_id = await made(api)
    expect(await change(api, subscription_id, name="renamed"), 200)
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    started = await api.start(sandbox_id, "sh", "-c", "exit 0", idempotencyKey="k", aiSubscriptionId=subscription_id)
    await api.finished(sandbox_id, started["executionId"])
    await api.execute(sandbox_id, "true", aiSubscriptionId=subscription_id)
    refused(await create(api, envVarName="1 BAD"), 400, "envVarName")
    await dump_lacks(plane, VALUE.encode())
    printed = "".join(capsys.readouterr())
    assert "request" in printed
    assert VALUE not in printed


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"envVarName": "1X"}, "envVarName"),
        ({"envVarName": "A=B"}, "envVarName"),
        ({"envVarName": "PATH"}, "envVarName"),
        ({"envVarName": "SANDBOX_AGENT_X"}, "envVarName"),
        ({"envVarName": ""}, "envVarName"),
        ({"name": " "}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"value": ""}, "value"),
        ({"value": "a\x00b"}, "value"),
        ({"value": "x" * (MAX_VALUE_BYTES + 1)}, "value"),
        ({"value": "ä" * MAX_VALUE_BYTES}, "value"),
        ({"value": 5}, "value"),
        ({"extra": 1}, "extra"),
    ],
)
async def test_a_field_out_of_bounds_is_named_and_nothing_is_kept_or_repeated(
    api: Api, body: dict[str, Any], field: str
) -> None:
    answer = await create(api, **body)
    refused(answer, 400, field)
    assert VALUE not in answer.text
    assert await listed(api) == []
    subscription_id = await made(api)
    refused(await change(api, subscription_id, **body), 400, field)


async def test_a_user_keeps_a_hundred_at_most(plane: Plane, api: Api) -> None:
    for _ in range(MAX_PER_USER):
        await made(api)
    refused(await create(api), 429, str(MAX_PER_USER))
    await made(await plane.caller(user="somebody-else"))
