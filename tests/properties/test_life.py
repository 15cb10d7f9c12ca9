"""The life of sandboxes under any sequence of calls, ends and restarts, held against a model after every step.

`ATOLL_PROPERTY_EXAMPLES=500` tries other and more sequences than `make test`, which always tries the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.plane import Api, decoded, expect, until
from tests.properties.checks import check_everything, settled
from tests.properties.model import RUNS, Box, Command, Model, Refusal, Script
from tests.properties.races import CALLS, race
from tests.properties.world import CLOCK_STEP_SECONDS, World

EXAMPLES = os.environ.get("ATOLL_PROPERTY_EXAMPLES")
SEEDS = 5
EXAMPLES_OF_A_SEED = 5
STEPS = 25
SIGNALS = {"SIGTERM": 143, "SIGINT": 130, "SIGKILL": 137}
LIMIT_SECONDS = 900 + 30 * int(EXAMPLES or 0)

pytestmark = [pytest.mark.both_databases, pytest.mark.timeout(LIMIT_SECONDS)]
PROFILE = settings(
    max_examples=int(EXAMPLES or EXAMPLES_OF_A_SEED),
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
LIVING = {"STARTING", "READY", "BUSY", "SUSPENDED", "RESUMING", "FAILED"}
ENDS = ("its compute dies", "terminate", "its compute dies", "1", "2", "4", "18")
picks = st.integers(0, 15)
seldom = st.integers(0, 11).map(lambda number: number == 7)
modes = st.sampled_from(["EPHEMERAL", "SNAPSHOT", "DIRECTORY", "BOTH"])


def assert_refused(answer: httpx.Response, refusal: Refusal) -> dict[str, Any]:
    """An answer must be this refusal; its body."""
    body = expect(answer, refusal.status)
    assert body["success"] is False
    assert body.get("errorCode") == refusal.code, body
    return body


class Life(RuleBasedStateMachine):
    """One account, from its first sandbox to its last."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model: Model
        self.first: Api
        self.scripts = 0

    @initialize(ceiling=st.integers(1, 3), mode=modes)
    def begin(self, ceiling: int, mode: str) -> None:
        self.model = Model(ceiling)
        self.first = self.world.new_account(ceiling)
        self.create("key-0", mode, fails=False)

    def teardown(self) -> None:
        """The next account finds nothing of this one on the machine."""
        if hasattr(self, "first"):
            self.world.empty(self.first)

    @property
    def api(self) -> Api:
        """The account's caller."""
        return self.world.caller(self.first)

    def post(self, path: str, box: Box, **body: Any) -> httpx.Response:
        """One call about a sandbox."""
        return self.world.run(self.api.post(path, sandboxId=box.sandbox_id, **body))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for something."""
        return self.world.run(work)

    def box(self, pick: int, statuses: set[str], *, keeps: bool = False) -> Box:
        """Mostly one of those with which something is to be done, at times any."""
        every = list(self.model.boxes.values())
        fit = [box for box in every if box.status in statuses and (box.mode != "EPHEMERAL" or not keeps)]
        candidates = every if pick % 4 == 3 or not fit else fit
        return candidates[pick // 4 % len(candidates)]

    def command(self, pick: int) -> tuple[Box, Command] | None:
        """Mostly one that runs. No precondition asks for one: the calls at the same moment decide what there is, and
        hypothesis wants the same rules to be possible each time."""
        every = [(box, command) for box in self.model.boxes.values() for command in box.commands]
        fit = [found for found in every if found[1].running]
        candidates = every if pick % 4 == 3 or not fit else fit
        return candidates[pick // 4 % len(candidates)] if candidates else None

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        if hasattr(self, "model"):
            self.run(check_everything(self.world.plane, self.api, self.model))

    @rule(pick=picks, mode=modes, known=st.booleans(), count=st.sampled_from([1, 1, 2, 3]), fails=seldom)
    def create_or_connect(self, pick: int, mode: str, known: bool, count: int, fails: bool) -> None:
        if known:
            self.create(self.box(pick, {"SUSPENDED"}).key, mode, fails=fails)
        elif count == 1:
            self.create(f"key-{len(self.model.boxes)}", mode, fails=fails)
        else:
            self.create_at_the_same_moment(f"key-{len(self.model.boxes)}", mode, count)

    def create(self, key: str, mode: str, *, fails: bool) -> None:
        """One create, with an instance that can be made or not."""
        known = self.model.boxes.get(key)
        fails = fails and not self.model.held and (known is None or known.status == "SUSPENDED") and not self.model.full
        if fails:
            self.world.fail_next_create()
        answer = self.run(self.api.create(idempotencyKey=key, persistenceMode=mode))
        if known is not None:
            body = expect(answer, 200)
            assert (body["wasCreated"], body["sandbox"]["sandboxId"]) == (False, known.sandbox_id)
            known.active_at = self.model.now
            if known.status == "SUSPENDED" and not self.model.full:
                self.model.provision(known, "RESUMING", fails=fails)
            return
        if self.model.full:
            body = assert_refused(answer, Refusal(429))
            assert body["data"]["reason"] == "account_concurrency_exceeded"
            return
        body = expect(answer, 201)
        assert (body["wasCreated"], body["sandbox"]["status"], body["sandbox"]["generation"]) == (True, "REQUESTED", 0)
        now = self.model.now
        self.model.boxes[key] = Box(body["sandbox"]["sandboxId"], key, mode, "", now, now)
        self.model.provision(self.model.boxes[key], "STARTING", fails=fails)

    def create_at_the_same_moment(self, key: str, mode: str, count: int) -> None:
        """Several creates of one new key: one of them makes the sandbox."""
        calls = (self.api.create(idempotencyKey=key, persistenceMode=mode) for _ in range(count))
        answers = self.run(_together(*calls))
        if self.model.full:
            assert [answer.status_code for answer in answers] == [429] * count
            return
        assert sorted(answer.status_code for answer in answers) == [200] * (count - 1) + [201]
        [sandbox_id] = {answer.json()["sandbox"]["sandboxId"] for answer in answers}
        now = self.model.now
        self.model.boxes[key] = Box(sandbox_id, key, mode, "", now, now)
        self.model.provision(self.model.boxes[key], "STARTING", fails=False)

    @rule(pick=picks, statuses=st.sets(st.sampled_from(["READY", "BUSY", "SUSPENDED", "FAILED"]), min_size=1))
    def get_one_and_list_some(self, pick: int, statuses: set[str]) -> None:
        box = self.box(pick, LIVING)
        sandbox = expect(self.run(self.api.get("/sandbox", sandboxId=box.sandbox_id)), 200)["sandbox"]
        assert (sandbox["sandboxId"], sandbox["status"]) == (box.sandbox_id, box.status)
        box.active_at = self.model.now
        answer = expect(self.run(self.api.get("/sandboxes", status=",".join(sorted(statuses)))), 200)
        wanted = {box.sandbox_id for box in self.model.boxes.values() if box.status in statuses}
        assert {sandbox["sandboxId"] for sandbox in answer["sandboxes"]} == wanted

    def admits(self, box: Box, answer: httpx.Response) -> bool:
        """Whether a sandbox takes a command, resumed first if need be; the answer must say the same."""
        refusal = box.refuses_work()
        if refusal is not None:
            assert_refused(answer, refusal)
            return False
        if box.status == "SUSPENDED":
            if self.model.full:
                body = assert_refused(answer, Refusal(429))
                assert body["data"]["reason"] == "account_concurrency_exceeded"
                return False
            if self.model.held:
                assert_refused(answer, Refusal(409, "SANDBOX_SUSPENDED"))
                self.model.provision(box, "RESUMING", fails=False)
                return False
            self.model.provision(box, "RESUMING", fails=False)
        box.active_at = self.model.now
        return True

    @rule(pick=picks)
    def execute(self, pick: int) -> None:
        self.write_and_read(self.box(pick, RUNS | {"SUSPENDED"}))

    def write_and_read(self, box: Box) -> None:
        """Add a line where the mode of a sandbox keeps it; all that were added before are there."""
        line = f"line-{len(box.lines)}"
        script = f"mkdir -p persist; echo {line} >> {box.file}; cat {box.file}"
        answer = self.post("/sandbox/execute", box, command=["sh", "-c", script])
        if self.admits(box, answer):
            box.lines.append(line)
            result = expect(answer, 200)["result"]
            assert decoded(result.get("stdout")).decode().split() == box.lines, "what was written is lost"
            assert result["exitCode"] == 0

    @rule(
        pick=picks,
        waits=st.booleans(),
        exit_code=st.sampled_from([0, 3]),
        idempotency_key=st.sampled_from([None, None, "a", "b"]),
    )
    def start(self, pick: int, waits: bool, exit_code: int, idempotency_key: str | None) -> None:
        box = self.box(pick, RUNS | {"SUSPENDED"})
        earlier = next((it for it in box.commands if it.key is not None and it.key == idempotency_key), None)
        self.scripts += 1
        script = Script(f"script-{self.scripts}", exit_code, waits)
        named = {} if idempotency_key is None else {"idempotencyKey": idempotency_key}
        answer = self.post("/sandbox/command/start", box, command=script.argv, **named)
        if earlier is not None:
            assert_refused(answer, Refusal(409, "IDEMPOTENCY_CONFLICT"))
            again = self.post("/sandbox/command/start", box, command=earlier.script.argv, **named)
            assert expect(again, 201)["execution"]["executionId"] == earlier.execution_id
            box.active_at = self.model.now
            return
        if not self.admits(box, answer):
            return
        execution_id = expect(answer, 201)["execution"]["executionId"]
        said = f"{script.name}\n".encode()
        command = Command(execution_id, script, idempotency_key, box.life, said, b"" if waits else b"error\n")
        box.commands.append(command)
        if not waits:
            command.end(exit_code)
        self.run(self._said(box, command))
        box.settle()

    async def _said(self, box: Box, command: Command) -> None:
        """Wait until a command has said what it is to have said, and has ended if it is to have ended."""

        async def look() -> bool:
            page = await self.api.command(box.sandbox_id, command.execution_id)
            sizes = (page["stdoutBytes"], page["stderrBytes"])
            ended = page["state"] == "exited"
            return sizes == (len(command.stdout), len(command.stderr)) and ended is not command.running

        await until(look)

    @rule(pick=picks)
    def tell_a_command_to_end(self, pick: int) -> None:
        found = self.command(pick)
        if found is None or not found[1].running:
            return
        box, command = found
        told = ["sh", "-c", f"echo on > /tmp/{command.script.name}"]
        expect(self.post("/sandbox/execute", box, command=told), 200)
        command.stdout += b"on\n"
        command.end(command.script.exit_code)
        self.run(self._said(box, command))
        box.become_ready(self.model.now)

    @rule(pick=picks, signal=st.sampled_from([None, *SIGNALS]))
    def kill(self, pick: int, signal: str | None) -> None:
        found = self.command(pick)
        if found is None:
            return
        box, command = found
        named = {} if signal is None else {"signal": signal}
        answer = self.post("/sandbox/command/kill", box, executionId=command.execution_id, **named)
        if box.status == "SUSPENDED":
            assert_refused(answer, Refusal(409, "SANDBOX_SUSPENDED"))
        elif not command.running:
            assert_refused(answer, Refusal(409, "EXECUTION_EXITED"))
            box.active_at = self.model.now
        else:
            expect(answer, 200)
            command.end(SIGNALS[signal or "SIGTERM"], "canceled")
            self.run(self._said(box, command))
            box.become_ready(self.model.now)

    @rule(pick=picks, writes=st.booleans())
    def pause(self, pick: int, writes: bool) -> None:
        box = self.box(pick, RUNS, keeps=True)
        if writes and box.status in RUNS:
            self.write_and_read(box)
        answer = self.post("/sandbox/pause", box)
        if box.mode == "EPHEMERAL":
            assert_refused(answer, Refusal(400))
            return
        if box.status not in RUNS | {"SUSPENDED"}:
            assert_refused(answer, Refusal(409))
            return
        assert expect(answer, 200)["sandbox"]["status"] == "SUSPENDED"
        if box.status != "SUSPENDED":
            box.allocations += 1
            box.suspended_at = self.model.now
            box.end_life("SUSPENDED", None, "agent_shutdown")

    @rule(pick=picks, crowded=st.sampled_from([False, False, True]), fails=seldom)
    def resume(self, pick: int, crowded: bool, fails: bool) -> None:
        box = self.box(pick, {"SUSPENDED"})
        while crowded and not self.model.full:
            self.create(f"key-{len(self.model.boxes)}", "EPHEMERAL", fails=False)
        possible = box.status == "SUSPENDED" and not self.model.full
        fails = fails and possible and not self.model.held
        if fails:
            self.world.fail_next_create()
        answer = self.post("/sandbox/resume", box)
        if box.status == "SUSPENDED" and self.model.full:
            body = assert_refused(answer, Refusal(429))
            assert body["data"]["reason"] == "account_concurrency_exceeded"
        elif box.status in RUNS | {"RESUMING", "SUSPENDED"}:
            assert expect(answer, 200)["sandbox"]["status"] == ("RESUMING" if possible else box.status)
            box.active_at = self.model.now
            if possible:
                self.model.provision(box, "RESUMING", fails=fails)
                self.run(settled(self.world.plane, self.api, self.model))
            if possible and box.status in RUNS:
                self.write_and_read(box)
        else:
            assert_refused(answer, Refusal(409))

    @rule(pick=picks, how=st.sampled_from(ENDS))
    def something_ends(self, pick: int, how: str) -> None:
        """By a call, from outside, or as time passes: that many steps of the clock."""
        box = self.box(pick, {"BUSY"} if any(it.running_commands for it in self.model.boxes.values()) else RUNS)
        if how == "terminate":
            assert expect(self.post("/sandbox/terminate", box), 200)["sandbox"]["status"] == "TERMINATED"
            box.terminate("USER_REQUESTED")
        elif how.isdigit():
            seconds = int(how) * CLOCK_STEP_SECONDS
            self.run(self.world.plane.let_pass(seconds))
            self.model.pass_seconds(seconds)
        elif box.status in RUNS:
            self.run(self._kill_its_compute(box))
            box.end_life("FAILED", 137, "killed")

    async def _kill_its_compute(self, box: Box) -> None:
        plane = self.world.plane
        [[instance_id]] = await plane.sql("SELECT instance_id FROM sandboxes WHERE id = :id", id=box.sandbox_id)
        await self.world.driver.kill_from_outside(instance_id)

    @rule(restarts=st.booleans())
    def the_control_plane_starts_again_or_makes_nothing_for_a_while(self, restarts: bool) -> None:
        if restarts:
            self.world.restart()
        elif self.model.held:
            self.world.hold(held=False)
            self.model.release()
        else:
            self.world.hold(held=True)
            self.model.held = True

    @rule(pick=picks, calls=st.lists(st.sampled_from(CALLS), min_size=2, max_size=3))
    def calls_at_the_same_moment(self, pick: int, calls: list[str]) -> None:
        self.scripts += 1
        script = Script(f"script-{self.scripts}", 0, waits=True)
        self.run(race(self.world.plane, self.api, self.model, self.box(pick, LIVING), calls, script))


async def _together(*calls: Coroutine[Any, Any, httpx.Response]) -> list[httpx.Response]:
    return list(await asyncio.gather(*calls))


@pytest.fixture
def world(database_url: str | None) -> Iterator[World]:
    made = World(database_url)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.spec(
    "SA-057", "SA-121", "SA-124", "SA-361", "SA-363", "SA-369", "SA-370", "SA-371", "SA-384", "SA-414", "SA-416"
)
def test_whatever_is_called_in_whatever_order_the_account_is_as_the_specification_says(world: World) -> None:
    if EXAMPLES is not None:
        run_state_machine_as_test(lambda: Life(world), settings=PROFILE)
        return
    for number in range(SEEDS):  # few examples of one seed are much alike
        run_state_machine_as_test(seed(number)(lambda: Life(world)), settings=PROFILE)
