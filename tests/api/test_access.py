"""Who may call what."""

from __future__ import annotations

import pytest
from tests.plane import PREFIX, Api, Plane, create_body, expect, refused

from atoll.domain.identity import Role, Scope, TokenKind


@pytest.mark.both_databases
@pytest.mark.spec("SA-433")
async def test_a_token_is_taken_with_and_without_bearer(plane: Plane, api: Api) -> None:
    for header in (f"Bearer {api.token}", f"bearer {api.token}", f"BEARER   {api.token}", api.token or ""):
        answer = await plane.anonymous().send(
            "GET", f"{PREFIX}/sandboxes", params={"accountId": api.ids.account}, headers={"Authorization": header}
        )
        expect(answer, 200)


@pytest.mark.spec("SA-434")
async def test_no_token_or_an_unknown_one_answers_401(plane: Plane, api: Api) -> None:
    token = api.token or ""
    for header in ("", "Bearer", "Bearer ", "Bearer nothing", f"Basic {token}", f"Bearer {token}x", f"Bearer {token} x",
                   token[:-1], token.upper(), "x" * 5_000, "Bearer \x01\x7f", "' OR 1=1 --"):  # fmt: skip
        answer = await plane.anonymous().send(
            "GET", f"{PREFIX}/sandboxes", params={"accountId": api.ids.account}, headers={"Authorization": header}
        )
        refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.spec("SA-434")
async def test_401_comes_before_anything_that_is_wrong_with_the_request(plane: Plane) -> None:
    stranger = plane.anonymous("unknown")
    refused(await stranger.send("POST", f"{PREFIX}/sandbox/create", content=b"{nonsense"), 401)
    refused(await stranger.send("GET", f"{PREFIX}/sandboxes", params={"limit": "x"}), 401)


@pytest.mark.spec("SA-004", "SA-440")
async def test_403_for_the_caller_comes_before_400_for_the_request(plane: Plane) -> None:
    reader = await plane.caller(scopes=[Scope.READ])
    for body in ({}, {"sandboxId": 5}, {"sandboxId": "s", "command": ["true"]}):
        assert refused(await reader.post("/sandbox/execute", **body), 403)["errorCode"] == "INSUFFICIENT_SCOPE"
    writer = await plane.caller(scopes=[Scope.DANGEROUS])
    refused(await writer.post("/sandbox/execute", sandboxId="s"), 400, "command is required")
    refused(await writer.get("/sandboxes", limit="x"), 403, "quave:read")


@pytest.mark.both_databases
@pytest.mark.spec("SA-436")
async def test_tokens_are_stored_hashed(plane: Plane, api: Api) -> None:
    rows = await plane.sql("SELECT * FROM tokens")
    assert rows
    assert api.token is not None
    assert api.token not in repr(rows)
    assert api.token.removeprefix("atoll_") not in repr(rows)


@pytest.mark.spec("SA-434")
async def test_a_revoked_token_is_no_longer_known(plane: Plane, api: Api) -> None:
    expect(await api.get("/sandboxes"), 200)
    await plane.sql("UPDATE tokens SET revoked_at = 1")
    refused(await api.get("/sandboxes"), 401)


@pytest.mark.spec("SA-003")
async def test_user_and_oauth_tokens_are_taken(plane: Plane) -> None:
    for kind in (TokenKind.USER, TokenKind.OAUTH):
        caller = await plane.caller(kind=kind)
        expect(await caller.get("/sandboxes"), 200)
        expect(await caller.create(), 201)


