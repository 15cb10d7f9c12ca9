"""The MCP server, by the official client over HTTP: every operation as a tool, with the checks of the REST API."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from tests.inventory.operations import operations
from tests.plane import Api, Plane, create_body, expect, refused
from tests.served import served

from atoll.domain.identity import Scope, TokenKind
from atoll.ops.identity import Restrict

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def connected(url: str, token: str | None, mode: str = "auto") -> AsyncIterator[Client]:
    """The official client, with a token, speaking the newest protocol or the one with a handshake."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


class Tools:
    """Calls tools as one caller, with the account filled in."""

    def __init__(self, client: Client, api: Api) -> None:
        self.client = client
        self.api = api

    async def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        return await self.client.call_tool(tool, {"accountId": self.api.ids.account, **arguments})

    async def done(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        result = await self.call(tool, **arguments)
        assert not result.is_error, result
        body: dict[str, Any] = result.structured_content
        return body

    async def refused(self, tool: str, /, *words: str, **arguments: Any) -> dict[str, Any]:
        result = await self.call(tool, **arguments)
        assert result.is_error, result
        body: dict[str, Any] = result.structured_content
        assert isinstance(result.content[0], TextContent)
        assert json.loads(result.content[0].text) == body
        assert body["success"] is False
        for word in words:
            assert word in body["error"], body
        return body

    async def ready_sandbox(self, **body: Any) -> str:
        created = await self.done("create-sandbox", **create_body(self.api.ids, **body))
        sandbox_id: str = created["sandbox"]["sandboxId"]
        got = await self.done("get-sandbox", sandboxId=sandbox_id, waitSeconds=25)
        assert got["sandbox"]["status"] == "READY"
        return sandbox_id


@asynccontextmanager
async def tools_of(plane: Plane, caller: Api, mode: str = "auto") -> AsyncIterator[Tools]:
    async with served(plane) as api, connected(str(api.client.base_url), caller.token, mode) as client:
        yield Tools(client, caller)


async def mcp_key(plane: Plane, **restrict: Any) -> Api:
    return await plane.caller(kind=TokenKind.MCP, restrict=Restrict(**restrict) if restrict else None)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.spec("SA-007", "SA-005")
async def test_an_mcp_key_creates_reads_and_uses_a_sandbox_by_tools_and_by_nothing_else(
    plane: Plane, mode: str
) -> None:
    key = await mcp_key(plane)
    async with tools_of(plane, key, mode) as tools:
        assert plane.api.ids.account in str(tools.client.instructions)
        sandbox_id = await tools.ready_sandbox()
        ran = await tools.call("execute-sandbox-command", sandboxId=sandbox_id, command=["echo", "hello"])
        assert b64decode(ran.structured_content["result"]["stdout"]) == b"hello\n"
        assert [text.text for text in ran.content if isinstance(text, TextContent)][1:] == ["stdout:\nhello\n"]
        started = await tools.done("start-sandbox-command", sandboxId=sandbox_id, command=["sh", "-c", "exit 3"])
        execution_id = started["execution"]["executionId"]
        read = {"sandboxId": sandbox_id, "executionId": execution_id, "waitSeconds": 20}
        command = (await tools.done("get-sandbox-command", **read))["command"]
        assert command["executionId"] == execution_id
        listed = await tools.done("list-sandboxes", limit=5)
        assert [sandbox["sandboxId"] for sandbox in listed["sandboxes"]] == [sandbox_id]
        await tools.done("terminate-sandbox", sandboxId=sandbox_id)
    refused(await key.get("/sandboxes"), 403, "mcp")
    trail = expect(await plane.api.get("/audit", sandboxId=sandbox_id), 200)["entries"]
    assert {entry["actor"]["channel"] for entry in trail} == {"mcp", "system"}
    assert {"127.0.0.1"} == {entry["actor"]["address"] for entry in trail if "address" in entry["actor"]}


@pytest.mark.spec("SA-347", "SA-348", "SA-349")
async def test_there_is_one_tool_for_every_operation_with_its_fields_and_descriptions(plane: Plane) -> None:
    async with tools_of(plane, plane.api) as tools:
        listed = {tool.name: tool for tool in (await tools.client.list_tools()).tools}
    document = plane.app.openapi()
    found = {operation.spec["operationId"]: operation for operation in operations(document)}
    assert set(listed) == set(found)
    for name, operation in found.items():
        tool = listed[name]
        body = operation.body_schema or {"properties": {}, "required": []}
        assert set(tool.input_schema["properties"]) == set(operation.parameters) | set(body["properties"]), name
        required = {key for key, parameter in operation.parameters.items() if parameter.get("required")}
        assert set(tool.input_schema.get("required", ())) == required | set(body.get("required", ())), name
        assert tool.description == operation.spec["description"]
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is not operation.is_write
        assert tool.input_schema["additionalProperties"] is False
        assert "#/components" not in json.dumps(tool.input_schema)
    assert {"list-ai-subscriptions", "create-ai-subscription", "update-ai-subscription"} <= set(listed)
    assert "delete-ai-subscription" in listed
    assert "private" in listed["create-sandbox"].input_schema["properties"]
    for name in ("execute-sandbox-command", "start-sandbox-command"):
        assert "aiSubscriptionId" in listed[name].input_schema["properties"]


@pytest.mark.spec("SA-347", "SA-348", "SA-349", "SA-325")
async def test_a_subscription_is_kept_and_used_in_a_private_sandbox_by_tools(plane: Plane) -> None:
    async with tools_of(plane, await mcp_key(plane)) as tools:
        client = tools.client
        made = await client.call_tool("create-ai-subscription", {"name": "a", "envVarName": "KEY", "value": "v4lue"})
        subscription_id = made.structured_content["aiSubscription"]["aiSubscriptionId"]
        await client.call_tool("update-ai-subscription", {"aiSubscriptionId": subscription_id, "name": "b"})
        listed = (await client.call_tool("list-ai-subscriptions", {})).structured_content["aiSubscriptions"]
        assert [subscription["name"] for subscription in listed] == ["b"]
        private = await tools.ready_sandbox(private=True)
        shell = ["sh", "-c", "printf %s $KEY"]
        use = {"sandboxId": private, "command": shell, "aiSubscriptionId": subscription_id}
        ran = await tools.done("execute-sandbox-command", **use)
        assert b64decode(ran["result"]["stdout"]) == b"v4lue"
        await tools.done("start-sandbox-command", **use)
        await client.call_tool("delete-ai-subscription", {"aiSubscriptionId": subscription_id})
        await tools.refused("execute-sandbox-command", "no such AI subscription", **use)


@pytest.mark.spec("SA-007", "SA-353")
async def test_a_gateway_session_opened_by_a_tool_is_good_at_the_address_that_the_client_knows(plane: Plane) -> None:
    async with tools_of(plane, await mcp_key(plane)) as tools:
        sandbox_id = await tools.ready_sandbox()
        session = await tools.done("open-sandbox-session", sandboxId=sandbox_id, scopes=["status", "exec"])
        headers = {"Authorization": f"Bearer {session['token']}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            assert (await http.get(f"{session['endpoint']}/status")).status_code == 200
            started = await http.post(f"{session['endpoint']}/processes", json={"command": ["true"]})
            assert started.status_code == 201, started.text
    trail = expect(await plane.api.get("/audit", sandboxId=sandbox_id, action="start-sandbox-command"), 200)["entries"]
    assert [(entry["actor"]["channel"], entry["actor"]["address"]) for entry in trail] == [("gateway", "127.0.0.1")]


async def test_errors_of_tools_are_the_error_object_of_the_rest_api(plane: Plane) -> None:
    async with tools_of(plane, plane.api) as tools:
        by_tool = await tools.refused("get-sandbox", sandboxId="unknown")
        assert by_tool == refused(await plane.api.get("/sandbox", sandboxId="unknown"), 404)
        await tools.refused("get-sandbox", "sandboxId is required")
        await tools.refused("get-sandbox", "colour is not a field", sandboxId="x", colour="blue")
        await tools.refused("execute-sandbox-command", "command", sandboxId="x", command="ls")
        await tools.refused("list-sandboxes", "limit", limit=101)
        await tools.refused("no-such-tool", "no such tool")
        sandbox_id = await tools.ready_sandbox()
        await tools.done("terminate-sandbox", sandboxId=sandbox_id)
        gone = await tools.refused("execute-sandbox-command", sandboxId=sandbox_id, command=["true"])
        assert gone["errorCode"] == "SANDBOX_NOT_FOUND"
    async with tools_of(plane, await plane.caller(scopes=[Scope.READ])) as tools:
        assert (await tools.refused("create-sandbox", "scope"))["errorCode"] == "INSUFFICIENT_SCOPE"


@pytest.mark.spec("SA-006", "SA-434")
async def test_the_door_is_closed_to_whoever_may_not_come_in(plane: Plane) -> None:
    async with served(plane) as api:
        http = api.client
        for token in (None, "atoll_unknown"):
            headers = ACCEPT | ({} if token is None else {"Authorization": f"Bearer {token}"})
            answer = await http.post("/mcp", json=PING, headers=headers)
            refused(answer, 401)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for kind in (TokenKind.ENVIRONMENT, TokenKind.INSTALLATION):
            other = await plane.caller(kind=kind)
            refused(await http.post("/mcp", json=PING, headers={"Authorization": f"Bearer {other.token}"}), 403)
        mine = {"Authorization": f"Bearer {api.token}"}
        assert (await http.get("/mcp", headers=mine)).headers["allow"] == "POST"
        pages = await http.post("/mcp", json=PING, headers=mine | ACCEPT | {"Origin": "https://evil.example"})
        refused(pages, 403, "sites")
        assert (await http.post("/mcp", json=PING, headers=mine | ACCEPT)).status_code == 200
        key = await mcp_key(plane)
        forged = {"Authorization": f"Bearer {key.token}", "atoll.channel": "mcp", "Atoll-Channel": "mcp"}
        params = {"accountId": api.ids.account}
        refused(await http.get("/api/public/v1/sandboxes", params=params, headers=forged), 403)


@pytest.mark.spec("SA-008", "SA-009")
async def test_a_restricted_key_works_inside_and_gets_403_outside_each_bound(plane: Plane) -> None:
    ids = plane.api.ids
    other_app = await plane.add_app("other")
    saved = expect(await plane.api.post("/sandbox-template/save", name="other"), 201)
    other_template = saved["template"]["templateId"]
    other_region = "dry"
    outside = {
        "app": {"appId": other_app},
        "template": {"templateId": other_template},
        "region": {"region": other_region},
    }
    elsewhere = expect(await plane.api.create(appId=other_app), 201)["sandbox"]["sandboxId"]
    bounds: dict[str, frozenset[str]] = {
        "apps": frozenset({ids.app}),
        "templates": frozenset({ids.template}),
        "regions": frozenset({"local"}),
    }
    async with tools_of(plane, await mcp_key(plane, **bounds)) as tools:
        assert ids.app in str(tools.client.instructions)
        sandbox_id = await tools.ready_sandbox()
        await tools.done("execute-sandbox-command", sandboxId=sandbox_id, command=["true"])
        for word, change in outside.items():
            await tools.refused("create-sandbox", f"other {word}s", **create_body(ids, **change))
        await tools.refused("create-sandbox", "another account", **create_body(ids, accountId="x"))
        listed = await tools.done("list-sandboxes")
        assert [sandbox["sandboxId"] for sandbox in listed["sandboxes"]] == [sandbox_id]
        assert listed["totalCount"] == 1
        for name in ("get-sandbox", "terminate-sandbox", "resume-sandbox"):
            await tools.refused(name, "other apps", sandboxId=elsewhere)
        await tools.refused("execute-sandbox-command", "other apps", sandboxId=elsewhere, command=["true"])
        await tools.refused("open-sandbox-session", "other apps", sandboxId=elsewhere, scopes=["exec"])
        await tools.refused("get-sandbox-template", "other templates", templateId=other_template)
        templates = await tools.done("list-sandbox-templates")
        assert [template["templateId"] for template in templates["templates"]] == [ids.template]
        await tools.refused("save-sandbox-template", "restricted", name="mine")
        await tools.refused("create-shared-volume", "other regions", region=other_region, name="v")


@pytest.mark.parametrize("bound", ["apps", "templates", "regions"])
@pytest.mark.spec("SA-009")
async def test_each_bound_on_its_own_is_enough_for_a_refusal(plane: Plane, bound: str) -> None:
    ids = plane.api.ids
    inside = {"apps": ids.app, "templates": ids.template, "regions": "local"}[bound]
    saved = expect(await plane.api.post("/sandbox-template/save", name="other"), 201)
    change = {
        "apps": {"appId": await plane.add_app("other")},
        "templates": {"templateId": saved["template"]["templateId"]},
        "regions": {"region": "dry"},
    }[bound]
    # The same holds of a user's token over REST.
    bound_user = await plane.caller(restrict=Restrict(**{bound: frozenset({inside})}))
    refused(await bound_user.create(**change), 403, f"other {bound}")
    expect(await bound_user.create(), 201)
    refused(await bound_user.get("/sandboxes", accountId="another"), 403, "another account")


@pytest.mark.spec("SA-008")
async def test_a_key_bound_to_its_account_alone_is_refused_in_another_of_its_user(plane: Plane) -> None:
    other = await plane.add_account("other")
    await plane.join_account(other.ids.account, plane.api.ids.user)
    async with tools_of(plane, await mcp_key(plane)) as tools:
        await tools.done("list-sandboxes", accountId=other.ids.account)
    bound = await plane.caller(kind=TokenKind.MCP, restrict=Restrict())
    async with tools_of(plane, bound) as tools:
        await tools.done("list-sandboxes")
        await tools.refused("list-sandboxes", "another account", accountId=other.ids.account)


ATOLL = str(Path(sys.executable).parent / "atoll")


@pytest.mark.spec("SA-007")
async def test_the_same_tools_are_served_over_stdio_with_the_key_from_the_environment(plane: Plane) -> None:
    key = await mcp_key(plane, apps=frozenset({plane.api.ids.app}))
    other_app = await plane.add_app("other")
    async with served(plane) as api:
        environment = {"ATOLL_URL": str(api.client.base_url), "ATOLL_TOKEN": str(key.token)}
        program = StdioServerParameters(command=ATOLL, args=["mcp"], env=environment)
        async with connected(str(api.client.base_url), key.token) as over_http:
            expected = (await over_http.list_tools()).tools
        async with Client(program) as client:
            assert (await client.list_tools()).tools == expected
            assert plane.api.ids.app in str(client.instructions)
            tools = Tools(client, plane.api)
            sandbox_id = await tools.ready_sandbox()
            ran = await tools.done("execute-sandbox-command", sandboxId=sandbox_id, command=["echo", "hello"])
            assert b64decode(ran["result"]["stdout"]) == b"hello\n"
            await tools.refused("create-sandbox", "other apps", **create_body(plane.api.ids, appId=other_app))
            await tools.done("terminate-sandbox", sandboxId=sandbox_id)


async def test_stdio_says_in_a_sentence_why_it_cannot_serve(plane: Plane) -> None:
    async def says(**environment: str) -> str:
        plain = {key: value for key, value in os.environ.items() if not key.startswith("ATOLL_")}
        program = await asyncio.create_subprocess_exec(
            ATOLL, "mcp", env=plain | environment, stdin=-3, stdout=-1, stderr=-1
        )
        out, err = await asyncio.wait_for(program.communicate(), 30)
        assert program.returncode == 1
        assert out == b""
        assert b"Traceback" not in err
        return err.decode()

    async with served(plane) as api:
        url = str(api.client.base_url)
        assert "ATOLL_URL" in await says(ATOLL_TOKEN="x")
        assert "ATOLL_TOKEN" in await says(ATOLL_URL=url)
        assert "not known" in await says(ATOLL_URL=url, ATOLL_TOKEN="atoll_wrong")
    assert "cannot be reached" in await says(ATOLL_URL=url, ATOLL_TOKEN="atoll_wrong")


async def test_garbage_is_refused_and_is_no_fault_of_the_server(plane: Plane) -> None:
    async with served(plane) as api:
        mine = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json", **ACCEPT}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        bodies: list[Any] = [b"", b"{", b"[]", b"null", b"\xff", b"1", b"[" * 5_000]
        strange = ({}, {"name": 5}, {"name": "get-sandbox", "arguments": []}, {"name": "x" * 100_000})
        bodies += [json.dumps({**call, "params": params}).encode() for params in strange]
        odd = {"accountId": {"a": [1]}, "sandboxId": ["x", None], "waitSeconds": 10**30}
        bodies.append(json.dumps({**call, "params": {"name": "get-sandbox", "arguments": odd}}).encode())
        bodies.append(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get-sandbox","arguments":'
                      b'{"sandboxId":"\\ud800"}}}')  # fmt: skip
        for body in bodies:
            for more in ({}, {"MCP-Protocol-Version": "2025-06-18"}, {"MCP-Protocol-Version": "x"}, {"Host": "a b/?#"}):
                answer = await api.client.post("/mcp", content=body, headers=mine | more)
                assert answer.status_code < 500, (body[:100], more, answer.text)
                assert "Traceback" not in answer.text
        large = await api.client.post("/mcp", content=b" " * (12 * 1024 * 1024), headers=mine)
        assert large.status_code == 413
