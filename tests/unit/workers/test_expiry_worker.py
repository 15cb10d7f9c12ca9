"""The worker of deadlines: what time ends, what keeps a sandbox alive, and when it looks again."""

from __future__ import annotations

import pytest
from sqlalchemy import update
from tests.unit.workers.world import World

from atoll.domain.execution import ExecutionKind
from atoll.domain.sandbox import Sandbox, SandboxStatus, TerminationReason
from atoll.ops import command_record
from atoll.store import sandboxes
from atoll.store.database import Transaction
from atoll.store.tables import sandboxes as table
from atoll.system import random_id

S, R = SandboxStatus, TerminationReason
IDLE = 1_800


async def expire(world: World, sandbox: Sandbox) -> Sandbox:
    await world.expiry.run_once()
    await world.work()
    return await world.get(sandbox)


@pytest.mark.spec("SA-370", "SA-087")
async def test_an_idle_sandbox_is_ended_without_any_call(world: World) -> None:
    ready = await world.ready()
    assert await world.expiry.run_once() == IDLE
    world.store.clock.pass_seconds(IDLE)
    ended = await expire(world, ready)
    assert (ended.status, ended.termination_reason) == (S.TERMINATED, R.IDLE_TIMEOUT)
    assert world.driver.instances == {}


@pytest.mark.spec("SA-244", "SA-245")
async def test_a_sandbox_that_works_is_ended_by_its_lifetime_only(world: World) -> None:
    ready = await world.ready()
    await world.store.write(
        lambda tx: command_record.begin(
            tx, ready, execution_id=random_id(), kind=ExecutionKind.START, caller_key="user:1"
        )
    )
    world.store.clock.pass_seconds(IDLE * 10)
    assert (await expire(world, ready)).status is S.BUSY
    world.store.clock.now = ready.expires_at
    ended = await expire(world, ready)
    assert (ended.status, ended.termination_reason) == (S.TERMINATED, R.HARD_LIFETIME)


@pytest.mark.spec("SA-371")
@pytest.mark.parametrize("status", [S.REQUESTED, S.ALLOCATING, S.STARTING, S.FAILED, S.SUSPENDED, S.RESUMING])
async def test_the_lifetime_ends_what_does_not_run_too(world: World, status: SandboxStatus) -> None:
    sandbox = await world.store.add_sandbox(status, suspended_at=world.store.clock.now)
    world.store.clock.now = sandbox.expires_at
    ended = await expire(world, sandbox)
    assert (ended.status, ended.termination_reason) == (S.TERMINATED, R.HARD_LIFETIME)


@pytest.mark.spec("SA-040")
async def test_a_paused_sandbox_is_ended_after_its_retention(world: World) -> None:
    now = world.store.clock.now
    paused = await world.store.add_sandbox(S.SUSPENDED, suspended_at=now, suspended_retention_seconds=100)
    assert await world.expiry.run_once() == 100
    world.store.clock.pass_seconds(99)
    assert (await expire(world, paused)).status is S.SUSPENDED
    world.store.clock.pass_seconds(1)
    ended = await expire(world, paused)
    assert (ended.status, ended.termination_reason) == (S.TERMINATED, R.SUSPENDED_RETENTION)


@pytest.mark.spec("SA-061", "SA-236")
async def test_activity_between_the_look_and_the_end_keeps_a_sandbox_alive(world: World) -> None:
    ready = await world.ready()
    world.store.clock.pass_seconds(IDLE)
    look = sandboxes.with_deadlines

    async def look_then_act(function):  # type: ignore[no-untyped-def]  # the signature of read
        found = await read(function)
        if function is look:
            await world.store.write(lambda tx: sandboxes.touch(tx, ready.id))
        return found

    read = world.store.database.read
    world.store.database.read = look_then_act  # type: ignore[method-assign]  # to be in the gap
    await world.expiry.run_once()
    world.store.database.read = read  # type: ignore[method-assign]  # as it was
    assert (await world.get(ready)).status is S.READY


async def test_it_looks_again_at_the_nearest_deadline(world: World) -> None:
    assert await world.expiry.run_once() is None
    ready = await world.ready()
    near = await world.store.add_sandbox(S.READY, idle_timeout_seconds=7)
    assert await world.expiry.run_once() == 7
    world.store.clock.pass_seconds(7)
    await world.expiry.run_once()
    assert (await world.get(near)).status is S.TERMINATING
    assert (await world.get(ready)).status is S.READY
    assert await world.expiry.run_once() == IDLE - 7


async def test_what_became_idle_after_work_is_seen_in_time(world: World) -> None:
    busy = await world.store.add_sandbox(S.BUSY, idle_timeout_seconds=7)
    world.store.clock.pass_seconds(100)
    due = await world.expiry.run_once()
    assert due is not None and due <= 7, "nobody is woken when it becomes READY"

    def end_work(tx: Transaction) -> None:
        tx.connection.execute(update(table).where(table.c.id == busy.id).values(status=S.READY, last_active_at=tx.now))

    await world.store.write(end_work)
    world.store.clock.pass_seconds(due)
    assert (await expire(world, busy)).termination_reason is R.IDLE_TIMEOUT


async def test_one_that_is_ending_already_is_left_alone(world: World) -> None:
    for status in (S.TERMINATING, S.TERMINATED):
        sandbox = await world.store.add_sandbox(status)
        world.store.clock.now = sandbox.expires_at
        await world.expiry.run_once()
        assert (await world.get(sandbox)).generation == 0
