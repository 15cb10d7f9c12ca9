"""The watch: what runs is connected, what died fails, and the record of commands becomes true after a restart."""

from __future__ import annotations

import asyncio

import pytest
from tests.samples import NOW
from tests.scripted_driver import Instance, command_state
from tests.unit.workers.world import World, until

from atoll.domain.command import AgentStats, EndReason
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.sandbox import Sandbox, SandboxStatus
from atoll.ops import command_record
from atoll.store import commands, pools
from atoll.store.database import Transaction
from atoll.store.wakes import STATUSES
from atoll.system import random_id
from atoll.workers import watch

S, E, K = SandboxStatus, ExecutionState, ExecutionKind


def instance_of(world: World, sandbox: Sandbox) -> Instance:
    return world.driver.instances[str(sandbox.instance_id)]


async def record(world: World, sandbox: Sandbox, kind: ExecutionKind, state: ExecutionState) -> str:
    """A command on record, of which the agent has not been told."""
    execution_id = random_id()

    def begin(tx: Transaction) -> None:
        command_record.begin(tx, sandbox, execution_id=execution_id, kind=kind, caller_key="user:1")
        if state is E.RUNNING:
            commands.mark_running(tx, execution_id, process_id=5, started_at=NOW)

    await world.store.write(begin)
    return execution_id


async def find(world: World, execution_id: str) -> Execution | None:
    return await world.store.read(lambda tx: commands.find(tx, execution_id))


@pytest.mark.spec("SA-066", "SA-385", "SA-390")
async def test_a_sandbox_that_is_killed_from_outside_fails_at_once_and_is_cleaned_up(world: World) -> None:
    ready = await world.ready()
    execution_id = await record(world, ready, K.START, E.RUNNING)
    world.driver.kill(str(ready.instance_id))
    await until(lambda: ("observe", str(ready.instance_id)) in world.driver.calls)
    await world.watch_once()
    failed = await world.get(ready)
    assert (failed.status, failed.error_code) == (S.FAILED, ErrorCode.SANDBOX_NOT_FOUND)
    assert failed.status_reason == "it was killed"
    command = await find(world, execution_id)
    assert command is not None and (command.state, command.reason) == (E.EXITED, EndReason.KILLED)
    await world.work()
    assert not (await world.get(ready)).allocation_pending
    assert world.driver.instances == {}


async def test_a_sandbox_that_died_while_nobody_looked_fails_at_the_next_start(world: World) -> None:
    ready = await world.ready()
    await world.end_life()
    world.driver.kill(str(ready.instance_id))
    world.begin_life()
    await world.watch_once()
    assert (await world.get(ready)).status is S.FAILED


async def test_a_lost_connection_is_made_again_and_harms_nobody(world: World) -> None:
    ready = await world.ready()
    connection = instance_of(world, ready).connection
    assert connection is not None
    connection.lose()
    await until(lambda: world.services.agents.is_open(str(ready.instance_id)))
    assert (await world.get(ready)).status is S.READY


@pytest.mark.spec("SA-388")
async def test_an_agent_that_does_not_answer_is_given_time_and_then_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = await world.ready()
    instance = instance_of(world, ready)
    instance.answers = False
    assert instance.connection is not None
    instance.connection.lose()
    await until(lambda: world.watch._unreachable_since)
    assert await world.watch.run_once() == 1.0
    assert (await world.get(ready)).status is S.READY
    monkeypatch.setattr(watch, "_GIVE_UP_SECONDS", 0.0)
    await world.watch_once()
    failed = await world.get(ready)
    assert (failed.status, failed.error_code) == (S.FAILED, ErrorCode.AGENT_UNREACHABLE)
    assert await world.watch.run_once() is None


async def test_a_sandbox_that_is_still_dying_when_it_is_lost_is_looked_at_again_at_once(world: World) -> None:
    ready = await world.ready()
    instance = instance_of(world, ready)
    instance.answers = False
    assert instance.connection is not None
    with world.services.wakes.listen(STATUSES) as listener:
        instance.connection.lose()
        assert await listener.wait(5.0)
    world.driver.kill(str(ready.instance_id))
    await world.watch_once()
    assert (await world.get(ready)).status is S.FAILED


