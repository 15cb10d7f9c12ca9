"""Execute a command in a sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.plane import IMAGE, MISSING_IMAGE, Api, Plane, decoded, expect, refused, until

from atoll.agent import wire
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.ops import command_admission

SECRET = "correct-horse-battery-staple"


@pytest.mark.both_databases
@pytest.mark.spec("SA-212", "SA-213", "SA-214", "SA-224", "SA-228", "SA-230", "SA-232", "SA-437")
async def test_a_command_runs_as_argv_and_answers_with_its_exit_code_and_output(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    result = await api.execute(sandbox_id, "printf", "%s|", "two words", "$HOME", "*")
    assert result == {"exitCode": 0, "stdout": result["stdout"]}
    assert decoded(result["stdout"]) == b"two words|$HOME|*|"
    failed = await api.execute(sandbox_id, "sh", "-c", "echo no >&2; exit 3")
    assert failed == {"exitCode": 3, "stderr": failed["stderr"]}
    assert decoded(failed["stderr"]) == b"no\n"
    assert await api.execute(sandbox_id, "true") == {"exitCode": 0}


@pytest.mark.spec("SA-214", "SA-363", "SA-056")
async def test_a_sandbox_is_busy_while_a_command_runs_and_takes_more(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    slow = asyncio.create_task(api.execute(sandbox_id, "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"))

    async def busy() -> bool:
        return bool((await api.sandbox(sandbox_id))["status"] == "BUSY")

    await until(busy)
    assert "desiredStatus" not in await api.sandbox(sandbox_id)
    assert (await api.execute(sandbox_id, "touch", "go"))["exitCode"] == 0
    assert (await slow)["exitCode"] == 0

    async def idle() -> bool:
        return bool((await api.sandbox(sandbox_id))["status"] == "READY")

    await until(idle)


@pytest.mark.spec("SA-225", "SA-226")
async def test_directory_and_variables_are_the_commands_own(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    script = ["sh", "-c", 'pwd; printf %s "$GREETING"']
    told = await api.execute(sandbox_id, *script, cwd="/usr", envVars={"GREETING": "höhö = \n x"})
    assert decoded(told["stdout"]).decode() == "/usr\nhöhö = \n x"
    plain = await api.execute(sandbox_id, *script)
    assert decoded(plain["stdout"]) == b"/workspace\n"


@pytest.mark.spec("SA-098", "SA-226")
async def test_no_internal_variable_can_be_seen_or_set(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    environment = decoded((await api.execute(sandbox_id, "env"))["stdout"]).decode()
    assert "SANDBOX_AGENT_" not in environment
    assert "ATOLL_" not in environment
    body = {"sandboxId": sandbox_id, "command": ["env"], "envVars": {"SANDBOX_AGENT_X": "1"}}
    refused(await api.post("/sandbox/execute", **body), 400, "envVars", "SANDBOX_AGENT_")
    refused(await api.post("/sandbox/command/start", **body), 400, "envVars", "SANDBOX_AGENT_")


@pytest.mark.spec("SA-229", "SA-227")
async def test_a_command_over_its_deadline_ends_with_143(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    result = await api.execute(sandbox_id, "sh", "-c", "echo begun; sleep 60", timeoutSeconds=1)
    assert (result["exitCode"], result["reason"], decoded(result["stdout"])) == (143, "deadline_exceeded", b"begun\n")


@pytest.mark.spec("SA-227")
async def test_the_deadline_is_120_seconds_unless_sent_and_900_at_most(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    (instance,) = await plane.driver.list_instances()
    agent = await plane.services.agents.get(instance.instance_id)
    deadlines: list[float] = []
    genuine = agent.run

    async def watched(*arguments: Any, **options: Any) -> Any:
        deadlines.append(options["timeout_seconds"])
        return await genuine(*arguments, **options)

    monkeypatch.setattr(agent, "run", watched)
    await api.execute(sandbox_id, "true")
    await api.execute(sandbox_id, "true", timeoutSeconds=900)
    assert deadlines == [120, 900]
    for value in (901, 0, -1, 1.5, "60", 2**70):
        body = {"sandboxId": sandbox_id, "command": ["true"], "timeoutSeconds": value}
        refused(await api.post("/sandbox/execute", **body), 400, "timeoutSeconds")


@pytest.mark.spec("SA-234")
async def test_a_command_that_something_else_kills_has_the_reason_killed(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    result = await api.execute(sandbox_id, "sh", "-c", "kill -KILL $$")
    assert (result["exitCode"], result["reason"]) == (137, "killed")


@pytest.mark.spec("SA-235")
async def test_a_command_whose_sandbox_is_terminated_answers_agent_shutdown(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    running = asyncio.create_task(api.execute(sandbox_id, "sleep", "60"))

    async def busy() -> bool:
        return bool((await api.sandbox(sandbox_id))["status"] == "BUSY")

    await until(busy)
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    assert (await running)["reason"] == "agent_shutdown"


@pytest.mark.spec("SA-230", "SA-231")
async def test_output_of_each_stream_is_kept_up_to_a_bound_and_cut_beyond(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    size = 3_000_000
    whole = await api.execute(sandbox_id, "head", "-c", str(size), "/dev/zero")
    assert decoded(whole["stdout"]) == bytes(size)
    assert "stdoutTruncated" not in whole
    both = await api.execute(sandbox_id, "sh", "-c", "head -c 6000000 /dev/zero; echo fine >&2")
    assert both["stdoutTruncated"] is True
    assert "stderrTruncated" not in both
    assert decoded(both["stderr"]) == b"fine\n"
    other = await api.execute(sandbox_id, "sh", "-c", "head -c 6000000 /dev/zero >&2")
    assert other["stderrTruncated"] is True
    assert "stdout" not in other


@pytest.mark.spec("SA-220", "SA-387", "SA-439")
async def test_a_sandbox_that_still_starts_answers_a_retryable_409(plane: Plane, api: Api) -> None:
    gate = plane.driver.faults.hold("create")
    sandbox_id = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    for path in ("/sandbox/execute", "/sandbox/command/start"):
        answer = await api.post(path, sandboxId=sandbox_id, command=["true"])
        body = refused(answer, 409)
        assert body["errorCode"] == "SANDBOX_NOT_READY"
        assert body["data"]["retryable"] is True
        assert answer.headers["retry-after"] == str(body["data"]["retryAfterSeconds"])
    gate.set()
    await api.settled(sandbox_id)
    assert (await api.execute(sandbox_id, "true"))["exitCode"] == 0


@pytest.mark.spec("SA-221", "SA-390")
async def test_a_sandbox_that_failed_or_ended_runs_nothing(api: Api) -> None:
    ended = (await api.ready_sandbox())["sandboxId"]
    expect(await api.post("/sandbox/terminate", sandboxId=ended), 200)
    body = {"templateId": api.ids.template, "imageDigest": MISSING_IMAGE}
    expect(await api.post("/sandbox-template/revision", **body), 201)
    failed = expect(await api.create(), 201)["sandbox"]["sandboxId"]
    assert (await api.settled(failed))["status"] == "FAILED"
    for sandbox_id in (ended, failed):
        refusal = refused(await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"]), 404)
        assert (refusal["errorCode"], refusal["data"]) == ("SANDBOX_NOT_FOUND", {"retryable": False})


@pytest.mark.spec("SA-388", "SA-385", "SA-439")
async def test_an_agent_that_cannot_be_reached_answers_a_retryable_503(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    (instance,) = await plane.driver.list_instances()
    plane.stop_workers()
    await plane.services.agents.drop(instance.instance_id)
    failure = RuntimeFailure("The agent does not answer.", code=ErrorCode.AGENT_UNREACHABLE)
    plane.driver.faults.fail_next("connect", failure)
    answer = await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"])
    body = refused(answer, 503)
    assert body["errorCode"] == "AGENT_UNREACHABLE"
    assert body["data"]["retryable"] is True
    assert answer.headers["retry-after"] == str(body["data"]["retryAfterSeconds"])
    assert (await api.execute(sandbox_id, "true"))["exitCode"] == 0


@pytest.mark.spec("SA-391", "SA-392", "SA-393", "SA-394", "SA-395", "SA-400", "SA-401", "SA-385")
async def test_every_failure_of_the_runtime_surfaces_as_its_code_and_never_as_its_text(plane: Plane, api: Api) -> None:
    statuses = {
        ErrorCode.NAMESPACE_DENIED: 403,
        ErrorCode.UNAUTHENTICATED: 401,
        ErrorCode.TOKEN_EXPIRED: 401,
        ErrorCode.INSUFFICIENT_SCOPE: 403,
        ErrorCode.PATH_ESCAPE: 400,
        ErrorCode.INVALID_REQUEST: 400,
        ErrorCode.UNKNOWN: 502,
    }
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    (instance,) = await plane.driver.list_instances()
    plane.stop_workers()
    for code, status in statuses.items():
        await plane.services.agents.drop(instance.instance_id)
        plane.driver.faults.fail_next("connect", RuntimeFailure("The runtime refused.", code=code))
        answer = await api.client.post(
            "/api/public/v1/sandbox/execute",
            headers={"Authorization": f"Bearer {api.token}"},
            json={"accountId": api.ids.account, "sandboxId": sandbox_id, "command": ["true"]},
        )
        body = expect(answer, status)
        assert (body["errorCode"], body["data"]) == (code, {"retryable": False})


@pytest.mark.spec("SA-224", "SA-212", "SA-440")
async def test_a_malformed_command_is_refused_by_the_fields_name(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"command": "echo hello"}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command.0"),
        ({"command": ["a", 5]}, "command.1"),
        ({"command": ["a\x00b"]}, "command.0"),
        ({"command": None}, "command"),
        ({"command": ["a"], "cwd": ""}, "cwd"),
        ({"command": ["a"], "cwd": "/\x00"}, "cwd"),
        ({"command": ["a"], "cwd": 5}, "cwd"),
        ({"command": ["a"], "envVars": ["A=b"]}, "envVars"),
        ({"command": ["a"], "envVars": {"A": 5}}, "envVars.A"),
        ({"command": ["a"], "envVars": {"A=B": "c"}}, "envVars.A=B"),
        ({"command": ["a"], "envVars": {"": "c"}}, "envVars"),
        ({"command": ["a"], "envVars": {"A": "\x00"}}, "envVars.A"),
        ({"command": ["x" * 131_072]}, "command.0"),
        ({"command": ["x" * 100_000] * 3}, "command"),
        ({"command": ["a"], "envVars": {str(n): "x" * 100_000 for n in range(3)}}, "envVars"),
        ({"command": ["a"], "shell": True}, "shell"),
        ({"command": ["a"], "idempotencyKey": "k"}, "idempotencyKey"),
    ]
    for body, field in bad:
        refused(await api.post("/sandbox/execute", sandboxId=sandbox_id, **body), 400, field)
    refused(await api.post("/sandbox/execute", sandboxId=sandbox_id), 400, "command is required")
    refused(await api.post("/sandbox/execute", command=["true"]), 400, "sandboxId is required")
    refused(await api.post("/sandbox/execute", command=["a"], sandboxId="s", accountId=...), 400, "accountId")
    largest = await api.execute(sandbox_id, "sh", "-c", "echo $#", "sh", *["x" * 100_000] * 2)
    assert decoded(largest["stdout"]) == b"2\n"


@pytest.mark.spec("SA-400")
async def test_a_directory_that_is_not_there_is_the_runtimes_refusal(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    body = {"sandboxId": sandbox_id, "command": ["true"], "cwd": "/nowhere"}
    for path in ("/sandbox/execute", "/sandbox/command/start"):
        assert refused(await api.post(path, **body), 400)["errorCode"] == "INVALID_REQUEST"
    assert (await api.sandbox(sandbox_id))["status"] == "READY"


@pytest.mark.spec("SA-213")
async def test_a_program_that_is_not_there_is_the_commands_own_failure(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    assert (await api.execute(sandbox_id, "/no/such/program"))["exitCode"] == 127
    assert (await api.execute(sandbox_id, "/etc"))["exitCode"] == 126


@pytest.mark.spec("SA-236", "SA-061")
async def test_executing_postpones_the_idle_timeout(plane: Plane, api: Api) -> None:
    body = {"templateId": api.ids.template, "imageDigest": IMAGE, "idleTimeoutSeconds": 60}
    expect(await api.post("/sandbox-template/revision", **body), 201)
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    for _ in range(3):
        before = (await api.sandbox(sandbox_id))["lastActiveAt"]
        await plane.let_pass(50)
        await api.execute(sandbox_id, "true")
        assert (await api.sandbox(sandbox_id))["lastActiveAt"] > before


@pytest.mark.spec("SA-216", "SA-237", "SA-238", "SA-248", "SA-278")
async def test_the_record_of_a_command_has_its_exit_code_and_never_what_it_was_or_said(
    plane: Plane, api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    whole = ["sh", "-c", f"echo out-{SECRET}; echo err-{SECRET} >&2; exit 7"]
    variables = {f"NAME_{SECRET.replace('-', '_')}": SECRET}
    await api.execute(sandbox_id, *whole, envVars=variables)
    started = await api.start(sandbox_id, *whole, envVars=variables, idempotencyKey="key")
    await api.finished(sandbox_id, started["executionId"])

    async def recorded() -> bool:
        rows = await plane.sql("SELECT kind, exit_code, state FROM commands ORDER BY kind")
        return rows == [("EXECUTE", 7, "EXITED"), ("START", 7, "EXITED")]

    await until(recorded)
    files = [path for path in plane.services.settings.data_dir.rglob("*") if path.is_file()]
    assert any(path.name.startswith("atoll.db") for path in files)
    logged = capfd.readouterr()
    for kept in (*(path.read_bytes() for path in files), logged.out.encode(), logged.err.encode()):
        assert SECRET.encode() not in kept
        assert SECRET.replace("-", "_").encode() not in kept
    assert "sandbox/execute" in logged.out


async def pause(plane: Plane, sandbox_id: str) -> None:
    """Put a sandbox where a pause leaves it; pausing itself comes with volumes."""
    (instance,) = await plane.driver.list_instances()
    await plane.sql(
        "UPDATE sandboxes SET status = 'SUSPENDED', suspended_at = created_at, instance_id = NULL,"
        " allocation_pending = false WHERE id = :id",
        id=sandbox_id,
    )
    await plane.services.agents.drop(instance.instance_id)
    await plane.driver.cleanup(instance.instance_id)


@pytest.mark.both_databases
@pytest.mark.spec("SA-217", "SA-222", "SA-063", "SA-243")
async def test_any_number_of_commands_at_once_resume_a_paused_sandbox_once(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    await pause(plane, sandbox_id)
    command = {"sandboxId": sandbox_id, "command": ["true"]}
    answers = await asyncio.gather(
        *(api.post("/sandbox/execute", **command) for _ in range(6)),
        *(api.post("/sandbox/command/start", **command) for _ in range(2)),
    )
    # Whoever begins the resume waits for it; who comes while it is under way may be told to come again.
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    assert any(answer.status_code in {200, 201} for answer in answers)
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["data"]["retryable"] is True
    steps = await plane.sql("SELECT to_status FROM sandbox_events WHERE sandbox_id = :id", id=sandbox_id)
    assert [step for (step,) in steps].count("RESUMING") == 1
    assert (await api.sandbox(sandbox_id))["resumedAt"]


@pytest.mark.spec("SA-218", "SA-219", "SA-243", "SA-367", "SA-439")
async def test_a_resume_that_outlasts_the_request_answers_a_retryable_409(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    await pause(plane, sandbox_id)
    gate = plane.driver.faults.hold("create")
    monkeypatch.setattr(command_admission, "RESUME_WAIT_SECONDS", 0.3)
    for path in ("/sandbox/execute", "/sandbox/command/start"):
        answer = await api.post(path, sandboxId=sandbox_id, command=["true"])
        body = refused(answer, 409)
        assert body["data"]["retryable"] is True
        assert answer.headers["retry-after"] == str(body["data"]["retryAfterSeconds"])
        assert (await api.sandbox(sandbox_id))["status"] == "RESUMING"
    gate.set()
    await api.settled(sandbox_id)
    assert (await api.execute(sandbox_id, "true"))["exitCode"] == 0


@pytest.mark.spec("SA-126")
async def test_a_reconnect_resumes_a_paused_sandbox(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox(idempotencyKey="k"))["sandboxId"]
    await pause(plane, sandbox_id)
    again = expect(await api.create(idempotencyKey="k"), 200)["sandbox"]
    assert (again["sandboxId"], again["status"]) == (sandbox_id, "RESUMING")
    assert (await api.settled(sandbox_id))["status"] == "READY"


@pytest.mark.spec("SA-219", "SA-386", "SA-417", "SA-439")
async def test_a_paused_sandbox_at_capacity_stays_paused_and_so_says_the_refusal(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox(idempotencyKey="k"))["sandboxId"]
    await pause(plane, sandbox_id)
    expect(await api.create(), 201)
    await plane.sql("UPDATE accounts SET active_sandbox_limit = 1")
    answer = await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"])
    body = refused(answer, 429)
    assert (body["data"]["reason"], body["data"]["retryable"]) == ("account_concurrency_exceeded", True)
    assert answer.headers["retry-after"] == str(body["data"]["retryAfterSeconds"])
    assert expect(await api.create(idempotencyKey="k"), 200)["sandbox"]["status"] == "SUSPENDED"
    plane.stop_workers()
    await plane.sql("UPDATE sandboxes SET status = 'SUSPENDING' WHERE id = :id", id=sandbox_id)
    answer = await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"])
    assert refused(answer, 409)["data"]["retryable"] is True


@pytest.mark.spec("SA-215")
async def test_a_sandbox_deployed_without_our_agent_answers_409_and_is_left_alone(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await api.ready_sandbox()
    # What an agent of another time says is refused by the real client at its first frame.
    monkeypatch.setattr(wire, "PROTOCOL_VERSION", wire.PROTOCOL_VERSION + 1)
    [(instance_id,)] = await plane.sql("SELECT instance_id FROM sandboxes")
    await plane.services.agents.drop(instance_id)
    for path in ("execute", "command/start"):
        body = refused(await api.post(f"/sandbox/{path}", sandboxId=sandbox["sandboxId"], command=["true"]), 409)
        assert "agent" in body["error"]
        assert body.get("data", {}).get("retryable") is not True
    assert await plane.sql("SELECT id FROM commands") == []
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "READY"


@pytest.mark.spec("SA-214")
async def test_a_command_in_a_sandbox_that_failed_says_why_also_when_it_fails_meanwhile(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    running = asyncio.create_task(api.post("/sandbox/execute", sandboxId=sandbox_id, command=["sleep", "60"]))

    async def is_busy() -> bool:
        return (await api.sandbox(sandbox_id))["status"] == "BUSY"

    await until(is_busy)
    [(instance_id,)] = await plane.sql("SELECT instance_id FROM sandboxes")
    await plane.driver.kill_from_outside(instance_id)
    first = refused(await running, 404, "killed from outside", "Create a new one")
    assert first["errorCode"] == "SANDBOX_NOT_FOUND"
    assert (await api.sandbox(sandbox_id))["statusReason"] == "killed from outside"
    refused(await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"]), 404, "killed from outside")
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    refused(await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"]), 404, "killed from outside")
