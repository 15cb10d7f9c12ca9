"""Processes and terminals through the gateway, without a WebSocket."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plane import PREFIX, Api, Plane, decoded, expect, refused, until

EVERYTHING = ["exec", "file", "pty", "signal", "status"]


class Gateway:
    """The holder of a session's token."""

    def __init__(self, caller: Api, endpoint: str, sandbox_id: str) -> None:
        self.caller, self.endpoint, self.sandbox_id = caller, endpoint, sandbox_id

    async def send(self, method: str, path: str, **options: Any) -> Any:
        """A call, by its path in the gateway."""
        return await self.caller.send(method, self.endpoint + path, **options)

    async def start(self, *command: str, **body: Any) -> str:
        """Start a process; its execution id."""
        answer = await self.send("POST", "/processes", json={"command": list(command), **body})
        return str(expect(answer, 201)["execution"]["executionId"])

    async def get(self, execution_id: str, **query: Any) -> dict[str, Any]:
        """A process as it is."""
        answer = await self.send("GET", f"/processes/{execution_id}", params=query)
        command: dict[str, Any] = expect(answer, 200)["command"]
        return command

    async def ended(self, execution_id: str) -> tuple[dict[str, Any], bytes, bytes]:
        """A process once it has ended, and what it said."""

        async def look() -> dict[str, Any] | None:
            command = await self.get(execution_id, waitSeconds=5)
            return command if command["complete"] else None

        command: dict[str, Any] = await until(look)
        said = [b"".join(decoded(event.get(name)) for event in command["events"]) for name in ("stdout", "stderr")]
        return command, said[0], said[1]


async def gateway(plane: Plane, *scopes: str, sandbox: dict[str, Any] | None = None) -> Gateway:
    """A session with these scopes, or all of them."""
    sandbox_id = (sandbox or await plane.api.ready_sandbox())["sandboxId"]
    answer = await plane.api.post("/sandbox/session", sandboxId=sandbox_id, scopes=list(scopes) or EVERYTHING)
    session = expect(answer, 200)
    return Gateway(plane.anonymous(session["token"]), session["endpoint"], sandbox_id)


@pytest.mark.both_databases
@pytest.mark.spec("SA-355", "SA-444", "SA-446")
async def test_a_process_is_started_and_read_like_a_command(plane: Plane) -> None:
    it = await gateway(plane)
    execution_id = await it.start("sh", "-c", "pwd; echo $NAME >&2; exit 3", cwd="/tmp", envVars={"NAME": "value"})
    command, stdout, stderr = await it.ended(execution_id)
    assert (command["exitCode"], stdout, stderr) == (3, b"/tmp\n", b"value\n")
    assert await plane.api.command(it.sandbox_id, execution_id) == command


@pytest.mark.spec("SA-329", "SA-341", "SA-342", "SA-444")
async def test_a_process_runs_with_an_ai_subscription_of_its_caller_in_a_private_sandbox_alone(plane: Plane) -> None:
    body = {"name": "n", "envVarName": "AI_TOKEN", "value": "secret"}
    answer = await plane.api.send("POST", f"{PREFIX}/ai-subscription", json=body)
    subscription = {"aiSubscriptionId": expect(answer, 201)["aiSubscription"]["aiSubscriptionId"]}
    it = await gateway(plane, sandbox=await plane.api.ready_sandbox(private=True))
    script = "printf %s $AI_TOKEN | tr a-z A-Z"
    terminal = {**subscription, "pty": {"rows": 9, "cols": 9}}
    for fields, said in ((subscription, b"SECRET"), ({}, b""), (terminal, b"SECRET")):
        _, stdout, _ = await it.ended(await it.start("sh", "-c", script, **fields))
        assert stdout == said
    unknown = await it.send("POST", "/processes", json={"command": ["true"], "aiSubscriptionId": "none"})
    refused(unknown, 404)
    shared = await gateway(plane)
    refused(await shared.send("POST", "/processes", json={"command": ["true"], **subscription}), 403)


@pytest.mark.spec("SA-444")
async def test_the_same_idempotency_key_starts_a_process_once_and_another_command_conflicts(plane: Plane) -> None:
    it = await gateway(plane)
    first = await it.start("sleep", "100", idempotencyKey="k", pty={"rows": 10, "cols": 10})
    assert await it.start("sleep", "100", idempotencyKey="k", pty={"rows": 20, "cols": 20}) == first
    for body in ({"command": ["sleep", "100"]}, {"command": ["sleep", "9"], "pty": {"rows": 1, "cols": 1}}):
        answer = await it.send("POST", "/processes", json={**body, "idempotencyKey": "k"})
        assert refused(answer, 409)["errorCode"] == "IDEMPOTENCY_CONFLICT"


@pytest.mark.spec("SA-444")
async def test_a_deadline_ends_a_process(plane: Plane) -> None:
    it = await gateway(plane)
    command, _, _ = await it.ended(await it.start("sleep", "100", timeoutSeconds=1))
    assert (command["exitCode"], command["reason"]) == (143, "deadline_exceeded")


