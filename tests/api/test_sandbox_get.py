"""Get a sandbox, at once or when it settles."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.plane import Api, Plane, expect, refused

from atoll.domain.errors import ErrorCode, RuntimeFailure


@pytest.mark.both_databases
@pytest.mark.spec("SA-136", "SA-137", "SA-061", "SA-012")
async def test_a_sandbox_is_read_at_once_and_reading_it_is_activity(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox()
    plane.clock.pass_seconds(60)
    expect(await api.get("/sandbox", sandboxId=sandbox["sandboxId"]), 200)
    read = expect(await api.get("/sandbox", sandboxId=sandbox["sandboxId"]), 200)["sandbox"]
    assert read["sandboxId"] == sandbox["sandboxId"]
    assert read["lastActiveAt"] > sandbox["lastActiveAt"]


@pytest.mark.both_databases
@pytest.mark.spec("SA-138", "SA-140", "SA-362")
async def test_a_wait_answers_as_soon_as_the_sandbox_settles(plane: Plane, api: Api) -> None:
    gate = plane.driver.faults.hold("create")
    sandbox_id = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    waiting = asyncio.create_task(api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=25))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    began = time.monotonic()
    gate.set()
    assert expect(await waiting, 200)["sandbox"]["status"] == "READY"
    assert time.monotonic() - began < 5
    began = time.monotonic()
    expect(await api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=25), 200)
    assert time.monotonic() - began < 5


@pytest.mark.spec("SA-139", "SA-137", "SA-141", "SA-362")
async def test_a_wait_that_runs_out_answers_with_the_sandbox_as_it_is(plane: Plane, api: Api) -> None:
    gate = plane.driver.faults.hold("create")
    sandbox_id = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    began = time.monotonic()
    sandbox = expect(await api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=1), 200)["sandbox"]
    assert 0.9 <= time.monotonic() - began < 5
    assert sandbox["status"] == "STARTING"
    assert sandbox["desiredStatus"] == "READY"
    began = time.monotonic()
    expect(await api.get("/sandbox", sandboxId=sandbox_id), 200)
    assert time.monotonic() - began < 1
    gate.set()


@pytest.mark.spec("SA-138")
async def test_a_wait_answers_when_the_sandbox_fails(plane: Plane, api: Api) -> None:
    gate = plane.driver.faults.hold("create")
    sandbox_id = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    waiting = asyncio.create_task(api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=25))
    await asyncio.sleep(0.1)
    plane.driver.faults.fail_next("create", RuntimeFailure("It broke.", code=ErrorCode.UNKNOWN))
    gate.set()
    sandbox = expect(await waiting, 200)["sandbox"]
    assert (sandbox["status"], sandbox["errorCode"], sandbox["errorRetryable"]) == ("FAILED", "UNKNOWN", False)


@pytest.mark.spec("SA-137", "SA-440")
async def test_wait_seconds_go_from_0_to_25(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    for value in ("0", "25"):
        expect(await api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=value), 200)
    for value in ("-1", "26", "2.5", "soon", ""):
        refused(await api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=value), 400, "waitSeconds")


@pytest.mark.spec("SA-136", "SA-435", "SA-010")
async def test_what_is_not_the_accounts_does_not_exist(plane: Plane, api: Api) -> None:
    stranger = await plane.add_account("stranger")
    theirs = expect(await stranger.create(), 201)["sandbox"]["sandboxId"]
    refused(await api.get("/sandbox", sandboxId=theirs), 404)
    refused(await api.get("/sandbox", sandboxId="not-a-uuid"), 404)
    refused(await api.get("/sandbox", sandboxId=None), 400, "sandboxId is required")
    refused(await api.get("/sandbox", sandboxId="x", accountId=None), 400, "accountId is required")
