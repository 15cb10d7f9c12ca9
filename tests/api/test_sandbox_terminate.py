"""Terminate a sandbox."""

from __future__ import annotations

import pytest
from tests.plane import Api, Plane, expect, refused, until

from atoll.domain.identity import Principal
from atoll.domain.sandbox import Sandbox
from atoll.ops import sandbox_terminate
from atoll.ops.services import Services

pytestmark = pytest.mark.both_databases


async def nothing_runs(plane: Plane) -> bool:
    """Whether the driver finds no instance."""
    return await plane.driver.list_instances() == []


@pytest.mark.spec("SA-142", "SA-146", "SA-064", "SA-368")
async def test_terminating_a_ready_sandbox_ends_it_and_everything_of_it(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox()
    answer = expect(await api.post("/sandbox/terminate", sandboxId=sandbox["sandboxId"]), 200)
    assert answer["success"] is True
    ended = answer["sandbox"]
    assert (ended["status"], ended["terminationReason"]) == ("TERMINATED", "USER_REQUESTED")
    assert ended["terminatedAt"] >= sandbox["createdAt"]
    assert ended["generation"] > sandbox["generation"]
    assert "desiredStatus" not in ended
    await until(lambda: nothing_runs(plane))
    steps = await plane.sql(
        "SELECT to_status FROM sandbox_events WHERE sandbox_id = :id ORDER BY generation", id=sandbox["sandboxId"]
    )
    assert [step for (step,) in steps][-2:] == ["TERMINATING", "TERMINATED"]


@pytest.mark.spec("SA-143", "SA-369")
async def test_terminating_again_returns_it_unchanged(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    first = expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)["sandbox"]
    again = expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)["sandbox"]
    assert {**again, "lastActiveAt": None, "updatedAt": None} == {**first, "lastActiveAt": None, "updatedAt": None}


@pytest.mark.spec("SA-144")
async def test_one_that_never_ran_goes_by_failed_and_leaves_no_compute(plane: Plane, api: Api) -> None:
    plane.driver.faults.hold("create")
    sandbox_id = expect(await api.create(), 201)["sandbox"]["sandboxId"]

    async def starting() -> bool:
        return bool((await api.sandbox(sandbox_id))["status"] == "STARTING")

    await until(starting)
    ended = expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)["sandbox"]
    assert ended["status"] == "TERMINATED"
    steps = await plane.sql(
        "SELECT to_status FROM sandbox_events WHERE sandbox_id = :id ORDER BY generation", id=sandbox_id
    )
    assert [step for (step,) in steps][-3:] == ["FAILED", "TERMINATING", "TERMINATED"]
    plane.driver.faults.hold("create").set()
    await until(lambda: nothing_runs(plane))


def overtake(plane: Plane, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Let another writer change the sandbox between the look of a terminate and its step."""
    genuine = sandbox_terminate._begin

    async def overtaken(services: Services, principal: Principal, seen: Sandbox) -> Sandbox:
        await plane.sql(f"UPDATE sandboxes SET generation = generation + 1, {change}")
        return await genuine(services, principal, seen)

    monkeypatch.setattr(sandbox_terminate, "_begin", overtaken)


@pytest.mark.spec("SA-145")
async def test_a_status_change_that_races_with_it_answers_409_and_a_retry_succeeds(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    overtake(plane, monkeypatch, "status = 'FAILED', error_code = 'UNKNOWN'")
    answer = await api.post("/sandbox/terminate", sandboxId=sandbox_id)
    assert refused(answer, 409)["error"] == "Sandbox is changing state"
    monkeypatch.undo()
    assert expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)["sandbox"]["status"] == "TERMINATED"


async def test_a_command_that_begins_meanwhile_does_not_refuse_it(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    overtake(plane, monkeypatch, "status = 'BUSY'")
    assert expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)["sandbox"]["status"] == "TERMINATED"


@pytest.mark.spec("SA-142", "SA-010", "SA-435")
async def test_it_needs_an_account_and_a_sandbox_of_it(plane: Plane, api: Api) -> None:
    refused(await api.post("/sandbox/terminate"), 400, "sandboxId is required")
    refused(await api.post("/sandbox/terminate", sandboxId="x", accountId=...), 400, "accountId is required")
    refused(await api.post("/sandbox/terminate", sandboxId="x"), 404)
    mine = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    stranger = await plane.add_account("stranger")
    refused(await stranger.post("/sandbox/terminate", sandboxId=mine), 404)