@pytest.mark.spec("SA-444", "SA-449")
async def test_input_is_written_as_it_is_and_ended(plane: Plane) -> None:
    it = await gateway(plane)
    data = bytes(range(256)) * 4_096
    execution_id = await it.start("sha1sum", stdin=True)
    path = f"/processes/{execution_id}/stdin"
    assert expect(await it.send("POST", path, content=data), 200)["writtenBytes"] == len(data)
    expect(await it.send("POST", path, content=b"", params={"eof": "true"}), 200)
    _, stdout, _ = await it.ended(execution_id)
    expected = await plane.api.execute(
        it.sandbox_id, "python3", "-c", "import hashlib;print(hashlib.sha1(bytes(range(256))*4096).hexdigest())"
    )
    assert stdout.split()[0] == decoded(expected["stdout"]).strip()
    assert refused(await it.send("POST", path, content=b"x"), 409)["errorCode"] == "EXECUTION_EXITED"


async def test_input_of_a_process_without_any_is_refused(plane: Plane) -> None:
    it = await gateway(plane)
    execution_id = await it.start("sleep", "100")
    answer = await it.send("POST", f"/processes/{execution_id}/stdin", content=b"x")
    assert refused(answer, 400)["errorCode"] == "INVALID_REQUEST"


@pytest.mark.spec("SA-357", "SA-445", "SA-449")
async def test_a_terminal_has_a_size_that_changes(plane: Plane) -> None:
    it = await gateway(plane)
    execution_id = await it.start(
        "sh",
        "-c",
        "trap 'stty size; exit 0' WINCH; stty size; while :; do sleep 0.05; done",
        pty={"rows": 20, "cols": 70},
    )

    async def sized() -> bool:
        return any(b"20 70" in decoded(event.get("stdout")) for event in (await it.get(execution_id))["events"])

    await until(sized)
    path = f"/processes/{execution_id}/resize"
    assert expect(await it.send("POST", path, json={"rows": 33, "cols": 101}), 200) == {"success": True}
    _, stdout, _ = await it.ended(execution_id)
    assert stdout == b"20 70\r\n33 101\r\n"


async def test_a_process_without_a_terminal_is_not_resized(plane: Plane) -> None:
    it = await gateway(plane)
    execution_id = await it.start("sleep", "100")
    answer = await it.send("POST", f"/processes/{execution_id}/resize", json={"rows": 1, "cols": 1})
    assert refused(answer, 400)["errorCode"] == "INVALID_REQUEST"
    for size in ({"rows": 0, "cols": 1}, {"rows": 1, "cols": 5_000}, {"rows": 1}):
        refused(await it.send("POST", f"/processes/{execution_id}/resize", json=size), 400)


@pytest.mark.spec("SA-356", "SA-449")
@pytest.mark.parametrize(
    ("signal", "ends"), [("SIGTERM", (143, "canceled")), ("SIGKILL", (137, "canceled")), ("SIGUSR1", (138, None))]
)
async def test_a_signal_reaches_a_process(plane: Plane, signal: str, ends: tuple[int, str | None]) -> None:
    it = await gateway(plane)
    execution_id = await it.start("sleep", "100")
    answer = await it.send("POST", f"/processes/{execution_id}/signal", json={"signal": signal})
    assert expect(answer, 200) == {"success": True, "executionId": execution_id, "signal": signal}
    command, _, _ = await it.ended(execution_id)
    assert (command["exitCode"], command.get("reason")) == ends
    again = await it.send("POST", f"/processes/{execution_id}/signal", json={"signal": signal})
    assert refused(again, 409)["errorCode"] == "EXECUTION_EXITED"


async def test_a_process_is_stopped_and_continued(plane: Plane) -> None:
    it = await gateway(plane)
    execution_id = await it.start("sh", "-c", "echo a; read line; echo $line", stdin=True)
    for signal in ("SIGSTOP", "SIGCONT"):
        expect(await it.send("POST", f"/processes/{execution_id}/signal", json={"signal": signal}), 200)
    expect(await it.send("POST", f"/processes/{execution_id}/stdin", content=b"b\n"), 200)
    command, stdout, _ = await it.ended(execution_id)
    assert (command["exitCode"], stdout) == (0, b"a\nb\n")
    assert "reason" not in command


async def test_a_signal_that_is_not_sent_is_refused(plane: Plane) -> None:
    it = await gateway(plane)
    execution_id = await it.start("sleep", "100")
    for signal in ("SIGSEGV", "KILL", "9"):
        answer = await it.send("POST", f"/processes/{execution_id}/signal", json={"signal": signal})
        assert refused(answer, 400, "signal")["errorCode"] == "INVALID_REQUEST"


