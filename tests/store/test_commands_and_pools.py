"""Commands go one way, from requested to exited; a waiting instance is claimed once and for all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import IntegrityError
from tests.databases import Store

from atoll.domain.command import CommandState, EndReason
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.pool import WarmState
from atoll.domain.sandbox import Sandbox, SandboxStatus
from atoll.ops import command_record
from atoll.store import commands, pools
from atoll.system import random_id

pytestmark = pytest.mark.both_databases
S, E = SandboxStatus, ExecutionState


async def begin(store: Store, sandbox: Sandbox, key: str | None = None) -> Execution:
    return await store.write(
        lambda tx: command_record.begin(
            tx,
            sandbox,
            execution_id=random_id(),
            kind=ExecutionKind.START,
            caller_key="user:1",
            idempotency_key=key,
            fingerprint=key,
        )
    )


async def read(store: Store, execution: Execution) -> Execution:
    found = await store.read(lambda tx: commands.get(tx, execution.sandbox_id, execution.id))
    assert found is not None
    return found


def ended(execution: Execution, store: Store, **changes: Any) -> CommandState:
    now = store.clock.now
    state = CommandState(UUID(execution.id), False, 3, None, now, now, 7, 11, True)
    return replace(state, **changes)


async def running_sandbox(store: Store) -> Sandbox:
    return await store.add_sandbox(S.READY, instance_id=random_id(), allocation_pending=True)


@pytest.mark.spec("SA-363")
async def test_a_sandbox_is_busy_from_the_first_command_to_the_end_of_the_last(store: Store) -> None:
    sandbox = await running_sandbox(store)
    one = await begin(store, sandbox)
    assert (await store.sandbox(sandbox.id)).status is S.BUSY
    other = await begin(store, await store.sandbox(sandbox.id))
    await store.write(lambda tx: command_record.finish(tx, sandbox.id, one.id, ended(one, store)))
    assert (await store.sandbox(sandbox.id)).status is S.BUSY
    store.clock.pass_seconds(100)
    await store.write(lambda tx: command_record.finish(tx, sandbox.id, other.id, ended(other, store)))
    idle = await store.sandbox(sandbox.id)
    assert idle.status is S.READY
    assert idle.last_active_at == store.clock.now


async def test_the_first_record_of_an_end_wins(store: Store) -> None:
    execution = await begin(store, await running_sandbox(store))
    assert await store.write(lambda tx: commands.mark_exited(tx, execution.id, ended(execution, store)))
    later = ended(execution, store, exit_code=9, reason=EndReason.KILLED)
    assert not await store.write(lambda tx: commands.mark_exited(tx, execution.id, later))
    await store.write(lambda tx: commands.mark_lost(tx, [execution.id], reason=EndReason.KILLED))
    found = await read(store, execution)
    assert (found.state, found.exit_code, found.reason) == (E.EXITED, 3, None)
    assert (found.stdout_bytes, found.stderr_bytes, found.output_truncated) == (7, 11, True)


async def test_a_command_starts_once_and_never_again_after_its_end(store: Store) -> None:
    execution = await begin(store, await running_sandbox(store))
    now = store.clock.now
    await store.write(lambda tx: commands.mark_running(tx, execution.id, process_id=5, started_at=now))
    await store.write(lambda tx: commands.mark_running(tx, execution.id, process_id=6, started_at=now))
    assert ((await read(store, execution)).state, (await read(store, execution)).process_id) == (E.RUNNING, 5)
    await store.write(lambda tx: commands.mark_exited(tx, execution.id, ended(execution, store)))
    await store.write(lambda tx: commands.mark_running(tx, execution.id, process_id=7, started_at=now))
    assert ((await read(store, execution)).state, (await read(store, execution)).process_id) == (E.EXITED, 5)


@pytest.mark.spec("SA-251", "SA-252")
async def test_an_end_that_is_recorded_before_the_start_keeps_the_process_id_for_replays(store: Store) -> None:
    execution = await begin(store, await running_sandbox(store))
    await store.write(lambda tx: commands.mark_exited(tx, execution.id, ended(execution, store)))
    await store.write(lambda tx: commands.mark_running(tx, execution.id, process_id=5, started_at=store.clock.now))
    found = await read(store, execution)
    assert (found.state, found.process_id, found.exit_code) == (E.EXITED, 5, 3)


@pytest.mark.spec("SA-251")
async def test_a_key_belongs_to_one_command_of_its_sandbox(store: Store) -> None:
    one, other = await running_sandbox(store), await running_sandbox(store)
    execution = await begin(store, one, key="k")
    await begin(store, other, key="k")
    found = await store.read(lambda tx: commands.find_by_key(tx, one.id, "k"))
    assert found == execution
    with pytest.raises(IntegrityError):
        await begin(store, await store.sandbox(one.id), key="k")
    await begin(store, await store.sandbox(one.id), key=None)
    await begin(store, await store.sandbox(one.id), key=None)


async def test_a_command_that_was_refused_is_forgotten_and_frees_its_sandbox(store: Store) -> None:
    sandbox = await running_sandbox(store)
    execution = await begin(store, sandbox, key="k")
    await store.write(lambda tx: command_record.withdraw(tx, sandbox.id, execution.id))
    assert (await store.sandbox(sandbox.id)).status is S.READY
    assert await store.read(lambda tx: commands.find_by_key(tx, sandbox.id, "k")) is None


async def test_the_commands_of_a_sandbox_that_is_gone_have_ended(store: Store) -> None:
    sandbox = await running_sandbox(store)
    done, open_ = await begin(store, sandbox), await begin(store, await store.sandbox(sandbox.id))
    await store.write(lambda tx: commands.mark_exited(tx, done.id, ended(done, store)))
    await store.write(lambda tx: commands.end_all(tx, sandbox.id, reason=EndReason.AGENT_SHUTDOWN))
    assert (await read(store, done)).reason is None
    lost = await read(store, open_)
    assert (lost.state, lost.exit_code, lost.reason) == (E.EXITED, 137, EndReason.AGENT_SHUTDOWN)
    assert lost.exited_at == store.clock.now
    assert await store.read(lambda tx: commands.count_active(tx, sandbox.id)) == 0


async def test_a_command_of_one_sandbox_is_not_found_in_another(store: Store) -> None:
    execution = await begin(store, await running_sandbox(store))
    other = await running_sandbox(store)
    assert await store.read(lambda tx: commands.get(tx, other.id, execution.id)) is None


async def test_ends_and_the_death_of_their_sandbox_do_not_lock_each_other_out(store: Store) -> None:
    sandbox = await running_sandbox(store)
    executions = [await begin(store, await store.sandbox(sandbox.id)) for _ in range(20)]
    await asyncio.gather(
        *(
            store.write(lambda tx, e=e: command_record.finish(tx, sandbox.id, e.id, ended(e, store)))  # type: ignore[misc]  # bound now
            for e in executions
        ),
        *(
            store.write(lambda tx, e=e: command_record.lose(tx, sandbox.id, e.id))  # type: ignore[misc]  # bound now
            for e in executions
        ),
    )
    assert (await store.sandbox(sandbox.id)).status is S.READY


async def add_waiting(store: Store, key: str) -> str:
    instance_id = random_id()
    await store.write(lambda tx: pools.add(tx, instance_id, key))
    assert await store.write(lambda tx: pools.mark_waiting(tx, instance_id))
    return instance_id


async def test_no_instance_is_claimed_twice_under_any_number_of_claims(store: Store) -> None:
    waiting = {await add_waiting(store, "k") for _ in range(10)}
    claims = await asyncio.gather(*(store.write(lambda tx: pools.claim(tx, "k")) for _ in range(40)))
    taken = [instance_id for instance_id in claims if instance_id is not None]
    # Under contention on PostgreSQL a claim may pass over a row that another holds; it never takes it too.
    assert len(taken) == len(set(taken))
    while (rest := await store.write(lambda tx: pools.claim(tx, "k"))) is not None:
        taken.append(rest)
    assert sorted(taken) == sorted(waiting)
    assert await store.read(pools.list_all) == []


async def test_a_claim_takes_the_longest_waiting_instance_of_its_own_pool(store: Store) -> None:
    first = await add_waiting(store, "k")
    store.clock.pass_seconds(1)
    await add_waiting(store, "k")
    await add_waiting(store, "other")
    assert await store.write(lambda tx: pools.claim(tx, "k")) == first


@pytest.mark.parametrize("state", [WarmState.BOOTING, WarmState.DISCARDED])
async def test_only_a_waiting_instance_is_claimed(store: Store, state: WarmState) -> None:
    instance_id = random_id()
    await store.write(lambda tx: pools.add(tx, instance_id, "k"))
    if state is WarmState.DISCARDED:
        await store.write(lambda tx: pools.discard(tx, instance_id))
    assert await store.write(lambda tx: pools.claim(tx, "k")) is None


async def test_a_boot_that_was_given_up_is_not_offered_when_it_ends(store: Store) -> None:
    instance_id = random_id()
    await store.write(lambda tx: pools.add(tx, instance_id, "k"))
    await store.write(lambda tx: pools.discard(tx, instance_id))
    assert not await store.write(lambda tx: pools.mark_waiting(tx, instance_id))
    assert [i.state for i in await store.read(pools.list_all)] == [WarmState.DISCARDED]