@pytest.mark.spec("SA-012", "SA-013", "SA-014", "SA-240", "SA-280")
async def test_a_member_reads_and_changes_nothing(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sleep", "600")
    member = await plane.caller(user="member", role=Role.MEMBER)
    for path, query in (
        ("/sandboxes", {}),
        ("/sandbox", {"sandboxId": sandbox_id}),
        ("/sandbox/command", {"sandboxId": sandbox_id, "executionId": execution["executionId"]}),
        ("/sandbox-templates", {}),
        ("/sandbox-template", {"templateId": api.ids.template}),
    ):
        expect(await member.get(path, **query), 200)
    refused(await member.create(idempotencyKey="k"), 403, "admin or technical")
    refused(await member.post("/sandbox/terminate", sandboxId=sandbox_id), 403)
    refused(await member.post("/sandbox/execute", sandboxId=sandbox_id, command=["touch", "x"]), 403)
    refused(await member.post("/sandbox/command/start", sandboxId=sandbox_id, command=["touch", "x"]), 403)
    kill = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
    refused(await member.post("/sandbox/command/kill", **kill), 403)
    refused(await member.post("/sandbox-template/save", name="mine"), 403)
    image = f"a/b@sha256:{'0' * 64}"
    refused(await member.post("/sandbox-template/revision", templateId=api.ids.template, imageDigest=image), 403)
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 1
    assert (await api.sandbox(sandbox_id))["status"] == "BUSY"
    assert (await api.command(sandbox_id, execution["executionId"]))["state"] == "running"
    assert (await api.execute(sandbox_id, "test", "-e", "x"))["exitCode"] == 1
    assert len(expect(await api.get("/sandbox-templates"), 200)["templates"]) == 1


@pytest.mark.spec("SA-013", "SA-014")
async def test_a_technical_member_manages_sandboxes(plane: Plane) -> None:
    technical = await plane.caller(user="technical", role=Role.TECHNICAL)
    sandbox_id = (await technical.ready_sandbox())["sandboxId"]
    assert (await technical.execute(sandbox_id, "true"))["exitCode"] == 0
    expect(await technical.post("/sandbox/terminate", sandboxId=sandbox_id), 200)


@pytest.mark.spec("SA-011", "SA-435")
async def test_a_foreign_and_an_unknown_account_get_the_same_403(plane: Plane, api: Api) -> None:
    stranger = await plane.add_account("stranger")
    answers = []
    for account in (stranger.ids.account, "unknown", "00000000-0000-4000-8000-000000000000"):
        answers.append(refused(await api.get("/sandboxes", accountId=account), 403))
        body = create_body(stranger.ids, accountId=account)
        answers.append(refused(await api.post("/sandbox/create", **body), 403))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.spec("SA-011")
async def test_whoever_left_the_account_is_refused_whatever_the_token_allows(plane: Plane, api: Api) -> None:
    leaver = await plane.caller(user="leaver")
    sandbox_id = (await leaver.ready_sandbox())["sandboxId"]
    owner = (await api.sandbox(sandbox_id))["callerKey"].removeprefix("user:")
    await plane.leave_account(owner)
    refused(await leaver.get("/sandboxes"), 403)
    refused(await leaver.post("/sandbox/terminate", sandboxId=sandbox_id), 403)


@pytest.mark.spec("SA-120")
async def test_an_account_without_the_entitlement_is_refused_everywhere(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    await plane.sql("UPDATE accounts SET entitled = false")
    target = {"sandboxId": sandbox_id}
    for answer in (
        await api.get("/sandboxes"),
        await api.get("/sandbox", **target),
        await api.get("/sandbox/command", **target, executionId="e"),
        await api.get("/sandbox-templates"),
        await api.get("/sandbox-template", templateId=api.ids.template),
        await api.create(),
        await api.post("/sandbox/terminate", **target),
        await api.post("/sandbox/execute", **target, command=["true"]),
        await api.post("/sandbox/command/start", **target, command=["true"]),
        await api.post("/sandbox/command/kill", **target, executionId="e"),
        await api.post("/sandbox-template/save", name="n"),
        await api.post("/sandbox-template/revision", templateId="t", imageDigest=f"a@sha256:{'0' * 64}"),
    ):
        refused(answer, 403, "entitlement")
