"""Opening gateway sessions, and whose token the gateway takes, for how long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.plane import ALL_SCOPES, Api, Plane, expect, open_plane, refused

from atoll.domain.gateway import SESSION_SECONDS
from atoll.domain.identity import Role, Scope
from atoll.ops.identity import Restrict

EVERYTHING = ["exec", "file", "pty", "signal", "status"]


async def opened(api: Api, sandbox_id: str, *scopes: str) -> dict[str, Any]:
    """An open session."""
    return expect(await api.post("/sandbox/session", sandboxId=sandbox_id, scopes=list(scopes) or EVERYTHING), 200)


def holder(plane: Plane, session: dict[str, Any]) -> Api:
    """Whoever has the token of a session."""
    return plane.anonymous(session["token"])


@pytest.mark.both_databases
@pytest.mark.spec("SA-350", "SA-353", "SA-454")
async def test_a_session_is_an_endpoint_a_token_and_its_end(plane: Plane) -> None:
    sandbox = await plane.api.ready_sandbox()
    session = await opened(plane.api, sandbox["sandboxId"])
    assert session["endpoint"] == f"http://atoll.test/gateway/{sandbox['sandboxId']}"
    left = datetime.fromisoformat(session["expiresAt"]) - plane.clock()
    assert timedelta(seconds=SESSION_SECONDS - 60) < left <= timedelta(seconds=SESSION_SECONDS)
    status = expect(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 200)
    assert status["status"] == "READY"
    assert status["uptimeSeconds"] > 0
    assert status["memoryBytes"] > 0
    assert status["processes"] >= 1


async def test_the_endpoint_is_under_the_public_url_where_one_is_set() -> None:
    async with open_plane(public_url="https://sandboxes.example.test/") as plane:
        sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
        session = await opened(plane.api, sandbox_id)
        assert session["endpoint"] == f"https://sandboxes.example.test/gateway/{sandbox_id}"


@pytest.mark.spec("SA-352")
async def test_a_session_needs_at_least_one_scope_and_no_other(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    for scopes in ([], ["exec", "root"], ["EXEC"], [None], "exec", None):
        refused(await plane.api.post("/sandbox/session", sandboxId=sandbox_id, scopes=scopes), 400, "scopes")
    for scope in EVERYTHING:
        await opened(plane.api, sandbox_id, scope)


@pytest.mark.spec("SA-350", "SA-351")
async def test_only_who_manages_the_sandbox_opens_a_session(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    for caller, words in (
        (await plane.caller(role=Role.MEMBER), "admin or technical"),
        (await plane.caller(scopes=ALL_SCOPES - {Scope.DANGEROUS}), Scope.DANGEROUS),
    ):
        refused(await caller.post("/sandbox/session", sandboxId=sandbox_id, scopes=["exec"]), 403, words)
    other = await plane.add_account("other")
    refused(await other.post("/sandbox/session", sandboxId=sandbox_id, scopes=["exec"]), 404)


@pytest.mark.spec("SA-333", "SA-336", "SA-337")
async def test_only_the_creator_opens_a_session_in_a_private_sandbox(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox(private=True))["sandboxId"]
    admin = await plane.caller(user="other admin", role=Role.ADMIN)
    refused(await admin.post("/sandbox/session", sandboxId=sandbox_id, scopes=["exec"]), 403, "private")
    await opened(plane.api, sandbox_id)


@pytest.mark.spec("SA-354")
async def test_the_gateway_refuses_a_token_after_its_end(plane: Plane) -> None:
    sandbox = await plane.api.ready_sandbox()
    session = await opened(plane.api, sandbox["sandboxId"])
    url = session["endpoint"] + "/status"
    plane.clock.pass_seconds(SESSION_SECONDS - 60)
    expect(await holder(plane, session).send("GET", url), 200)
    plane.clock.pass_seconds(61)
    assert refused(await holder(plane, session).send("GET", url), 401)["errorCode"] == "TOKEN_EXPIRED"


@pytest.mark.spec("SA-354")
async def test_a_session_ends_no_later_than_its_sandbox(plane: Plane) -> None:
    sandbox = await plane.api.ready_sandbox()
    await plane.sql("UPDATE sandboxes SET expires_at = expires_at - 84600000")  # half an hour is left
    session = await opened(plane.api, sandbox["sandboxId"])
    left = datetime.fromisoformat(session["expiresAt"]) - plane.clock()
    assert left <= timedelta(seconds=1_800)


@pytest.mark.spec("SA-457")
async def test_a_token_ends_with_its_sandbox(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    session = await opened(plane.api, sandbox_id)
    expect(await plane.api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    body = refused(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 401, "ended")
    assert body["errorCode"] == "TOKEN_EXPIRED"


@pytest.mark.both_databases
@pytest.mark.spec("SA-457")
async def test_a_token_ends_when_its_user_loses_the_account(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    member = await plane.caller(user="leaver")
    session = await opened(member, sandbox_id)
    expect(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 200)
    (user,) = (await plane.sql("SELECT id FROM users WHERE name = 'leaver'"))[0]
    await plane.leave_account(user)
    refused(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 401, "left the account")


async def test_a_session_can_do_no_more_than_the_token_that_opened_it(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    for change, status in (
        ("UPDATE tokens SET scopes = '[\"quave:read\"]' WHERE user_id = :user", 403),
        ("UPDATE tokens SET role = 'member' WHERE user_id = :user", 403),
        ("UPDATE tokens SET revoked_at = 1 WHERE user_id = :user", 401),
    ):
        session = await opened(await plane.caller(user=change), sandbox_id)
        expect(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 200)
        (user,) = (await plane.sql("SELECT id FROM users WHERE name = :name", name=change))[0]
        await plane.sql(change, user=user)
        refused(await holder(plane, session).send("GET", session["endpoint"] + "/status"), status)


@pytest.mark.spec("SA-009")
async def test_a_session_is_held_to_what_its_token_is_restricted_to(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    bound = await plane.caller(user="bound", restrict=Restrict(apps=frozenset({plane.api.ids.app})))
    session = await opened(bound, sandbox_id)
    expect(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 200)
    await plane.sql('UPDATE tokens SET restriction = \'{"apps": ["another"]}\' WHERE restriction IS NOT NULL')
    refused(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 403, "restricted")


@pytest.mark.spec("SA-359")
async def test_a_call_that_needs_another_scope_is_refused(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    session = await opened(plane.api, sandbox_id, "exec", "file", "pty", "signal")
    body = refused(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 403, "status")
    assert body["errorCode"] == "INSUFFICIENT_SCOPE"


async def test_a_token_opens_no_other_sandbox_and_no_other_api(plane: Plane) -> None:
    first, second = [(await plane.api.ready_sandbox())["sandboxId"] for _ in range(2)]
    session = await opened(plane.api, first)
    caller = holder(plane, session)
    for sandbox_id in (second, "00000000-0000-4000-8000-000000000000"):
        body = refused(await caller.send("GET", f"/gateway/{sandbox_id}/status"), 403, "another sandbox")
        assert body["errorCode"] == "NAMESPACE_DENIED"
    refused(await caller.get("/sandboxes"), 401)
    refused(await plane.api.send("GET", f"/gateway/{first}/status"), 401)


async def test_only_the_hash_of_a_token_is_stored(plane: Plane) -> None:
    session = await opened(plane.api, (await plane.api.ready_sandbox())["sandboxId"])
    rows = await plane.sql("SELECT * FROM gateway_sessions")
    assert len(rows) == 1
    assert not any(session["token"] in str(value) for value in rows[0])


async def test_sessions_that_ended_a_day_ago_are_forgotten(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    await opened(plane.api, sandbox_id)
    await plane.sql("UPDATE gateway_sessions SET expires_at = expires_at - 90000000")
    await opened(plane.api, sandbox_id)
    assert len(await plane.sql("SELECT id FROM gateway_sessions")) == 1


async def test_a_gateway_call_is_activity_of_the_sandbox(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    session = await opened(plane.api, sandbox_id)
    before = (await plane.api.sandbox(sandbox_id))["lastActiveAt"]
    plane.clock.pass_seconds(5)
    expect(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 200)
    assert (await plane.api.sandbox(sandbox_id))["lastActiveAt"] > before


@pytest.mark.spec("SA-360", "SA-373")
async def test_opening_a_session_resumes_a_paused_sandbox_and_reading_its_status_does_not(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox(persistenceMode="SNAPSHOT"))["sandboxId"]
    session = await opened(plane.api, sandbox_id)
    expect(await plane.api.post("/sandbox/pause", sandboxId=sandbox_id), 200)
    status = expect(await holder(plane, session).send("GET", session["endpoint"] + "/status"), 200)
    assert status == {"success": True, "status": "SUSPENDED"}
    answer = await plane.api.post("/sandbox/session", sandboxId=sandbox_id, scopes=["status"])
    if answer.status_code == 409:
        assert answer.json()["data"]["retryable"] is True
        await plane.api.settled(sandbox_id)
        await opened(plane.api, sandbox_id)
    assert (await plane.api.sandbox(sandbox_id))["status"] == "READY"


@pytest.mark.spec("SA-360")
async def test_opening_a_session_while_the_sandbox_is_on_its_way_answers_409_retryable(plane: Plane) -> None:
    plane.stop_workers()
    sandbox_id = expect(await plane.api.create(), 201)["sandbox"]["sandboxId"]
    answer = await plane.api.post("/sandbox/session", sandboxId=sandbox_id, scopes=["exec"])
    assert refused(answer, 409)["data"]["retryable"] is True
