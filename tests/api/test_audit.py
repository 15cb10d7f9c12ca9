"""The audit trail: who did what to which thing, when, from where, with what outcome, and never what a command was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.inventory.operations import operations
from tests.plane import Api, Plane, expect, refused

from atoll.domain.audit import AuditAction, AuditOutcome
from atoll.domain.identity import Role, Scope
from atoll.domain.times import rfc3339
from atoll.ops.identity import Restrict
from atoll.workers.retention import RetentionWorker

pytestmark = pytest.mark.both_databases
SECRET = "s3cret-in-a-command"


async def entries(api: Api, **query: Any) -> list[dict[str, Any]]:
    """The newest entries of the account."""
    found: list[dict[str, Any]] = expect(await api.get("/audit", **query), 200)["entries"]
    return found


@pytest.mark.spec("SA-237", "SA-238")
async def test_a_command_is_in_the_trail_with_its_end_and_never_with_what_it_was_or_said(
    plane: Plane, api: Api
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    script = f"echo {SECRET}; exit 7"
    await api.execute(sandbox_id, "sh", "-c", script, envVars={"TOKEN": SECRET}, cwd="/tmp")
    begun, ended = (await entries(api, sandboxId=sandbox_id, limit=2))[::-1]
    assert begun["action"] == "execute-sandbox-command"
    assert begun["outcome"] == "accepted"
    assert begun["actor"]["userId"] == api.ids.user
    assert begun["actor"]["channel"] == "rest"
    assert begun["actor"]["address"] == "127.0.0.1"
    assert begun["actor"]["requestId"]
    assert begun["target"] == {"kind": "sandbox", "id": sandbox_id}
    assert ended["action"] == "end-sandbox-command"
    assert ended["outcome"] == "ended"
    assert ended["exitCode"] == 7
    assert ended["actor"]["userId"] == api.ids.user
    assert ended["executionId"] == begun["executionId"]
    assert SECRET not in repr(await plane.sql("SELECT * FROM audit_entries"))
    assert "echo" not in repr(await plane.sql("SELECT * FROM audit_entries"))


@pytest.mark.spec("SA-237")
async def test_a_started_command_a_kill_and_an_end_with_the_sandbox_are_in_the_trail(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    first = (await api.start(sandbox_id, "sleep", "60"))["executionId"]
    second = (await api.start(sandbox_id, "sleep", "60"))["executionId"]
    expect(await api.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId=first, signal="SIGKILL"), 200)
    await api.finished(sandbox_id, first)
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    found = [(entry["action"], entry.get("executionId")) for entry in await entries(api, sandboxId=sandbox_id)]
    assert ("start-sandbox-command", first) in found
    assert ("kill-sandbox-command", first) in found
    assert found.count(("end-sandbox-command", first)) == 1
    assert found.count(("end-sandbox-command", second)) == 1
    last = next(e for e in await entries(api) if e.get("executionId") == second and e["outcome"] == "ended")
    assert last["reason"] == "agent_shutdown"


async def test_refused_attempts_are_in_the_trail_with_their_status(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    member = await plane.caller(user="member", role=Role.MEMBER)
    refused(await member.post("/sandbox/terminate", sandboxId=sandbox_id), 403)
    refused(await api.post("/sandbox/pause", sandboxId=sandbox_id), 400)
    refused(await api.post("/sandbox/resume", sandboxId="unknown"), 404)
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    refused(await api.post("/sandbox/resume", sandboxId=sandbox_id), 409)
    powerless = await plane.caller(user="powerless", scopes=[Scope.DEPLOY])
    refused(await powerless.get("/sandbox", sandboxId=sandbox_id), 403)
    found = [
        (entry["action"], entry["status"], entry["target"]["id"], entry.get("errorCode"))
        for entry in await entries(api)
        if entry["outcome"] == "refused"
    ]
    assert found == [
        ("get-sandbox", 403, sandbox_id, "INSUFFICIENT_SCOPE"),
        ("resume-sandbox", 409, sandbox_id, None),
        ("resume-sandbox", 404, "unknown", None),
        ("terminate-sandbox", 403, sandbox_id, None),
    ]


async def test_an_attempt_on_a_foreign_account_is_told_to_nobody_there(plane: Plane, api: Api) -> None:
    stranger = await plane.add_account("stranger")
    refused(await stranger.post("/sandbox/terminate", accountId=api.ids.account, sandboxId="x"), 403)
    assert [entry for entry in await entries(api) if entry["outcome"] == "refused"] == []
    mine = [entry for entry in await entries(stranger) if entry["outcome"] == "refused"]
    assert [entry["action"] for entry in mine] == ["terminate-sandbox"]
    refused(await stranger.get("/audit", accountId=api.ids.account), 403)


async def test_a_deed_and_its_entry_are_one_transaction(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("the trail cannot be written to")

    monkeypatch.setattr("atoll.store.audit.record", fail)
    monkeypatch.setattr(api._shapes, "check", lambda answer: None)
    assert (await api.create()).status_code == 500
    assert (await api.post("/sandbox-template/save", name="x")).status_code == 500
    assert await plane.sql("SELECT id FROM sandboxes") == []
    assert await plane.sql("SELECT id FROM templates WHERE name = 'x'") == []


async def test_the_trail_is_read_in_pages_and_by_sandbox_user_action_and_time(plane: Plane, api: Api) -> None:
    other = await plane.caller(user="other")
    first = (await api.ready_sandbox())["sandboxId"]
    second = expect(await other.create(), 201)["sandbox"]["sandboxId"]
    plane.clock.pass_seconds(60)
    between = rfc3339(plane.clock())
    plane.clock.pass_seconds(60)
    expect(await api.post("/sandbox/terminate", sandboxId=first), 200)

    everything = await entries(api)
    paged: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    for _ in range(len(everything) + 1):
        page = expect(await api.get("/audit", limit=1, **cursor), 200)
        paged += page["entries"]
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert paged == everything
    assert [entry["entryId"] for entry in everything] == sorted(
        (entry["entryId"] for entry in everything), key=int, reverse=True
    )

    created, ended = "create-sandbox", "terminate-sandbox"
    user = everything[[e.get("target", {}).get("id") for e in everything].index(second)]["actor"]["userId"]
    assert [e["action"] for e in await entries(api, sandboxId=first)] == [ended, created]
    assert [e["target"]["id"] for e in await entries(api, userId=user, action=created)] == [second]
    assert [e["action"] for e in await entries(api, since=between)] == [ended]
    assert ended not in [e["action"] for e in await entries(api, until=between)]
    refused(await api.get("/audit", limit=101), 400, "limit")
    refused(await api.get("/audit", cursor="x"), 400, "cursor")


async def test_an_end_by_time_and_a_new_token_are_in_the_trail(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    await plane.let_pass(1_801)
    await plane.ended(sandbox_id)
    newest = (await entries(api, sandboxId=sandbox_id))[0]
    assert newest["action"] == "terminate-sandbox"
    assert newest["actor"] == {"channel": "system"}
    assert newest["reason"] == "IDLE_TIMEOUT"
    await plane.caller(user="somebody")
    issued = (await entries(api, action="create-token"))[0]
    assert issued["actor"]["channel"] == "operator"
    assert issued["target"]["kind"] == "token"


async def test_a_token_bound_to_an_app_reads_the_trail_of_its_own_sandboxes_alone(plane: Plane, api: Api) -> None:
    inside = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    outside = expect(await api.create(appId=await plane.add_app("other")), 201)["sandbox"]["sandboxId"]
    bound = await plane.caller(restrict=Restrict(apps=frozenset({api.ids.app})))
    assert await entries(bound, sandboxId=inside)
    refused(await bound.get("/audit", sandboxId=outside), 403, "app")
    refused(await bound.get("/audit"), 403, "restricted")


async def test_entries_are_forgotten_after_their_retention(plane: Plane, api: Api) -> None:
    expect(await api.post("/sandbox-template/save", name="old"), 201)
    plane.clock.pass_seconds(timedelta(days=366).total_seconds())
    expect(await api.post("/sandbox-template/save", name="new"), 201)
    assert len(await entries(api)) > 1
    await RetentionWorker(plane.services).run_once()
    assert [entry["action"] for entry in await entries(api)] == ["save-sandbox-template"]


@pytest.fixture
async def every_deed(plane: Plane, api: Api) -> AsyncIterator[set[str]]:
    """Do every write of the API once; the operations that were done."""
    sandbox_id = (await api.ready_sandbox(persistenceMode="DIRECTORY"))["sandboxId"]
    await api.execute(sandbox_id, "true")
    execution_id = (await api.start(sandbox_id, "sleep", "60"))["executionId"]
    expect(await api.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId=execution_id), 200)
    expect(await api.post("/sandbox/session", sandboxId=sandbox_id, scopes=["status"]), 200)
    expect(await api.post("/sandbox/pause", sandboxId=sandbox_id), 200)
    expect(await api.post("/sandbox/resume", sandboxId=sandbox_id), 200)
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    template_id = expect(await api.post("/sandbox-template/save", name="a"), 201)["template"]["templateId"]
    digest = "example.com/image@sha256:" + "a" * 64
    expect(await api.post("/sandbox-template/revision", templateId=template_id, imageDigest=digest), 201)
    expect(await api.post("/shared-volume/create", region="local", name="data"), 201)
    removed = await api.send(
        "DELETE", "/api/public/v1/shared-volume", params={"accountId": api.ids.account, "name": "data"}
    )
    expect(removed, 200)
    expect(await api.post("/shared-volume/restore", name="data"), 200)
    path = "/api/public/v1/ai-subscription"
    kept = {"name": "n", "envVarName": "V", "value": "v"}
    made = expect(await api.send("POST", path, json=kept), 201)["aiSubscription"]["aiSubscriptionId"]
    expect(await api.send("PATCH", path, json={"aiSubscriptionId": made, "name": "m"}), 200)
    expect(await api.send("DELETE", path, params={"aiSubscriptionId": made}), 200)
    yield {entry["action"] for entry in await entries(api, limit=100) if entry["outcome"] == AuditOutcome.ACCEPTED}


@pytest.mark.spec("SA-237")
async def test_every_operation_that_writes_leaves_an_entry(plane: Plane, every_deed: set[str]) -> None:
    writes = {operation.spec["operationId"] for operation in operations(plane.app.openapi()) if operation.is_write}
    assert writes - set(AuditAction) == set(), "an operation that writes and has no action in the trail"
    needs_a_bucket = {"create-object-storage"}
    assert writes - every_deed - needs_a_bucket == set()
