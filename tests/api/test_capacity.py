"""Admission: how many sandboxes an account, a project or an app may have at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.plane import IMAGE, Api, Plane, expect, open_plane, refused

from atoll.settings import Settings

HOLDING = ["REQUESTED", "ALLOCATING", "STARTING", "READY", "BUSY", "RESUMING", "SUSPENDING", "FAILED", "TERMINATING"]


async def limit_account(plane: Plane, ceiling: int) -> None:
    """Set the account's own ceiling, as an operator does."""
    await plane.sql("UPDATE accounts SET active_sandbox_limit = :n", n=ceiling)


@pytest.mark.both_databases
@pytest.mark.spec("SA-413", "SA-423", "SA-424", "SA-426", "SA-439")
async def test_concurrent_creates_of_an_empty_account_never_exceed_its_ceiling(plane: Plane, api: Api) -> None:
    await limit_account(plane, 3)
    answers = await asyncio.gather(*(api.create() for _ in range(12)))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 9
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["data"] == {
                "retryable": True,
                "retryAfterSeconds": 30,
                "reason": "account_concurrency_exceeded",
            }
            assert answer.headers["retry-after"] == "30"
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 3


@pytest.mark.spec("SA-422")
async def test_the_ceiling_is_200_unless_it_is_set(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).account_active_sandbox_limit == 200


@pytest.mark.spec("SA-424")
async def test_the_setting_is_the_ceiling_of_an_account_without_its_own() -> None:
    async with open_plane(account_active_sandbox_limit=1) as plane:
        expect(await plane.api.create(), 201)
        refused(await plane.api.create(), 429, "ceiling")


@pytest.mark.spec("SA-414", "SA-415", "SA-416", "SA-418")
async def test_every_status_but_suspended_and_terminated_counts_and_pending_compute_always_does(
    plane: Plane, api: Api
) -> None:
    plane.driver.faults.hold("create")
    held = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    await limit_account(plane, 1)

    async def refuses(status: str, *, pending: bool) -> bool:
        await plane.sql(
            "UPDATE sandboxes SET status = :s, allocation_pending = :p WHERE id = :id", s=status, p=pending, id=held
        )
        return bool((await api.create(idempotencyKey=f"{status}-{pending}")).status_code == 429)

    plane.stop_workers()  # the statuses are forged: nobody may act on them
    for status in HOLDING:
        assert await refuses(status, pending=False), status
    for status in ("SUSPENDED", "TERMINATED"):
        assert await refuses(status, pending=True), status
    assert not await refuses("SUSPENDED", pending=False)
    await limit_account(plane, 2)
    assert not await refuses("TERMINATED", pending=False)
    await plane.sql("UPDATE sandboxes SET status = 'TERMINATED', allocation_pending = false")


@pytest.mark.spec("SA-419")
async def test_a_reconnect_at_capacity_returns_the_original(plane: Plane, api: Api) -> None:
    first = expect(await api.create(idempotencyKey="k"), 201)["sandbox"]
    await limit_account(plane, 1)
    refused(await api.create(), 429)
    again = expect(await api.create(idempotencyKey="k"), 200)["sandbox"]
    assert again["sandboxId"] == first["sandboxId"]
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 1


@pytest.mark.spec("SA-425", "SA-431")
async def test_the_callers_own_ceiling_counts_the_project(api: Api) -> None:
    expect(await api.create(projectId="p"), 201)
    expect(await api.create(projectId="q", maxProjectConcurrency=1), 201)
    expect(await api.create(projectId="p", maxProjectConcurrency=2), 201)
    body = refused(await api.create(projectId="p", maxProjectConcurrency=2), 429)
    assert body["data"] == {"retryable": True, "retryAfterSeconds": 30, "reason": "project_concurrency_exceeded"}


