"""Private sandboxes: who may do what in them."""

from __future__ import annotations

import pytest
from tests.plane import Api, Plane, expect, refused

from atoll.domain.identity import Role, TokenKind
from atoll.domain.template import PersistenceMode


async def others(plane: Plane) -> list[Api]:
    """Everyone of the account but the creator: an admin, a technical member, an OAuth app of somebody else."""
    return [
        await plane.caller(user="other-admin"),
        await plane.caller(user="technician", role=Role.TECHNICAL),
        await plane.caller(user="third", kind=TokenKind.OAUTH),
    ]


@pytest.mark.both_databases
@pytest.mark.spec("SA-331", "SA-337")
async def test_the_creator_runs_reads_and_stops_commands(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(private=True, persistenceMode="EPHEMERAL")
    assert sandbox["private"] is True
    sandbox_id = sandbox["sandboxId"]
    assert (await api.execute(sandbox_id, "true"))["exitCode"] == 0
    started = await api.start(sandbox_id, "sleep", "60")
    assert (await api.command(sandbox_id, started["executionId"]))["state"] == "running"
    expect(await api.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId=started["executionId"]), 200)
    same_user = await plane.caller(kind=TokenKind.OAUTH)
    assert (await same_user.execute(sandbox_id, "true"))["exitCode"] == 0


@pytest.mark.both_databases
@pytest.mark.spec("SA-332", "SA-334", "SA-335", "SA-336")
async def test_nobody_else_runs_reads_or_stops_anything_in_it(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    execution_id = (await api.start(sandbox_id, "sh", "-c", "echo mine; sleep 60"))["executionId"]
    before = await api.sandbox(sandbox_id)
    for other in await others(plane):
        command = {"sandboxId": sandbox_id, "command": ["touch", "/workspace/intruder"]}
        answers = [
            await other.post("/sandbox/execute", **command),
            await other.post("/sandbox/command/start", **command),
            await other.get("/sandbox/command", sandboxId=sandbox_id, executionId=execution_id),
            await other.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId=execution_id),
        ]
        for answer in answers:
            refused(answer, 403, "private")
    assert (await api.sandbox(sandbox_id))["lastActiveAt"] == before["lastActiveAt"], "a refused call is no activity"
    assert (await api.command(sandbox_id, execution_id))["state"] == "running"
    assert (await api.execute(sandbox_id, "test", "-e", "/workspace/intruder"))["exitCode"] == 1


@pytest.mark.spec("SA-338", "SA-339", "SA-334")
async def test_others_list_it_read_its_metadata_and_end_it(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox(private=True))["sandboxId"]
    execution_id = (await api.start(sandbox_id, "sleep", "60"))["executionId"]
    reader = await plane.caller(user="reader", role=Role.MEMBER)
    assert (await reader.sandbox(sandbox_id))["private"] is True
    assert expect(await reader.get("/sandbox", sandboxId=sandbox_id), 200)["sandbox"]["private"] is True
    refused(await reader.post("/sandbox/terminate", sandboxId=sandbox_id), 403)
    technician = await plane.caller(user="technician", role=Role.TECHNICAL)
    ended = expect(await technician.post("/sandbox/terminate", sandboxId=sandbox_id), 200)["sandbox"]
    assert ended["status"] == "TERMINATED"
    refused(await technician.get("/sandbox/command", sandboxId=sandbox_id, executionId=execution_id), 403, "private")


async def test_a_sandbox_is_open_to_its_account_unless_it_is_made_private(plane: Plane, api: Api) -> None:
    (admin, technician, app) = await others(plane)
    for body in ({}, {"private": False}):
        sandbox = await api.ready_sandbox(**body)
        assert not sandbox.get("private")
        for other in (admin, technician, app):
            assert (await other.execute(sandbox["sandboxId"], "true"))["exitCode"] == 0


@pytest.mark.parametrize("mode", ["DIRECTORY", "SNAPSHOT", "BOTH"])
@pytest.mark.spec("SA-116", "SA-340")
async def test_a_private_sandbox_with_a_volume_mode_is_refused(api: Api, mode: str) -> None:
    refused(await api.create(private=True, persistenceMode=mode), 400, "private", "EPHEMERAL")
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 0


@pytest.mark.both_databases
@pytest.mark.parametrize("mode", ["DIRECTORY", "SNAPSHOT", "BOTH"])
@pytest.mark.spec("SA-116")
async def test_a_private_sandbox_is_refused_when_the_revision_keeps_a_volume(plane: Plane, api: Api, mode: str) -> None:
    await plane.sql("UPDATE revisions SET persistence_mode = :mode", mode=str(PersistenceMode(mode)))
    refused(await api.create(private=True), 400, "private")
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 0
    expect(await api.create(private=True, persistenceMode="EPHEMERAL"), 201)


@pytest.mark.parametrize("value", ["true", 1, []])
async def test_private_is_a_boolean(api: Api, value: object) -> None:
    refused(await api.create(private=value), 400, "private")
