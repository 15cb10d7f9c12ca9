"""What holds after every step, whatever the steps were: looked up at the API, in the database and at the driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

from tests.plane import Api, Plane, decoded, expect
from tests.properties.model import EITHER, ON_THE_WAY, RACED, RUNS, Box, Command, Model

from atoll.domain.sandbox import TRANSITIONS
from atoll.domain.times import rfc3339
from atoll.store.tables.base import EPOCH

SETTLE_SECONDS = 30.0
BILLED = {"STARTING", "READY", "BUSY", "SUSPENDING", "RESUMING"}
PAGE = 2
_TRANSITIONS = {(str(before), str(action)): str(after) for (before, action), after in TRANSITIONS.items()}

_ROWS = """
    SELECT id, status, generation, instance_id, allocation_pending, idempotency_key FROM sandboxes
    WHERE account_id = :account ORDER BY id
"""
_EVENTS = """
    SELECT generation, action, from_status, to_status, occurred_at FROM sandbox_events
    WHERE sandbox_id = :id ORDER BY generation
"""


async def check_everything(plane: Plane, api: Api, model: Model) -> None:
    """Wait until the account is as the model says, then hold everything else against it."""
    rows = await settled(plane, api, model)
    await _check_list(api, model)
    _check_machine({it.instance_id for it in await plane.driver.list_instances()}, rows)
    _check_capacity(rows, model)
    used = {it["sandboxId"]: it["intervals"] for it in expect(await api.get("/usage"), 200)["sandboxes"]}
    for box in model.boxes.values():
        history = await plane.sql(_EVENTS, id=box.sandbox_id)
        _check_history(box, history)
        _check_usage(box, history, used.get(box.sandbox_id, []))
        for command in box.commands:
            await check_command(api, box, command)
        if box.commands and box.status in RUNS:
            box.active_at = model.now  # reading a command is activity


async def settled(plane: Plane, api: Api, model: Model) -> list[tuple[Any, ...]]:
    """Wait for what workers still do, and return the rows of the account."""
    wanted = sorted((box.sandbox_id, box.status, box.key) for box in model.boxes.values())
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        rows = await plane.sql(_ROWS, account=api.ids.account)
        found = [(row[0], row[1], row[5]) for row in rows]
        pending = [row for row in rows if row[4] and row[1] not in RUNS | ON_THE_WAY]
        if found == wanted and not pending:
            return rows
        assert time.monotonic() < deadline, f"\n found {found}\nwanted {wanted}\ncompute pending {pending}"
        await asyncio.sleep(0.01)


async def _check_list(api: Api, model: Model) -> None:
    """The list has every sandbox once, by pages too, and says what the model says."""
    shown: list[dict[str, Any]] = []
    for page in range(1, len(model.boxes) // PAGE + 2):
        answer = expect(await api.get("/sandboxes", limit=PAGE, page=page), 200)
        assert answer["totalCount"] == len(model.boxes)
        shown += answer["sandboxes"]
    assert len({sandbox["sandboxId"] for sandbox in shown}) == len(shown) == len(model.boxes)
    by_id = {box.sandbox_id: box for box in model.boxes.values()}
    for sandbox in shown:
        box = by_id[sandbox["sandboxId"]]
        assert (sandbox["status"], sandbox["persistenceMode"]) == (box.status, box.mode)
        assert sandbox.get("terminationReason") == box.ended_by
        assert (sandbox["status"] == "FAILED") <= ("errorCode" in sandbox), sandbox
        assert ("desiredStatus" in sandbox) == (box.status in ON_THE_WAY), sandbox
        assert sandbox["generation"] >= box.generation, "a generation has fallen"
        box.generation = sandbox["generation"]


def _check_machine(instances: set[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """The driver has what sandboxes run in, and nothing else."""
    running = {row[3] for row in rows if row[1] in RUNS}
    coming = {row[3] for row in rows if row[1] in ON_THE_WAY}
    assert running <= instances <= running | coming


def _check_capacity(rows: Sequence[tuple[Any, ...]], model: Model) -> None:
    """What counts toward the ceiling is what lives, and it stays under the ceiling."""
    counted = sum(row[1] not in {"SUSPENDED", "TERMINATED"} or bool(row[4]) for row in rows)
    assert counted == model.holding <= model.ceiling


def _check_history(box: Box, history: Sequence[tuple[Any, ...]]) -> None:
    """One event for every status change, without a gap, each an allowed step from where the last one led."""
    assert [event[0] for event in history] == list(range(len(history)))
    assert history[-1][0] == box.generation
    assert history[-1][3] == box.status
    assert (history[0][2], history[0][3]) == (None, "REQUESTED")
    for before, event in pairwise(history):
        assert event[2] == before[3], (before, event)
        assert _TRANSITIONS[event[2], event[1]] == event[3], event
        assert event[4] >= before[4], "time ran backwards"
    assert sum(event[3] in {"STARTING", "RESUMING", "SUSPENDING"} for event in history) == box.allocations


def _check_usage(box: Box, history: Sequence[tuple[Any, ...]], told: Sequence[dict[str, str]]) -> None:
    """What held compute was billed, from the second it did, each allocation for itself (SA-379 … SA-384)."""
    expected: list[list[int | None]] = []
    for position, event in enumerate(history):
        end = history[position + 1][4] if position + 1 < len(history) else None
        if event[3] not in BILLED:
            continue
        if event[3] in {"STARTING", "SUSPENDING", "RESUMING"}:
            expected.append([event[4], end])
        else:
            expected[-1][1] = end
    assert [[it["startedAt"], it.get("endedAt")] for it in told] == [
        [_rendered(moment) for moment in interval] for interval in expected
    ], box
    assert len(told) == box.allocations


def _rendered(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else rfc3339(EPOCH + timedelta(milliseconds=milliseconds))


async def check_command(api: Api, box: Box, command: Command) -> None:
    """A command is there with its state, and its output as long as its sandbox runs."""
    answer = await api.get("/sandbox/command", sandboxId=box.sandbox_id, executionId=command.execution_id)
    if box.status == "SUSPENDED" or box.status in ON_THE_WAY:
        code = "SANDBOX_SUSPENDED" if box.status == "SUSPENDED" else "SANDBOX_NOT_READY"
        assert (answer.status_code, answer.json()["errorCode"]) == (409, code)
        return
    page = expect(answer, 200)["command"]
    assert page["state"] == ("running" if command.running else "exited"), (box, command, page)
    events = page["events"]
    if command.life == box.life and box.status in RUNS:
        assert [event["seq"] for event in events] == list(range(page["nextSeq"]))
        assert b"".join(decoded(event.get("stdout")) for event in events) == command.stdout
        assert b"".join(decoded(event.get("stderr")) for event in events) == command.stderr
        assert (page["stdoutBytes"], page["stderrBytes"]) == (len(command.stdout), len(command.stderr))
    if command.running:
        assert not page["complete"]
        return
    assert page["complete"]
    assert events[-1]["seq"] == page["nextSeq"] - 1
    assert events[-1]["exit"].get("reason") == page.get("reason")
    assert page.get("reason") in (RACED if command.reason == EITHER else {command.reason})
    if command.exit_code is not None:
        assert events[-1]["exit"]["exitCode"] == page["exitCode"] == command.exit_code
    told = tuple(
        page.get(name) for name in ("exitCode", "reason", "startedAt", "exitedAt", "stdoutBytes", "stderrBytes")
    )
    assert command.told in {None, told}, f"the end of a command has changed: {command.told}, then {told}"
    command.told = told