async def test_a_busy_sandbox_whose_agent_falls_silent_on_an_open_connection_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below a fork bomb."""
    monkeypatch.setattr(watch, "_HEARD_AGAIN_AFTER", 0.0)
    monkeypatch.setattr(watch, "_GIVE_UP_SECONDS", 0.2)
    ready = await world.ready()
    await record(world, ready, K.START, E.RUNNING)
    assert (await world.get(ready)).status is S.BUSY
    await world.watch_once()
    assert not world.watch._unreachable_since
    connection = instance_of(world, ready).connection
    assert connection is not None

    async def silence() -> AgentStats:
        raise RuntimeFailure("it does not answer", code=ErrorCode.AGENT_UNREACHABLE)

    monkeypatch.setattr(connection, "stats", silence)

    async def failed() -> bool:
        await world.watch_once()
        return (await world.get(ready)).status is S.FAILED

    async with asyncio.timeout(10):
        while not await failed():  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.05)
    assert (await world.get(ready)).error_code is ErrorCode.AGENT_UNREACHABLE


async def test_an_unreachable_sandbox_that_is_terminated_is_forgotten(world: World) -> None:
    ready = await world.ready()
    instance = instance_of(world, ready)
    instance.answers = False
    assert instance.connection is not None
    instance.connection.lose()
    await until(lambda: world.watch._unreachable_since)
    await world.terminate(ready)
    await world.work()
    assert await world.watch.run_once() is None


async def test_one_that_hangs_does_not_keep_the_others_unwatched(world: World) -> None:
    first, second = await world.ready(), await world.ready()
    await world.next_life()
    hanging = str(first.instance_id)

    async def before(name: str, subject: str) -> None:
        if name in {"connect", "observe"} and subject == hanging:
            await asyncio.sleep(60)

    world.driver.before = before
    look = asyncio.create_task(world.watch.run_once())
    await until(lambda: world.services.agents.is_open(str(second.instance_id)))
    look.cancel()
    await asyncio.gather(look, return_exceptions=True)


async def test_one_that_cannot_be_observed_does_not_keep_the_others_unwatched(world: World) -> None:
    first, second = await world.ready(), await world.ready()
    await world.next_life()

    async def before(name: str, subject: str) -> None:
        if name == "observe" and subject == first.instance_id:
            raise OSError("no")

    world.driver.before = before
    await world.watch_once()
    assert world.services.agents.is_open(str(second.instance_id))


@pytest.mark.parametrize("kind", [K.START, K.EXECUTE])
async def test_a_command_that_ended_while_nobody_looked_is_recorded_at_the_next_start(
    world: World, kind: ExecutionKind
) -> None:
    ready = await world.ready()
    execution_id = await record(world, ready, kind, E.RUNNING if kind is K.START else E.REQUESTED)
    await world.end_life()
    instance_of(world, ready).commands[execution_id] = command_state(execution_id, running=False, exit_code=3)
    world.begin_life()
    await world.watch_once()
    command = await find(world, execution_id)
    assert command is not None and (command.state, command.exit_code) == (E.EXITED, 3)
    assert (await world.get(ready)).status is S.READY


async def test_a_command_that_ends_is_recorded_as_it_ends(world: World) -> None:
    ready = await world.ready()
    execution_id = await record(world, ready, K.START, E.RUNNING)
    connection = instance_of(world, ready).connection
    assert connection is not None
    await connection.end(execution_id, 7)
    command = await find(world, execution_id)
    assert command is not None and command.exit_code == 7
    assert (await world.get(ready)).status is S.READY


async def test_an_execute_whose_request_died_is_followed_to_its_end_once(world: World) -> None:
    ready = await world.ready()
    execution_id = await record(world, ready, K.EXECUTE, E.REQUESTED)
    instance = instance_of(world, ready)
    instance.commands[execution_id] = command_state(execution_id)
    await world.next_life()
    await world.watch_once()
    assert (await world.get(ready)).status is S.BUSY
    world.store.clock.pass_seconds(61)
    for _ in range(3):
        await world.watch.run_once()
    assert len(world.watch._awaited) == len(world.watch._tasks) == 1
    instance.commands[execution_id] = command_state(execution_id, running=False, exit_code=4)
    await until(lambda: not world.watch._tasks)
    command = await find(world, execution_id)
    assert command is not None and command.exit_code == 4
    assert (await world.get(ready)).status is S.READY


@pytest.mark.spec("SA-396")
async def test_a_command_that_the_agent_knows_no_more_has_ended(world: World) -> None:
    ready = await world.ready()
    execution_id = await record(world, ready, K.START, E.RUNNING)
    await world.next_life()
    await world.watch_once()
    command = await find(world, execution_id)
    assert command is not None and (command.state, command.reason) == (E.EXITED, EndReason.KILLED)
    assert (await world.get(ready)).status is S.READY


@pytest.mark.parametrize("kind", [K.START, K.EXECUTE])
async def test_a_request_that_died_before_its_agent_heard_of_it_does_not_keep_its_sandbox_busy(
    world: World, kind: ExecutionKind
) -> None:
    ready = await world.ready()
    execution_id = await record(world, ready, kind, E.REQUESTED)
    await world.next_life()
    await world.watch_once()
    assert (await world.get(ready)).status is S.BUSY, "it may be on its way"
    world.store.clock.pass_seconds(60)
    await world.watch_once()
    assert await find(world, execution_id) is None
    assert (await world.get(ready)).status is S.READY


async def test_a_waiting_instance_that_dies_is_discarded(world: World) -> None:
    world.settings["warm_pool_size"] = 1
    await world.next_life()
    await world.fill_pools()
    warm = next(iter(world.driver.live()))
    world.driver.kill(warm)
    await until(lambda: ("observe", warm) in world.driver.calls)
    await world.watch_once()
    assert [i.state.value for i in await world.store.read(pools.list_all)] == ["DISCARDED"]
    await world.fill_pools()
    assert warm not in world.driver.instances
    assert len(world.driver.live()) == 1
