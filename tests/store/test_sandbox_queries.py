"""Leases, pages, capacity, and which sandboxes need work."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.databases import Store

from atoll.domain.errors import StaleGeneration
from atoll.domain.sandbox import Sandbox, SandboxStatus
from atoll.store import sandboxes
from atoll.store.wakes import SANDBOXES
from atoll.system import random_id

pytestmark = pytest.mark.both_databases
S = SandboxStatus
LEASE = timedelta(seconds=60)


async def claim(store: Store, token: str, limit: int = 100) -> set[str]:
    found = await store.write(lambda tx: sandboxes.claim_work(tx, token, lease=LEASE, limit=limit))
    return {sandbox.id for sandbox in found}


async def test_two_workers_never_claim_one_sandbox(store: Store) -> None:
    added = {(await store.add_sandbox()).id for _ in range(40)}
    rounds = await asyncio.gather(*(claim(store, f"worker.{number % 4}", limit=5) for number in range(16)))
    claimed = [sandbox_id for found in rounds for sandbox_id in found]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) | await claim(store, "worker.5") == added


async def test_a_lease_keeps_others_off_until_it_lapses(store: Store) -> None:
    sandbox = await store.add_sandbox()
    assert await claim(store, "one.a") == {sandbox.id}
    store.clock.pass_seconds(59.9)
    assert await claim(store, "two.a") == set()
    store.clock.pass_seconds(0.1)
    assert await claim(store, "two.a") == {sandbox.id}


async def test_a_lease_that_is_renewed_does_not_lapse(store: Store) -> None:
    sandbox = await store.add_sandbox()
    await claim(store, "one.a")
    store.clock.pass_seconds(50)
    await store.write(lambda tx: sandboxes.renew_leases(tx, "one.a", [sandbox.id], lease=LEASE))
    store.clock.pass_seconds(50)
    assert await claim(store, "two.a") == set()


async def test_a_lease_that_somebody_else_holds_is_neither_renewed_nor_released(store: Store) -> None:
    sandbox = await store.add_sandbox()
    await claim(store, "one.a")
    store.clock.pass_seconds(60)
    await claim(store, "two.a")
    await store.write(lambda tx: sandboxes.renew_leases(tx, "one.a", [sandbox.id], lease=LEASE * 10))
    await store.write(lambda tx: sandboxes.release_lease(tx, sandbox.id, "one.a"))
    assert await claim(store, "one.a") == set()
    store.clock.pass_seconds(60)
    assert await claim(store, "one.a") == {sandbox.id}


async def test_a_released_sandbox_is_free_and_wakes_when_there_is_still_work_in_it(store: Store) -> None:
    working, done = await store.add_sandbox(S.TERMINATING), await store.add_sandbox(S.READY)
    await claim(store, "one.a")
    with store.database.wakes.listen(SANDBOXES) as listener:
        await store.write(lambda tx: sandboxes.release_lease(tx, done.id, "one.a"))
        assert not await listener.wait(0)
        await store.write(lambda tx: sandboxes.release_lease(tx, working.id, "one.a"))
        assert await listener.wait(0)
    assert await claim(store, "two.a") == {working.id}


async def test_a_sandbox_that_failed_to_move_rests_before_anybody_tries_again(store: Store) -> None:
    sandbox = await store.add_sandbox()
    await claim(store, "one.a")
    pause = timedelta(seconds=5)
    await store.write(lambda tx: sandboxes.release_lease(tx, sandbox.id, "one.a", retry_after=pause))
    assert await claim(store, "one.a") == set()
    store.clock.pass_seconds(5)
    assert await claim(store, "two.a") == {sandbox.id}


async def test_a_new_life_drops_the_leases_of_its_runners_earlier_ones_and_no_others(store: Store) -> None:
    await store.add_sandbox()
    await store.add_sandbox()
    mine = await claim(store, "runner-1.life-1", limit=1)
    theirs = await claim(store, "runner-11.life-1", limit=1)
    assert len(mine) == len(theirs) == 1
    await store.write(lambda tx: sandboxes.drop_leases(tx, "runner-1"))
    assert await claim(store, "runner-1.life-2") == mine


WORK = {S.REQUESTED, S.ALLOCATING, S.STARTING, S.RESUMING, S.SUSPENDING, S.TERMINATING}
LEFT_OVER = {S.FAILED, S.TERMINATED, S.SUSPENDED}


async def test_work_is_what_is_on_its_way_and_what_is_left_over(store: Store) -> None:
    expected = set()
    for status in S:
        for pending in (False, True):
            sandbox = await store.add_sandbox(status, allocation_pending=pending, instance_id=random_id())
            if status in WORK or (status in LEFT_OVER and pending):
                expected.add(sandbox.id)
    assert await claim(store, "one.a") == expected


@pytest.mark.spec("SA-414", "SA-415", "SA-416", "SA-418")
async def test_what_counts_toward_the_ceiling(store: Store) -> None:
    async def count() -> int:
        return await store.read(lambda tx: sandboxes.count_active(tx, store.made.account_id))

    for status in S:
        before = await count()
        await store.add_sandbox(status, allocation_pending=False)
        assert await count() - before == (0 if status in {S.SUSPENDED, S.TERMINATED} else 1), status
        before = await count()
        await store.add_sandbox(status, allocation_pending=True)
        assert await count() - before == 1, status


@pytest.mark.spec("SA-431", "SA-432")
async def test_a_project_is_counted_inside_its_app(store: Store) -> None:
    await store.add_sandbox(project_id="p")
    await store.add_sandbox(project_id="p")
    await store.add_sandbox(project_id="q")
    await store.add_sandbox()

    async def count(app_id: str, project_id: str | None) -> int:
        account = store.made.account_id
        return await store.read(lambda tx: sandboxes.count_active(tx, account, app_id=app_id, project_id=project_id))

    assert await count(store.made.app_id, "p") == 2
    assert await count(store.made.app_id, "q") == 1
    assert await count(store.made.app_id, None) == 4
    assert await count("another", "p") == 0


@pytest.mark.spec("SA-133", "SA-134", "SA-135")
async def test_pages_of_sandboxes_made_at_one_time_neither_repeat_nor_skip(store: Store) -> None:
    added = [await store.add_sandbox() for _ in range(23)]
    store.clock.pass_seconds(1)
    newest = await store.add_sandbox()

    async def page(number: int) -> tuple[int, list[Sandbox]]:
        return await store.read(
            lambda tx: sandboxes.page(
                tx, store.made.account_id, app_id=None, statuses=None, limit=5, offset=(number - 1) * 5
            )
        )

    pages = [await page(number) for number in range(1, 7)]
    assert {total for total, _ in pages} == {24}
    listed = [sandbox.id for _, found in pages for sandbox in found]
    assert listed[0] == newest.id
    assert sorted(listed) == sorted([newest.id, *(sandbox.id for sandbox in added)])
    assert [len(found) for _, found in pages] == [5, 5, 5, 5, 4, 0]
    assert [sandbox.id for _, found in [await page(n) for n in range(1, 7)] for sandbox in found] == listed


@pytest.mark.spec("SA-129", "SA-130")
async def test_a_list_holds_what_was_asked_for(store: Store) -> None:
    ready, busy = await store.add_sandbox(S.READY), await store.add_sandbox(S.BUSY)
    await store.add_sandbox(S.FAILED)

    async def listed(app_id: str | None, statuses: list[SandboxStatus] | None) -> set[str]:
        _, found = await store.read(
            lambda tx: sandboxes.page(tx, store.made.account_id, app_id=app_id, statuses=statuses, limit=100, offset=0)
        )
        return {sandbox.id for sandbox in found}

    assert await listed(None, [S.READY, S.BUSY]) == {ready.id, busy.id}
    assert await listed(store.made.app_id, [S.READY]) == {ready.id}
    assert await listed("another", None) == set()
    assert len(await listed(None, None)) == 3


@pytest.mark.spec("SA-061")
async def test_activity_only_moves_forward(store: Store) -> None:
    sandbox = await store.add_sandbox(S.READY)
    store.clock.pass_seconds(10)
    await store.write(lambda tx: sandboxes.touch(tx, sandbox.id))
    assert (await store.sandbox(sandbox.id)).last_active_at == store.clock.now
    store.clock.pass_seconds(-5)
    await store.write(lambda tx: sandboxes.touch(tx, sandbox.id))
    assert (await store.sandbox(sandbox.id)).last_active_at > store.clock.now


async def test_compute_is_replaced_for_the_generation_that_was_seen_only(store: Store) -> None:
    sandbox = await store.add_sandbox(S.ALLOCATING, is_warm_allocation=True, instance_id="old", generation=3)
    with pytest.raises(StaleGeneration):
        await store.write(lambda tx: sandboxes.replace_instance(tx, sandbox.id, 2, "new"))
    assert (await store.sandbox(sandbox.id)).instance_id == "old"
    await store.write(lambda tx: sandboxes.replace_instance(tx, sandbox.id, 3, "new"))
    replaced = await store.sandbox(sandbox.id)
    assert (replaced.instance_id, replaced.allocation_pending, replaced.is_warm_allocation) == ("new", True, False)


@pytest.mark.spec("SA-418")
async def test_capacity_is_released_for_the_compute_that_was_cleaned_up_only(store: Store) -> None:
    sandbox = await store.add_sandbox(S.TERMINATED, instance_id="new", allocation_pending=True)
    await store.write(lambda tx: sandboxes.release_allocation(tx, sandbox.id, "old"))
    assert (await store.sandbox(sandbox.id)).allocation_pending
    await store.write(lambda tx: sandboxes.release_allocation(tx, sandbox.id, "new"))
    assert not (await store.sandbox(sandbox.id)).allocation_pending
