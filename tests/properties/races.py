"""Calls about one sandbox at the same moment: which comes first is open, and what may follow from it is not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
from tests.plane import Api, Plane, expect, until
from tests.properties.checks import SETTLE_SECONDS
from tests.properties.model import EITHER, ON_THE_WAY, RACED, RUNS, Box, Command, Model, Script

CALLS = ("start", "execute", "pause", "resume", "terminate", "connect", "kill")
ANSWERS = {
    "start": {201, 404, 409, 429, 503},
    "execute": {200, 404, 409, 429, 503},
    "pause": {200, 400, 409, 503},
    "resume": {200, 409, 429},
    "terminate": {200, 409},
    "connect": {200},
    "kill": {200, 404, 409, 503},
}
"""What each may answer when others come between; never a fault."""
_OVER = -1
"""The life of a command whose output may be gone or not."""
_STABLE = RUNS | {"SUSPENDED", "FAILED", "TERMINATED"}
_ALLOCATIONS = "SELECT count(*) FROM sandbox_events WHERE sandbox_id = :id AND action IN ('start', 'suspend', 'resume')"


async def race(plane: Plane, api: Api, model: Model, box: Box, calls: list[str], script: Script) -> None:
    """Make the calls, and take over into the model what came of them, as far as it may have come of them."""
    before = box.status
    [[instance]] = await plane.sql("SELECT instance_id FROM sandboxes WHERE id = :id", id=box.sandbox_id)
    answers = await asyncio.gather(*(_call(name, api, box, script) for name in calls))
    for name, answer in zip(calls, answers, strict=True):
        assert answer.status_code in ANSWERS[name], (calls, name, answer.status_code, answer.text)
    status, now_instance = await _settled(plane, model, box)
    ended = any(name == "terminate" and answer.status_code == 200 for name, answer in zip(calls, answers, strict=True))
    assert (status == "TERMINATED") == (ended or before == "TERMINATED"), (before, calls, status)
    assert before != "FAILED" or status in {"FAILED", "TERMINATED"}
    assert status != "FAILED" or before == "FAILED", (before, calls, "failed of itself")
    [[box.allocations]] = await plane.sql(_ALLOCATIONS, id=box.sandbox_id)
    if status == "TERMINATED":
        box.ended_by = box.ended_by or "USER_REQUESTED"
    box.status = status
    box.active_at = box.suspended_at = model.now
    if now_instance != instance or status not in RUNS:
        box.life += 1
    killed = None
    for name, answer in zip(calls, answers, strict=True):
        if name == "start" and answer.status_code == 201:
            _take_start(box, script, answer)
        elif name == "kill" and answer.status_code == 200:
            killed = answer.json()["executionId"]
    await _take_commands(api, box, killed)


async def _call(name: str, api: Api, box: Box, script: Script) -> httpx.Response:
    subject: dict[str, Any] = {"sandboxId": box.sandbox_id}
    match name:
        case "start":
            return await api.post("/sandbox/command/start", **subject, command=script.argv, idempotencyKey=script.name)
        case "execute":
            return await api.post("/sandbox/execute", **subject, command=["true"])
        case "connect":
            return await api.create(idempotencyKey=box.key, persistenceMode=box.mode)
        case "kill":
            running = [command.execution_id for command in box.running_commands]
            target = running[0] if running else "none"
            return await api.post("/sandbox/command/kill", **subject, executionId=target)
        case _:
            return await api.post(f"/sandbox/{name}", **subject)


async def _settled(plane: Plane, model: Model, box: Box) -> tuple[str, str | None]:
    """The status and the instance once nobody works on the sandbox any more."""
    deadline = time.monotonic() + SETTLE_SECONDS
    stable = _STABLE | ON_THE_WAY if model.held else _STABLE
    while True:
        [row] = await plane.sql(
            "SELECT status, instance_id, allocation_pending FROM sandboxes WHERE id = :id", id=box.sandbox_id
        )
        if row[0] in stable and not (row[2] and row[0] not in RUNS | ON_THE_WAY):
            return row[0], row[1]
        assert time.monotonic() < deadline, f"stuck: {row}"
        await asyncio.sleep(0.01)


def _take_start(box: Box, script: Script, answer: httpx.Response) -> None:
    """Two starts of one key in a race are one command."""
    execution_id = answer.json()["execution"]["executionId"]
    same = [command for command in box.commands if command.key == script.name]
    if same:
        assert same[0].execution_id == execution_id, "one key has started two commands"
        return
    said = f"{script.name}\n".encode()
    box.commands.append(Command(execution_id, script, script.name, box.life, said))


async def _take_commands(api: Api, box: Box, killed: str | None) -> None:
    """A command that ran may have been ended by one of the calls; one that had ended stays as it was."""
    for command in box.running_commands:
        if box.status == "SUSPENDED" or box.status in ON_THE_WAY:
            command.end(None, EITHER if command.execution_id == killed else "agent_shutdown")
            command.life = _OVER
            continue
        page = await _read(api, box, command, ends=command.execution_id == killed or box.status not in RUNS)
        if page["state"] == "exited":
            assert page["reason"] in RACED, page
            command.end(page["exitCode"], page["reason"])
            command.life = _OVER
    if box.status in RUNS:
        box.settle()


async def _read(api: Api, box: Box, command: Command, *, ends: bool) -> dict[str, Any]:
    """A command once it has said what it says at once, or has ended."""

    async def look() -> dict[str, Any] | None:
        answer = await api.get("/sandbox/command", sandboxId=box.sandbox_id, executionId=command.execution_id)
        page: dict[str, Any] = expect(answer, 200)["command"]
        said = page["stdoutBytes"] >= len(command.stdout) and not ends
        return page if page["state"] == "exited" or said else None

    found: dict[str, Any] = await until(look)
    return found
