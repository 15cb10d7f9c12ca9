"""Kill a command."""

from __future__ import annotations

import pytest
from tests.plane import Api, Plane, decoded, expect, refused, until


@pytest.mark.both_databases
@pytest.mark.spec("SA-279", "SA-283", "SA-281", "SA-264", "SA-272", "SA-437")
async def test_sigterm_is_sent_unless_another_signal_is_named(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    for sent, code in ((None, 143), ("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", 137)):
        execution = await api.start(sandbox_id, "sleep", "600")
        target = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
        named = {} if sent is None else {"signal": sent}
        answer = expect(await api.post("/sandbox/command/kill", **target, **named), 200)
        assert answer == {"success": True, "executionId": execution["executionId"], "signal": sent or "SIGTERM"}
        command, events = await api.finished(sandbox_id, execution["executionId"])
        assert (command["exitCode"], command["reason"]) == (code, "canceled")
        assert events[-1]["exit"] == {"exitCode": code, "reason": "canceled"}


@pytest.mark.spec("SA-282")
async def test_the_signal_reaches_children_that_left_for_sessions_of_their_own(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    script = "setsid sleep 600 & sh -c 'sleep 600 & wait' & echo up; wait"
    execution = await api.start(sandbox_id, "sh", "-c", script)
    await api.command(sandbox_id, execution["executionId"], waitSeconds=5)

    async def sleepers() -> int:
        found = await api.execute(sandbox_id, "sh", "-c", "ps -eo args | grep -c '^sleep 600'")
        return int(decoded(found["stdout"]))

    async def two() -> bool:
        return await sleepers() == 2

    await until(two)
    target = {"sandboxId": sandbox_id, "executionId": execution["executionId"], "signal": "SIGKILL"}
    expect(await api.post("/sandbox/command/kill", **target), 200)
    await api.finished(sandbox_id, execution["executionId"])

    async def none() -> bool:
        return await sleepers() == 0

    await until(none)


@pytest.mark.spec("SA-284", "SA-397")
async def test_a_command_that_has_exited_answers_409(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "true")
    await api.finished(sandbox_id, execution["executionId"])
    for _ in range(2):
        answer = await api.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId=execution["executionId"])
        refusal = refused(answer, 409)
        assert (refusal["errorCode"], refusal["data"]) == ("EXECUTION_EXITED", {"retryable": False})


@pytest.mark.spec("SA-281", "SA-279", "SA-440", "SA-010")
async def test_malformed_kills_are_refused_by_the_fields_name(api: Api) -> None:
    whole = {"sandboxId": "s", "executionId": "e"}
    for value in ("SIGHUP", "TERM", "sigterm", "9", 9, "", ["SIGTERM"]):
        refused(await api.post("/sandbox/command/kill", **whole, signal=value), 400, "signal")
    refused(await api.post("/sandbox/command/kill", sandboxId="s"), 400, "executionId is required")
    refused(await api.post("/sandbox/command/kill", executionId="e"), 400, "sandboxId is required")
    refused(await api.post("/sandbox/command/kill", **whole, accountId=...), 400, "accountId is required")


@pytest.mark.spec("SA-396", "SA-435")
async def test_an_id_that_the_sandbox_does_not_know_answers_404(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sleep", "600")
    answer = await api.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId="unknown")
    assert refused(answer, 404)["errorCode"] == "EXECUTION_NOT_FOUND"
    stranger = await plane.add_account("stranger")
    target = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
    refused(await stranger.post("/sandbox/command/kill", **target), 404)
    assert (await api.command(sandbox_id, execution["executionId"]))["state"] == "running"


@pytest.mark.spec("SA-386")
async def test_killing_a_command_of_a_paused_sandbox_says_that_it_is_paused(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "true")
    await api.finished(sandbox_id, execution["executionId"])
    plane.stop_workers()
    await plane.sql("UPDATE sandboxes SET status = 'SUSPENDED'")
    sent = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
    body = refused(await api.post("/sandbox/command/kill", **sent), 409)
    assert body["errorCode"] == "SANDBOX_SUSPENDED"
