"""Every route of the gateway is authenticated, needs a scope, and is documented. New ones are found by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from tests.plane import Plane, expect, refused

from atoll.api.gateway.caller import GATEWAY, GatewayRoute, check_of
from atoll.domain.gateway import GatewayScope

_FILLERS = {"executionId": "execution", "port": "8080", "path": "x", "path:path": "x", "rest:path": "x"}
CONTRACT = {
    ("POST", "/processes"): {"exec"},
    ("GET", "/processes"): {"status"},
    ("GET", "/processes/{executionId}"): {"status"},
    ("GET", "/processes/{executionId}/stream"): {"exec"},
    ("WEBSOCKET", "/processes/{executionId}/stream"): {"exec"},
    ("POST", "/processes/{executionId}/stdin"): {"exec"},
    ("POST", "/processes/{executionId}/signal"): {"signal"},
    ("POST", "/processes/{executionId}/resize"): {"pty"},
    ("GET", "/status"): {"status"},
}
"""The scopes that the contract names; files, archives and ports have the one of their folder."""


def gateway_routes(plane: Plane) -> list[Any]:
    """Every route below the gateway's path, HTTP or WebSocket."""

    def walk(routes: Any) -> Iterator[Any]:
        for route in routes:
            inner = getattr(getattr(route, "original_router", route), "routes", None)
            if inner:
                yield from walk(inner)
            elif getattr(route, "path", "").startswith("/gateway"):
                yield route

    return list(walk(plane.app.routes))


def methods_of(route: Any) -> list[str]:
    """GET, POST, … or WEBSOCKET."""
    return ["WEBSOCKET"] if isinstance(route, WebSocketRoute) else sorted(route.methods)


def url_of(route: Any, sandbox_id: str) -> str:
    """A path that the route serves."""
    path = str(route.path).replace("{sandboxId}", sandbox_id)
    for name, value in _FILLERS.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path, path
    return path


@pytest.mark.spec("SA-359", "SA-444", "SA-445", "SA-446", "SA-447", "SA-449", "SA-454")
async def test_every_route_names_the_scopes_that_it_needs(plane: Plane) -> None:
    found = {
        (method, route.path.removeprefix(GATEWAY)): {str(scope) for scope in check_of(route).scopes}
        for route in gateway_routes(plane)
        for method in methods_of(route)
    }
    assert {key: found.get(key) for key in CONTRACT} == CONTRACT
    for (_, path), scopes in found.items():
        if path.startswith(("/files", "/archive")):
            assert scopes == {"file"}, path
        if path.startswith("/ports"):
            assert scopes == {"exec"}, path
    for route in gateway_routes(plane):
        assert isinstance(route, GatewayRoute | WebSocketRoute), route.path


@pytest.mark.spec("SA-354", "SA-359", "SA-434")
async def test_every_route_refuses_who_has_no_token_or_not_the_scope_before_anything_else(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    routes = [route for route in gateway_routes(plane) if not isinstance(route, WebSocketRoute)]
    assert len(routes) >= 8
    for route in routes:
        url, needed = url_of(route, sandbox_id), check_of(route).scopes
        others = [str(scope) for scope in GatewayScope if scope not in needed]
        session = expect(await plane.api.post("/sandbox/session", sandboxId=sandbox_id, scopes=others), 200)
        weak = plane.anonymous(session["token"])
        for method in methods_of(route):
            if method == "HEAD":
                continue
            for caller in (plane.anonymous(), plane.anonymous("atollgw_unknown"), plane.api):
                assert refused(await caller.send(method, url), 401)["errorCode"] == "UNAUTHENTICATED"
            assert refused(await weak.send(method, url, content=b"{"), 403)["errorCode"] == "INSUFFICIENT_SCOPE"
            elsewhere = url.replace(sandbox_id, "00000000-0000-4000-8000-000000000000")
            assert refused(await weak.send(method, elsewhere), 403)["errorCode"] == "NAMESPACE_DENIED"


@pytest.mark.spec("SA-354", "SA-434")
async def test_every_websocket_refuses_who_has_no_token(plane: Plane) -> None:
    sockets = [route for route in gateway_routes(plane) if isinstance(route, WebSocketRoute)]
    assert sockets
    with TestClient(plane.app) as client:
        for route in sockets:
            with pytest.raises(WebSocketDenialResponse) as refusal, client.websocket_connect(url_of(route, "sandbox")):
                pass
            assert refusal.value.status_code == 401, route.path
            assert refusal.value.json()["success"] is False


async def test_every_route_is_documented(plane: Plane) -> None:
    document = plane.app.openapi()
    ids = set()
    paths = {path: operations for path, operations in document["paths"].items() if path.startswith("/gateway/")}
    for path, operations in paths.items():
        for method, spec in operations.items():
            where = f"{method} {path}"
            assert spec["summary"], where
            assert spec["description"], where
            assert spec["security"] == [{"gatewayToken": []}], where
            assert {"400", "401", "403", "500"} <= set(spec["responses"]), where
            assert "422" not in spec["responses"], where
            assert spec["operationId"] not in ids, where
            ids.add(spec["operationId"])
            for parameter in spec.get("parameters", ()):
                assert parameter.get("description"), f"{where} {parameter['name']}"
    assert len(ids) >= 8


async def test_a_route_without_a_scope_cannot_be_made() -> None:
    async def endpoint() -> None:
        raise AssertionError("never called")

    with pytest.raises(TypeError, match="gateway_caller"):
        GatewayRoute("/gateway/{sandboxId}/open", endpoint)
