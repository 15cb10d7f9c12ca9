"""What goes around every request: its id, the access log, and the answer to a fault of our own."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from tests.plane import PREFIX, Api, Plane, create_body, expect

from atoll.api.envelope import trace
from atoll.ops import sandbox_read
from atoll.ops.services import Services

SECRET = "sesame-open"


@pytest.mark.spec("SA-067")
async def test_a_sane_request_id_is_taken_returned_and_becomes_the_correlation_id(api: Api) -> None:
    for given in ("abc-123", "A.b_c:d", "x" * 64):
        answer = await api.send(
            "POST", f"{PREFIX}/sandbox/create", json=create(api, given), headers={"X-Request-Id": given}
        )
        assert answer.headers["x-request-id"] == given
        assert expect(answer, 201)["sandbox"]["correlationId"] == given


@pytest.mark.spec("SA-067")
async def test_another_request_id_is_replaced_by_one_of_ours(api: Api) -> None:
    seen = set()
    for given in ("", "x" * 65, "a b", "a\tb", "<script>", "a/b", "ä".encode("latin-1")):
        headers: Any = {"X-Request-Id": given}
        answer = await api.send("POST", f"{PREFIX}/sandbox/create", json=create(api, repr(given)), headers=headers)
        made = answer.headers["x-request-id"]
        assert made != given
        assert expect(answer, 201)["sandbox"]["correlationId"] == made
        seen.add(made)
    assert len(seen) == 7
    assert len((await api.client.get("/nowhere")).headers["x-request-id"]) == 36


@pytest.mark.spec("SA-238")
async def test_the_access_log_has_the_route_and_never_what_was_sent(api: Api) -> None:
    with structlog.testing.capture_logs() as logs:
        answer = await api.get("/sandbox", sandboxId=SECRET, other=SECRET)
        await api.post("/sandbox/execute", sandboxId=SECRET, command=[SECRET], envVars={SECRET: SECRET}, cwd=SECRET)
        await api.post("/sandbox/execute", **{SECRET: SECRET})
        await api.client.get(f"/{SECRET}?x={SECRET}")
    lines = [line for line in logs if line["event"] == "request"]
    assert len(lines) == 4
    assert SECRET not in repr(logs)
    assert api.token is not None
    assert api.token not in repr(logs)
    assert set(lines[0]) == {
        "event", "log_level", "method", "route", "status", "duration_ms", "principal", "request_id",
    }  # fmt: skip
    assert (lines[0]["method"], lines[0]["route"], lines[0]["status"]) == ("GET", f"{PREFIX}/sandbox", 404)
    assert lines[0]["principal"] == api.ids.user
    assert lines[0]["request_id"] == answer.headers["x-request-id"]
    assert (lines[3]["route"], lines[3]["principal"]) == (None, None)


async def test_a_fault_of_our_own_answers_500_and_logs_where_it_was_without_what_it_held(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(services: Services, *arguments: Any, **options: Any) -> Any:
        held = SECRET
        try:
            raise ValueError(held)
        except ValueError as error:
            raise RuntimeError(f"while holding {held}") from error

    monkeypatch.setattr(sandbox_read, "list_sandboxes", broken)
    with structlog.testing.capture_logs() as logs:
        answer = await plane.client.get(
            f"{PREFIX}/sandboxes", params={"accountId": "a"}, headers={"Authorization": api.token or ""}
        )
    body = expect(answer, 500)
    assert set(body) == {"success", "error"}
    assert SECRET not in answer.text
    (failure,) = [line for line in logs if line["event"] == "request failed"]
    assert failure["log_level"] == "error"
    assert failure["request_id"] == answer.headers["x-request-id"]
    assert "builtins.ValueError" in failure["traceback"]
    assert "builtins.RuntimeError" in failure["traceback"]
    assert "test_request_envelope.py" in failure["traceback"]
    assert SECRET not in repr(logs)
    assert [line["status"] for line in logs if line["event"] == "request"] == [500]


def test_a_trace_of_exceptions_in_a_circle_ends() -> None:
    one, two = ValueError("a"), TypeError("b")
    one.__cause__, two.__cause__ = two, one
    assert trace(one).count("caused") == 1


def create(api: Api, key: str) -> dict[str, Any]:
    """A body of create with this key."""
    return create_body(api.ids, idempotencyKey=key)