@pytest.mark.spec("SA-446")
async def test_processes_are_listed_those_that_run_first(plane: Plane) -> None:
    it = await gateway(plane)
    assert expect(await it.send("GET", "/processes"), 200)["processes"] == []
    terminal = await it.start("sh", "-c", "echo hello; sleep 100", pty={"rows": 5, "cols": 5})
    ended = await it.start("sh", "-c", "exit 4")
    await it.ended(ended)
    await plane.api.execute(it.sandbox_id, "true")

    async def listed() -> Any:
        found = expect(await it.send("GET", "/processes"), 200)["processes"]
        return found if found[0]["stdoutBytes"] else None

    first, second = await until(listed)
    assert (first["executionId"], first["type"], first["state"]) == (terminal, "PTY", "running")
    assert first["processId"] > 1
    assert (second["executionId"], second["type"], second["state"], second["exitCode"]) == (ended, "EXEC", "exited", 4)


async def test_an_unknown_process_is_not_found(plane: Plane) -> None:
    it, other = await gateway(plane), await gateway(plane)
    foreign = await other.start("sleep", "100")
    for execution_id in ("x", "00000000-0000-4000-8000-000000000000", foreign):
        for method, path, options in (
            ("GET", "", {}),
            ("POST", "/stdin", {"content": b"x"}),
            ("POST", "/signal", {"json": {"signal": "SIGTERM"}}),
            ("POST", "/resize", {"json": {"rows": 1, "cols": 1}}),
        ):
            answer = await it.send(method, f"/processes/{execution_id}{path}", **options)
            assert refused(answer, 404)["errorCode"] == "EXECUTION_NOT_FOUND"


@pytest.mark.spec("SA-359", "SA-445", "SA-449")
async def test_each_call_needs_its_scope(plane: Plane) -> None:
    sandbox = await plane.api.ready_sandbox()
    whole = await gateway(plane, sandbox=sandbox)
    execution_id = await whole.start("sleep", "100", pty={"rows": 9, "cols": 9})
    calls: list[tuple[str, str, str, dict[str, Any]]] = [
        ("exec", "POST", "/processes", {"json": {"command": ["true"]}}),
        ("pty", "POST", "/processes", {"json": {"command": ["true"], "pty": {"rows": 1, "cols": 1}}}),
        ("exec", "POST", f"/processes/{execution_id}/stdin", {"content": b"x"}),
        ("status", "GET", "/processes", {}),
        ("status", "GET", f"/processes/{execution_id}", {}),
        ("status", "GET", "/status", {}),
        ("pty", "POST", f"/processes/{execution_id}/resize", {"json": {"rows": 1, "cols": 1}}),
        ("exec", "GET", f"/processes/{execution_id}/stream", {}),
        ("signal", "POST", f"/processes/{execution_id}/signal", {"json": {"signal": "SIGCONT"}}),
    ]
    for scope, method, path, options in calls:
        without = await gateway(plane, *(set(EVERYTHING) - {scope}), sandbox=sandbox)
        body = refused(await without.send(method, path, **options), 403, scope)
        assert body["errorCode"] == "INSUFFICIENT_SCOPE"
        assert (await whole.send(method, path, **options)).status_code in {200, 201, 426}


async def test_the_token_is_looked_at_before_the_body(plane: Plane) -> None:
    it = await gateway(plane, "status")
    refused(await it.send("POST", "/processes", content=b"{"), 403, "exec")
    refused(await plane.anonymous("atollgw_x").send("POST", it.endpoint + "/processes", content=b"{"), 401)
    refused(await plane.anonymous().send("POST", it.endpoint + "/processes", json={}), 401)


@pytest.mark.spec("SA-333", "SA-334", "SA-335")
async def test_a_session_in_a_private_sandbox_is_its_creators_alone(plane: Plane) -> None:
    sandbox = await plane.api.ready_sandbox(private=True)
    it = await gateway(plane, sandbox=sandbox)
    execution_id = await it.start("sleep", "100")
    await plane.sql("UPDATE sandboxes SET caller_key = 'user:somebody'")
    refused(await it.send("GET", f"/processes/{execution_id}"), 403, "private")
    refused(await it.send("POST", "/processes", json={"command": ["true"]}), 403, "private")


@pytest.mark.spec("SA-373")
async def test_starting_a_process_resumes_a_paused_sandbox_and_reading_does_not(plane: Plane) -> None:
    sandbox = await plane.api.ready_sandbox(persistenceMode="SNAPSHOT")
    it = await gateway(plane, sandbox=sandbox)
    execution_id = await it.start("sleep", "100")
    expect(await plane.api.post("/sandbox/pause", sandboxId=it.sandbox_id), 200)
    answer = await it.send("GET", f"/processes/{execution_id}")
    assert refused(answer, 409)["errorCode"] == "SANDBOX_SUSPENDED"
    listed = expect(await it.send("GET", "/processes"), 200)["processes"]
    assert [(each["executionId"], each["reason"]) for each in listed] == [(execution_id, "agent_shutdown")]
    command, _, _ = await it.ended(await it.start("true"))
    assert command["exitCode"] == 0
