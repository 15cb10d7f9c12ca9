"""Start a command."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.plane import IMAGE, Api, Plane, decoded, expect, refused, until


@pytest.mark.both_databases
@pytest.mark.spec("SA-239", "SA-241", "SA-246", "SA-252", "SA-437", "SA-442")
async def test_it_answers_201_once_the_process_runs_and_the_command_goes_on(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(
        sandbox_id, "sh", "-c", 'while [ ! -e go ]; do sleep 0.05; done; printf %s "$1"', "-", "a b"
    )
    assert isinstance(execution["processId"], int)
    assert (await api.command(sandbox_id, execution["executionId"]))["state"] == "running"
    assert (await api.sandbox(sandbox_id))["status"] == "BUSY"
    await api.execute(sandbox_id, "touch", "go")
    command, events = await api.finished(sandbox_id, execution["executionId"])
    assert (command["state"], command["exitCode"]) == ("exited", 0)
    assert b"".join(decoded(event.get("stdout")) for event in events) == b"a b"


@pytest.mark.spec("SA-247", "SA-248")
async def test_directory_and_variables_are_the_commands_own(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    script = ["sh", "-c", 'pwd; echo "$GREETING"']
    execution = await api.start(sandbox_id, *script, cwd="/usr", envVars={"GREETING": "hello"})
    _, events = await api.finished(sandbox_id, execution["executionId"])
    assert b"".join(decoded(event.get("stdout")) for event in events) == b"/usr\nhello\n"


@pytest.mark.spec("SA-249", "SA-242", "SA-263")
async def test_a_deadline_ends_it_and_without_one_the_agent_is_told_of_none(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    (instance,) = await plane.driver.list_instances()
    agent = await plane.services.agents.get(instance.instance_id)
    deadlines: list[float | None] = []
    genuine = agent.start

    async def watched(*arguments: Any, **options: Any) -> Any:
        deadlines.append(options["timeout_seconds"])
        return await genuine(*arguments, **options)

    monkeypatch.setattr(agent, "start", watched)
    await api.start(sandbox_id, "true")
    await api.start(sandbox_id, "true", timeoutSeconds=604_800)
    ended = await api.start(sandbox_id, "sleep", "60", timeoutSeconds=1)
    assert deadlines == [None, 604_800, 1]
    command, events = await api.finished(sandbox_id, ended["executionId"])
    assert (command["exitCode"], command["reason"]) == (143, "deadline_exceeded")
    assert events[-1]["exit"] == {"exitCode": 143, "reason": "deadline_exceeded"}
    for value in (604_801, 0, -1, 1.5, "60"):
        body = {"sandboxId": sandbox_id, "command": ["true"], "timeoutSeconds": value}
        refused(await api.post("/sandbox/command/start", **body), 400, "timeoutSeconds")


@pytest.mark.spec("SA-244", "SA-370", "SA-363")
async def test_a_sandbox_with_a_started_command_is_never_idle(plane: Plane, api: Api) -> None:
    body = {"templateId": api.ids.template, "imageDigest": IMAGE, "idleTimeoutSeconds": 60}
    expect(await api.post("/sandbox-template/revision", **body), 201)
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sleep", "600")
    await plane.let_pass(1_000)
    assert (await api.sandbox(sandbox_id))["status"] == "BUSY"
    target = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
    expect(await api.post("/sandbox/command/kill", **target, signal="SIGKILL"), 200)

    async def idle() -> bool:
        return bool((await api.sandbox(sandbox_id))["status"] == "READY")

    await until(idle)
    await plane.let_pass(61)
    assert (await plane.ended(sandbox_id))["terminationReason"] == "IDLE_TIMEOUT"


@pytest.mark.spec("SA-245", "SA-266", "SA-371")
async def test_the_hard_lifetime_ends_a_sandbox_and_its_commands(plane: Plane, api: Api) -> None:
    body = {"templateId": api.ids.template, "imageDigest": IMAGE, "hardLifetimeSeconds": 100}
    expect(await api.post("/sandbox-template/revision", **body), 201)
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sleep", "600")
    await plane.let_pass(101)
    assert (await plane.ended(sandbox_id))["terminationReason"] == "HARD_LIFETIME"
    command = await api.command(sandbox_id, execution["executionId"])
    assert (command["state"], command["reason"]) == ("exited", "agent_shutdown")


@pytest.mark.both_databases
@pytest.mark.spec("SA-251", "SA-250", "SA-252")
async def test_twenty_starts_at_once_with_one_key_run_it_once(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    script = ["sh", "-c", "echo ran >> log; sleep 0.3"]
    started = await asyncio.gather(*(api.start(sandbox_id, *script, idempotencyKey="k") for _ in range(20)))
    assert len({execution["executionId"] for execution in started}) == 1
    await api.finished(sandbox_id, started[0]["executionId"])
    again = await api.start(sandbox_id, *script, idempotencyKey="k")
    assert again == {**started[0], "startedAt": again["startedAt"]}
    assert again["processId"] > 0
    assert decoded((await api.execute(sandbox_id, "cat", "log"))["stdout"]) == b"ran\n"
    other = await api.start(sandbox_id, *script, idempotencyKey="another")
    assert other["executionId"] != again["executionId"]


@pytest.mark.spec("SA-399")
async def test_a_key_of_a_different_command_starts_nothing(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    await api.start(sandbox_id, "true", idempotencyKey="k", envVars={"A": "1"})
    different: list[dict[str, Any]] = [
        {"command": ["touch", "marker"]},
        {"command": ["true"]},
        {"command": ["true"], "envVars": {"A": "2"}},
        {"command": ["true"], "envVars": {"A": "1"}, "cwd": "/usr"},
        {"command": ["true"], "envVars": {"A": "1"}, "timeoutSeconds": 5},
    ]
    for body in different:
        answer = await api.post("/sandbox/command/start", sandboxId=sandbox_id, idempotencyKey="k", **body)
        refusal = refused(answer, 409)
        assert (refusal["errorCode"], refusal["data"]) == ("IDEMPOTENCY_CONFLICT", {"retryable": False})
    assert (await api.execute(sandbox_id, "test", "-e", "marker"))["exitCode"] == 1


@pytest.mark.spec("SA-250", "SA-246", "SA-239", "SA-440")
async def test_malformed_starts_are_refused_by_the_fields_name(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    base = {"sandboxId": sandbox_id, "command": ["true"]}
    expect(await api.post("/sandbox/command/start", **base, idempotencyKey="k" * 200), 201)
    for key in ("k" * 201, "", 5, "\x00"):
        refused(await api.post("/sandbox/command/start", **base, idempotencyKey=key), 400, "idempotencyKey")
    refused(await api.post("/sandbox/command/start", sandboxId=sandbox_id, command="ls -l"), 400, "command")
    refused(await api.post("/sandbox/command/start", sandboxId=sandbox_id), 400, "command is required")
    refused(await api.post("/sandbox/command/start", command=["a"]), 400, "sandboxId is required")
    refused(await api.post("/sandbox/command/start", **base, accountId=...), 400, "accountId is required")


@pytest.mark.spec("SA-398")
async def test_the_257th_command_at_once_is_refused_until_one_has_finished(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    started = []
    for _ in range(8):
        started += await asyncio.gather(*(api.start(sandbox_id, "sleep", "600") for _ in range(32)))
    answer = await api.post("/sandbox/command/start", sandboxId=sandbox_id, command=["true"])
    body = refused(answer, 429)
    assert body["errorCode"] == "TOO_MANY_EXECUTIONS"
    assert body["data"]["retryable"] is True
    assert answer.headers["retry-after"] == str(body["data"]["retryAfterSeconds"])
    refused(await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"]), 429)
    target = {"sandboxId": sandbox_id, "executionId": started[0]["executionId"], "signal": "SIGKILL"}
    expect(await api.post("/sandbox/command/kill", **target), 200)
    await api.finished(sandbox_id, started[0]["executionId"])
    assert (await api.execute(sandbox_id, "true"))["exitCode"] == 0
