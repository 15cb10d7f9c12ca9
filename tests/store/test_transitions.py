"""Status changes are compare-and-swaps with their event in the same transaction."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select
from tests.databases import Store

from atoll.domain.errors import Conflict, ErrorCode, StaleGeneration
from atoll.domain.sandbox import Action, Sandbox, SandboxStatus
from atoll.store.database import Transaction
from atoll.store.tables import sandbox_events
from atoll.store.transitions import transition
from atoll.store.wakes import SANDBOXES, STATUSES, sandbox_topic

pytestmark = pytest.mark.both_databases
S, A = SandboxStatus, Action


async def events(store: Store, sandbox_id: str) -> list[tuple[int, str, str | None, str, dict[str, str]]]:
    e = sandbox_events.c
    query = (
        select(e.generation, e.action, e.from_status, e.to_status, e.data)
        .where(e.sandbox_id == sandbox_id)
        .order_by(e.generation)
    )
    return await store.read(lambda tx: [tuple(row) for row in tx.connection.execute(query)])


@pytest.mark.spec("SA-056")
async def test_every_change_raises_the_generation_and_leaves_its_event(store: Store) -> None:
    sandbox = await store.add_sandbox()
    for action in (A.ALLOCATE, A.START, A.BECOME_READY, A.BEGIN_WORK):
        before = sandbox
        sandbox = await store.write(lambda tx, before=before, action=action: transition(tx, before, action))  # type: ignore[misc]  # bound now
        assert sandbox.generation == before.generation + 1
    assert await store.sandbox(sandbox.id) == sandbox
    assert await events(store, sandbox.id) == [
        (0, "request", None, S.REQUESTED, {}),
        (1, "allocate", S.REQUESTED, S.ALLOCATING, {}),
        (2, "start", S.ALLOCATING, S.STARTING, {}),
        (3, "become_ready", S.STARTING, S.READY, {}),
        (4, "begin_work", S.READY, S.BUSY, {}),
    ]


@pytest.mark.spec("SA-374")
async def test_the_times_of_changes_never_fall_also_for_a_writer_that_began_before_the_last_one(store: Store) -> None:
    sandbox = await store.add_sandbox(S.READY)
    store.clock.pass_seconds(10)
    busy = await store.write(lambda tx: transition(tx, sandbox, A.BEGIN_WORK))
    store.clock.pass_seconds(-5)
    ready = await store.write(lambda tx: transition(tx, busy, A.END_WORK))
    e = sandbox_events.c
    query = select(e.occurred_at).where(e.sandbox_id == sandbox.id).order_by(e.generation)
    moments = await store.read(lambda tx: list(tx.connection.execute(query).scalars()))
    assert moments == sorted(moments)
    assert ready.updated_at == busy.updated_at


async def test_of_twenty_writers_with_one_view_one_wins(store: Store) -> None:
    seen = await store.add_sandbox(S.READY)
    outcomes = await asyncio.gather(
        *(store.write(lambda tx: transition(tx, seen, A.BEGIN_WORK)) for _ in range(20)), return_exceptions=True
    )
    assert sum(isinstance(outcome, Sandbox) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, StaleGeneration) for outcome in outcomes) == 19
    assert len(await events(store, seen.id)) == 2


async def test_a_step_that_is_not_allowed_changes_nothing(store: Store) -> None:
    sandbox = await store.add_sandbox(S.TERMINATED)
    for action in A:
        with pytest.raises(Conflict):
            await store.write(lambda tx, action=action: transition(tx, sandbox, action))  # type: ignore[misc]  # bound now
    assert await store.sandbox(sandbox.id) == sandbox
    assert len(await events(store, sandbox.id)) == 1


async def test_a_transaction_that_is_rolled_back_leaves_no_event(store: Store) -> None:
    sandbox = await store.add_sandbox(S.READY)

    def change_and_fail(tx: Transaction) -> None:
        transition(tx, transition(tx, sandbox, A.BEGIN_WORK), A.END_WORK)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await store.write(change_and_fail)
    assert await store.sandbox(sandbox.id) == sandbox
    assert len(await events(store, sandbox.id)) == 1


async def test_an_event_says_why_and_nothing_that_is_not_known(store: Store) -> None:
    sandbox = await store.add_sandbox(S.STARTING)
    failed = await store.write(
        lambda tx: transition(tx, sandbox, A.FAIL, error_code=ErrorCode.UNKNOWN, status_reason="it broke")
    )
    await store.write(lambda tx: transition(tx, failed, A.TERMINATE, status_reason=None))
    assert [data for *_, data in await events(store, sandbox.id)] == [
        {},
        {"error_code": "UNKNOWN", "status_reason": "it broke"},
        {},
    ]


@pytest.mark.spec("SA-054")
async def test_the_reason_of_a_status_goes_with_it(store: Store) -> None:
    failed = await store.add_sandbox(S.FAILED, status_reason="it broke")
    assert (await store.write(lambda tx: transition(tx, failed, A.TERMINATE))).status_reason is None


async def test_a_change_wakes_who_waits_for_the_sandbox_and_whoever_has_to_act(store: Store) -> None:
    sandbox = await store.add_sandbox(S.STARTING)
    wakes = store.database.wakes
    with (
        wakes.listen(SANDBOXES) as worker,
        wakes.listen(STATUSES) as watchers,
        wakes.listen(sandbox_topic(sandbox.id)) as waiter,
    ):
        ready = await store.write(lambda tx: transition(tx, sandbox, A.BECOME_READY))
        assert await watchers.wait(0) and await waiter.wait(0)
        assert not await worker.wait(0), "the worker itself has taken this step"
        busy = await store.write(lambda tx: transition(tx, ready, A.BEGIN_WORK))
        assert await waiter.wait(0)
        assert not await watchers.wait(0) and not await worker.wait(0), "a command is no worker's affair"
        await store.write(lambda tx: transition(tx, busy, A.TERMINATE))
        assert await worker.wait(0) and await watchers.wait(0) and await waiter.wait(0)
