"""The worker of sandboxes: from a request to READY, from anything to TERMINATED, and what failures end in."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from tests.scripted_driver import failure
from tests.unit.workers.world import World, until

from atoll.domain.command import EndReason
from atoll.domain.errors import Conflict, ErrorCode
from atoll.domain.execution import ExecutionKind, ExecutionState
from atoll.domain.sandbox import PROVISIONING, SandboxStatus
from atoll.ops import command_record
from atoll.store import commands, pools, sandboxes
from atoll.store.tables import sandbox_events
from atoll.store.tables import sandboxes as table
from atoll.system import random_id

S = SandboxStatus
LEASE = timedelta(seconds=1)


async def steps(world: World, sandbox_id: str) -> list[str]:
    query = select(sandbox_events.c.to_status).where(sandbox_events.c.sandbox_id == sandbox_id)
    rows = await world.store.read(lambda tx: list(tx.connection.execute(query.order_by(sandbox_events.c.generation))))
    return [row[0].value for row in rows]


@pytest.mark.spec("SA-362", "SA-056", "SA-059", "SA-060")
async def test_a_request_is_allocated_started_and_ready(world: World) -> None:
    sandbox = await world.create()
    world.store.clock.pass_seconds(1)
    await world.work()
    ready = await world.get(sandbox)
    assert await steps(world, sandbox.id) == ["REQUESTED", "ALLOCATING", "STARTING", "READY"]
    assert (ready.status, ready.generation, ready.desired_status) == (S.READY, 3, None)
    assert (ready.claimed_at, ready.ready_at) == (sandbox.created_at, world.store.clock.now)
    assert ready.instance_id is not None and ready.allocation_pending and not ready.is_warm_allocation
    assert world.driver.live() == {ready.instance_id}
    assert [name for name, _ in world.driver.calls] == ["prepare_image", "create", "connect"]


@pytest.mark.spec("SA-057")
async def test_a_waiting_instance_is_claimed_instead_of_a_boot(world: World) -> None:
    world.settings["warm_pool_size"] = 1
    await world.next_life()
    await world.fill_pools()
    warm = next(iter(world.driver.live()))
    waiting = world.driver.instances[warm]
    assert (waiting.ran, waiting.commands) == ([("true",)], {}), "the first program has been started, and forgotten"
    world.driver.calls.clear()
    ready = await world.ready()
    assert (ready.instance_id, ready.is_warm_allocation) == (warm, True)
    assert world.driver.calls == [], "a claim costs no call"
    assert await world.store.read(pools.list_all) == []
    await world.fill_pools()
    assert len(world.driver.live()) == 2


async def test_a_waiting_instance_that_died_is_replaced_within_the_same_request(world: World) -> None:
    world.settings["warm_pool_size"] = 1
    await world.next_life()
    await world.fill_pools()
    warm = next(iter(world.driver.live()))
    world.services.agents.on_lost = None  # the claim comes before the watch has seen it
    world.driver.kill(warm)
    ready = await world.ready()
    assert ready.instance_id != warm and not ready.is_warm_allocation
    assert world.driver.live() == {ready.instance_id}
    assert warm not in world.driver.instances


@pytest.mark.spec("SA-066", "SA-385", "SA-418")
@pytest.mark.parametrize("call", ["prepare_image", "create", "connect"])
@pytest.mark.parametrize("code", [ErrorCode.SANDBOX_NOT_READY, ErrorCode.INVALID_REQUEST, ErrorCode.AGENT_UNREACHABLE])
async def test_a_failure_of_the_driver_is_the_sandboxs_with_its_code_and_leaves_nothing(
    world: World, call: str, code: ErrorCode
) -> None:
    async def before(name: str, subject: str) -> None:
        if name == call:
            raise failure(code, "it did not work")

    world.driver.before = before
    sandbox = await world.create()
    await world.work()
    failed = await world.get(sandbox)
    assert (failed.status, failed.error_code, failed.status_reason) == (S.FAILED, code, "it did not work")
    assert (failed.desired_status, failed.allocation_pending) == (None, False)
    assert world.driver.instances == {}


@pytest.mark.spec("SA-401")
async def test_an_error_without_a_name_is_tried_again_and_then_ends_in_unknown(world: World) -> None:
    async def before(name: str, subject: str) -> None:
        if name == "create":
            raise OSError("disk on fire at /secret/path")

    world.driver.before = before
    sandbox = await world.create()
    for attempt in range(3):
        assert (await world.get(sandbox)).status in PROVISIONING, attempt
        await world.work()
        world.store.clock.pass_seconds(5)
    failed = await world.get(sandbox)
    assert (failed.status, failed.error_code, failed.allocation_pending) == (S.FAILED, ErrorCode.UNKNOWN, False)
    assert "secret" not in (failed.status_reason or "")


async def test_an_error_without_a_name_that_goes_away_is_no_failure(world: World) -> None:
    left = [2]

    async def before(name: str, subject: str) -> None:
        if name == "create" and left[0]:
            left[0] -= 1
            raise OSError("no")

    world.driver.before = before
    sandbox = await world.create()
    for _ in range(3):
        await world.work()
        world.store.clock.pass_seconds(5)
    assert (await world.get(sandbox)).status is S.READY
    assert len(world.driver.created) == 1


@pytest.mark.spec("SA-144")
@pytest.mark.parametrize("call", ["prepare_image", "create"])
async def test_a_terminate_during_slow_work_cuts_it_off(world: World, call: str) -> None:
    cut_off = asyncio.Event()

    async def before(name: str, subject: str) -> None:
        if name == call:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cut_off.set()
                raise

    world.driver.before = before
    sandbox = await world.create()
    await world.begin_work()
    await until(lambda: any(name == call for name, _ in world.driver.calls))
    await world.terminate(sandbox)
    await asyncio.wait_for(cut_off.wait(), 5)
    await world.work()
    ended = await world.get(sandbox)
    assert (await steps(world, sandbox.id))[-3:] == ["FAILED", "TERMINATING", "TERMINATED"]
    assert (ended.status, ended.allocation_pending) == (S.TERMINATED, False)
    assert world.driver.instances == {}


@pytest.mark.spec("SA-144", "SA-146", "SA-064", "SA-418")
@pytest.mark.parametrize("status", [s for s in S if s not in {S.TERMINATING, S.TERMINATED, S.SUSPENDING}])
async def test_a_sandbox_of_any_status_can_be_terminated(world: World, status: SandboxStatus) -> None:
    ready = await world.ready()
    has_compute = status not in {S.REQUESTED, S.SUSPENDED}
    if not has_compute:
        await world.driver.destroy(str(ready.instance_id))
        await world.driver.cleanup(str(ready.instance_id))
    values = {"status": status, "allocation_pending": has_compute}
    if status is S.REQUESTED:
        values["instance_id"] = None
    await world.store.write(lambda tx: tx.connection.execute(update(table).values(**values)))
    await world.terminate(ready)
    world.store.clock.pass_seconds(1)
    await world.work()
    ended = await world.get(ready)
    assert (ended.status, ended.allocation_pending, ended.desired_status) == (S.TERMINATED, False, None)
    assert (ended.terminated_at, ended.termination_reason) == (world.store.clock.now, "USER_REQUESTED")
    assert world.driver.instances == {}


async def test_a_termination_is_answered_before_the_cleaning_up(world: World) -> None:
    ready = await world.ready()
    clean = asyncio.Event()

    async def before(name: str, subject: str) -> None:
        if name == "cleanup":
            await clean.wait()

    world.driver.before = before
    await world.terminate(ready)
    await world.begin_work()
    await until(lambda: any(name == "cleanup" for name, _ in world.driver.calls))
    ended = await world.get(ready)
    assert (ended.status, ended.allocation_pending) == (S.TERMINATED, True), "its capacity is held until it is clean"
    clean.set()
    await world.work()
    assert not (await world.get(ready)).allocation_pending


@pytest.mark.spec("SA-235", "SA-266")
async def test_running_commands_end_with_their_sandbox_as_agent_shutdown(world: World) -> None:
    ready = await world.ready()
    execution_id = random_id()
    await world.store.write(
        lambda tx: command_record.begin(
            tx, ready, execution_id=execution_id, kind=ExecutionKind.START, caller_key="user:1"
        )
    )
    world.driver.instances[str(ready.instance_id)].answers = False
    await world.services.agents.drop(str(ready.instance_id))
    await world.terminate(ready)
    await world.work()
    found = await world.store.read(lambda tx: commands.find(tx, execution_id))
    assert found is not None
    assert (found.state, found.reason, found.exit_code) == (ExecutionState.EXITED, EndReason.AGENT_SHUTDOWN, 137)


async def test_a_destroy_that_fails_never_shows_as_terminated_and_is_tried_again(world: World) -> None:
    ready = await world.ready()

    async def before(name: str, subject: str) -> None:
        if name == "destroy":
            raise failure()

    world.driver.before = before
    await world.terminate(ready)
    for _ in range(5):
        await world.work()
        world.store.clock.pass_seconds(5)
    assert (await world.get(ready)).status is S.TERMINATING
    world.driver.before = None
    await world.work()
    assert (await world.get(ready)).status is S.TERMINATED


@pytest.mark.spec("SA-168")
async def test_a_resumed_sandbox_gets_new_compute_after_the_old_is_gone(world: World) -> None:
    ready = await world.ready()
    values = {"status": S.RESUMING, "desired_status": S.READY}
    await world.store.write(lambda tx: tx.connection.execute(update(table).values(**values)))
    world.store.clock.pass_seconds(9)
    await world.work()
    resumed = await world.get(ready)
    assert (resumed.status, resumed.resumed_at) == (S.READY, world.store.clock.now)
    assert resumed.ready_at == ready.ready_at
    assert resumed.instance_id != ready.instance_id and resumed.allocation_pending
    assert world.driver.live() == {resumed.instance_id}
    assert set(world.driver.instances) == {resumed.instance_id}


async def test_many_requests_are_served_and_each_gets_compute_of_its_own(world: World) -> None:
    await world.store.set_ceiling(500)
    made = [await world.create() for _ in range(70)]
    await world.work(passes=50)
    found = [await world.get(sandbox) for sandbox in made]
    assert {sandbox.status for sandbox in found} == {S.READY}
    assert len({sandbox.instance_id for sandbox in found}) == len(world.driver.live()) == 70


async def test_work_that_appears_while_a_task_ends_is_not_leased_to_nobody(world: World) -> None:
    sandbox = await world.create()
    released = asyncio.Event()
    write = world.store.database.write

    async def slow_to_return(function):  # type: ignore[no-untyped-def]  # the signature of write
        result = await write(function)
        if (await world.get(sandbox)).status is S.READY and not released.is_set():
            # The lease is given back, the task has not ended yet: somebody terminates, and the worker is woken.
            held = await world.store.read(lambda tx: tx.connection.execute(select(table.c.lease_token)).scalar())
            if held is None:
                released.set()
                await world.terminate(sandbox)
                await world.sandboxes.run_once()
        return result

    world.store.database.write = slow_to_return  # type: ignore[method-assign]  # to be in the gap
    await world.work()
    assert released.is_set()
    await world.work()
    assert (await world.get(sandbox)).status is S.TERMINATED


async def test_a_worker_without_work_writes_nothing_more(world: World) -> None:
    await world.ready()
    before = len(world.driver.calls)
    for _ in range(3):
        await world.work()
    assert len(world.driver.calls) == before


async def test_a_step_that_conflicts_for_no_reason_waits_instead_of_going_round(world: World) -> None:
    sandbox = await world.create()
    await world.store.write(lambda tx: tx.connection.execute(update(table).values(status=S.STARTING)))
    looks = [0]
    reread = world.sandboxes._reread

    async def conflicted(*_: object) -> None:
        raise Conflict("for no reason")

    async def counted(sandbox_id: str):  # type: ignore[no-untyped-def]  # as the original
        looks[0] += 1
        return await reread(sandbox_id)

    world.sandboxes._boot = conflicted  # type: ignore[method-assign, assignment]  # what cannot happen
    world.sandboxes._reread = counted  # type: ignore[method-assign]  # to count
    await world.begin_work()
    await until(lambda: not world.sandboxes._tasks)
    assert looks[0] == 1
    assert (await world.store.write(lambda tx: sandboxes.claim_work(tx, "x", lease=LEASE, limit=9))) == []
    assert (await world.get(sandbox)).status is S.STARTING