@pytest.mark.spec("SA-432")
async def test_without_a_project_the_callers_own_ceiling_counts_the_app(plane: Plane, api: Api) -> None:
    expect(await api.create(projectId="p"), 201)
    expect(await api.create(), 201)
    refused(await api.create(maxProjectConcurrency=2), 429)
    expect(await api.create(maxProjectConcurrency=3), 201)
    expect(await api.create(appId=await plane.add_app("other"), maxProjectConcurrency=1), 201)


@pytest.mark.spec("SA-429")
async def test_a_ceiling_of_ones_own_must_be_a_positive_integer(api: Api) -> None:
    for value in (0, -1, "1", 1.0, 2**31, 2**70, True):
        refused(await api.create(projectId="p", maxProjectConcurrency=value), 400, "maxProjectConcurrency")


@pytest.mark.spec("SA-421", "SA-427")
async def test_neither_app_nor_project_nor_zclouds_are_capped_by_the_platform(api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": f"a/b@sha256:{'0' * 64}", "zClouds": 64}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    for _ in range(8):
        expect(await api.create(projectId="p"), 201)


@pytest.mark.spec("SA-418")
async def test_a_terminated_sandbox_makes_room(plane: Plane, api: Api) -> None:
    first = (await api.ready_sandbox())["sandboxId"]
    await limit_account(plane, 1)
    refused(await api.create(), 429)
    expect(await api.post("/sandbox/terminate", sandboxId=first), 200)
    deadline = asyncio.get_running_loop().time() + 10
    while (answer := await api.create(idempotencyKey="next")).status_code == 429:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    expect(answer, 201)


@pytest.mark.spec("SA-428")
async def test_the_limits_and_lifetimes_of_a_sandbox_hold_whether_or_not_the_account_is_at_its_ceiling(
    plane: Plane, api: Api
) -> None:
    body = {"templateId": api.ids.template, "imageDigest": IMAGE, "pidLimit": 64, "ephemeralDiskMb": 128}
    lifetimes = {"idleTimeoutSeconds": 300, "hardLifetimeSeconds": 600}
    expect(await api.post("/sandbox-template/revision", **body, **lifetimes), 201)
    for ceiling in (1, 50):
        await limit_account(plane, ceiling)
        idle = await api.ready_sandbox()
        assert idle["resources"] == {"zClouds": 1, "pidLimit": 64, "ephemeralDiskMb": 128}
        await plane.let_pass(301)
        assert (await plane.ended(idle["sandboxId"]))["terminationReason"] == "IDLE_TIMEOUT"
        busy = await api.ready_sandbox()
        await api.start(busy["sandboxId"], "sleep", "60")
        await plane.let_pass(601)
        assert (await plane.ended(busy["sandboxId"]))["terminationReason"] == "HARD_LIFETIME"


@pytest.mark.spec("SA-423")
async def test_an_account_with_a_ceiling_of_0_may_have_none(plane: Plane, api: Api) -> None:
    await limit_account(plane, 0)
    refused(await api.create(), 429, "ceiling")


@pytest.mark.spec("SA-417")
@pytest.mark.parametrize("call", ["execute", "command/start", "session"])
async def test_a_command_in_a_paused_sandbox_tells_of_the_ceiling_that_keeps_it_paused(
    plane: Plane, api: Api, call: str
) -> None:
    paused = (await api.ready_sandbox(persistenceMode="SNAPSHOT"))["sandboxId"]
    expect(await api.post("/sandbox/pause", sandboxId=paused), 200)
    await api.ready_sandbox(idempotencyKey="other")
    await limit_account(plane, 1)
    body = {"scopes": ["exec"]} if call == "session" else {"command": ["true"]}
    answer = refused(await api.post(f"/sandbox/{call}", sandboxId=paused, **body), 429, "ceiling")
    assert answer["data"]["reason"] == "account_concurrency_exceeded"
    assert answer["data"]["retryAfterSeconds"] == 30
    assert (await api.sandbox(paused))["status"] == "SUSPENDED"
