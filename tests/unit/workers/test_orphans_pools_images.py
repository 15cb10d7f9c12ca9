"""Reaping what nobody owns, keeping pools full, and knowing which images are used."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.samples import create_revision_request
from tests.scripted_driver import failure
from tests.unit.workers.world import World, until

from atoll.domain.pool import WarmState
from atoll.domain.sandbox import SandboxStatus
from atoll.domain.template import WarmPool
from atoll.drivers.base import InstanceSpec
from atoll.ops.instance import pool_key
from atoll.ops.template import create_revision
from atoll.store import pools, templates
from atoll.store.database import Transaction
from atoll.system import random_id
from atoll.workers.images import ImageWorker

S = SandboxStatus
OTHER_IMAGE = f"example.test/other@sha256:{'2' * 64}"


async def stray(world: World, *, alive: bool = True) -> str:
    instance_id = random_id()
    await world.driver.create(InstanceSpec(instance_id, OTHER_IMAGE, None, None, 1, None, None))
    if not alive:
        world.driver.kill(instance_id)
    return instance_id


async def test_instances_that_nobody_owns_are_reaped_dead_or_alive(world: World) -> None:
    ready = await world.ready()
    await stray(world)
    await stray(world, alive=False)
    await world.orphans.run_once()
    assert set(world.driver.instances) == {ready.instance_id}


async def test_an_orphan_that_resists_does_not_protect_the_others(world: World) -> None:
    resisting = await stray(world)
    others = [await stray(world) for _ in range(3)]

    async def before(name: str, subject: str) -> None:
        if name == "destroy" and subject == resisting:
            raise failure()

    world.driver.before = before
    await world.orphans.run_once()
    assert set(world.driver.instances) == {resisting}, others
    world.driver.before = None
    await world.orphans.run_once()
    assert world.driver.instances == {}


@pytest.mark.parametrize("status", list(S))
async def test_what_is_on_record_is_never_reaped(world: World, status: SandboxStatus) -> None:
    instance_id = await stray(world)
    await world.store.add_sandbox(status, instance_id=instance_id, allocation_pending=True)
    await world.orphans.run_once()
    assert world.driver.live() == {instance_id}


@pytest.mark.parametrize("status", [S.FAILED, S.TERMINATED, S.SUSPENDED])
async def test_what_was_released_and_is_found_again_is_reaped(world: World, status: SandboxStatus) -> None:
    instance_id = await stray(world)
    await world.store.add_sandbox(status, instance_id=instance_id, allocation_pending=False)
    await world.orphans.run_once()
    assert world.driver.instances == {}


async def test_an_instance_in_the_making_is_never_taken_for_an_orphan(world: World) -> None:
    made, go_on = asyncio.Event(), asyncio.Event()

    async def before(name: str, subject: str) -> None:
        if name == "connect" and not go_on.is_set():
            made.set()
            await go_on.wait()

    world.driver.before = before
    sandbox = await world.create()
    await world.begin_work()
    await asyncio.wait_for(made.wait(), 5)
    await world.orphans.run_once()
    go_on.set()
    await world.work()
    assert (await world.get(sandbox)).status is S.READY
    assert len(world.driver.created) == 1


async def waiting(world: World) -> list[str]:
    return [i.id for i in await world.store.read(pools.list_all) if i.state is WarmState.WAITING]


@pytest.fixture
async def pooled(world: World) -> World:
    """A world whose default template has a pool of two."""
    world.settings["warm_pool_size"] = 2
    await world.next_life()
    return world


async def test_a_pool_is_filled_and_filled_up_again_after_claims(pooled: World) -> None:
    await pooled.fill_pools()
    assert set(await waiting(pooled)) == pooled.driver.live()
    assert len(pooled.driver.live()) == 2
    await pooled.ready()
    await pooled.fill_pools()
    assert len(await waiting(pooled)) == 2


async def test_a_pool_of_a_revision_is_filled_beside_the_default_one(pooled: World) -> None:
    made = pooled.store.made
    request = create_revision_request(
        account_id=made.account_id, template_id=made.template_id, image_digest=OTHER_IMAGE, warm_pool=WarmPool(3, 0, 4)
    )
    revision = await create_revision(pooled.services, pooled.store.principal, request)
    await pooled.fill_pools()
    held = await pooled.store.read(pools.list_all)
    assert [instance.pool_key for instance in held] == [pool_key(revision)] * 3


async def test_a_pool_that_a_create_found_empty_grows_to_its_maximum_for_ten_minutes(world: World) -> None:
    made = world.store.made
    request = create_revision_request(
        account_id=made.account_id, template_id=made.template_id, image_digest=OTHER_IMAGE, warm_pool=WarmPool(1, 0, 3)
    )
    await create_revision(world.services, world.store.principal, request)
    await world.fill_pools()
    assert len(await waiting(world)) == 1
    first, second = await world.create(), await world.create(idempotency_key="second")
    await world.work()
    assert [(await world.get(s)).is_warm_allocation for s in (first, second)] == [True, False]
    await world.fill_pools()
    assert len(await waiting(world)) == 3
    world.store.clock.pass_seconds(601)
    await world.fill_pools()
    assert len(await waiting(world)) == 1


async def test_surplus_is_discarded(pooled: World) -> None:
    await pooled.fill_pools()
    pooled.settings["warm_pool_size"] = 1
    await pooled.next_life()
    await pooled.fill_pools()
    assert set(await waiting(pooled)) == pooled.driver.live()
    assert len(pooled.driver.instances) == 1


async def test_instances_of_a_superseded_shape_give_way_to_new_ones(pooled: World) -> None:
    await pooled.fill_pools()
    old = pooled.driver.live()
    made = pooled.store.made
    request = create_revision_request(
        account_id=made.account_id, template_id=made.template_id, image_digest=OTHER_IMAGE
    )
    await create_revision(pooled.services, pooled.store.principal, request)
    await pooled.fill_pools()
    assert not old & set(pooled.driver.instances)
    assert {i.spec.image_digest for i in pooled.driver.instances.values()} == {OTHER_IMAGE}
    assert len(await waiting(pooled)) == 2


@pytest.mark.parametrize("change", [{"enabled": False}, {"deprecated_at": "now"}])
async def test_no_pool_is_kept_for_a_template_that_offers_nothing(pooled: World, change: dict[str, object]) -> None:
    await pooled.fill_pools()
    values = {name: pooled.store.clock.now if value == "now" else value for name, value in change.items()}
    await pooled.store.write(lambda tx: templates.save(tx, pooled.store.made.template_id, **values))
    await pooled.fill_pools()
    assert pooled.driver.instances == {}


async def test_a_boot_that_a_crash_cut_off_is_removed_and_made_good(pooled: World) -> None:
    left = random_id()
    revision = await pooled.revision()

    def add(tx: Transaction) -> None:
        pools.add(tx, left, pool_key(revision))

    await pooled.store.write(add)
    await pooled.driver.create(InstanceSpec(left, revision.image_digest, None, None, 1, None, None))
    await pooled.fill_pools()
    assert left not in pooled.driver.instances
    assert len(await waiting(pooled)) == 2


async def test_a_boot_that_fails_leaves_nothing_and_is_not_tried_again_at_once(pooled: World) -> None:
    async def before(name: str, subject: str) -> None:
        if name == "create":
            raise failure()

    pooled.driver.before = before
    await pooled.fill_pools()
    tried = sum(name == "create" for name, _ in pooled.driver.calls)
    assert tried == 2
    due = await pooled.pools.run_once()
    assert due is not None and 0 < due <= 30
    await pooled.fill_pools()
    assert sum(name == "create" for name, _ in pooled.driver.calls) == tried
    assert await pooled.store.read(pools.list_all) == []
    assert pooled.driver.instances == {}


async def test_an_error_without_a_name_in_a_boot_is_held_like_a_failure(pooled: World) -> None:
    async def before(name: str, subject: str) -> None:
        if name == "create":
            raise OSError("no")

    pooled.driver.before = before
    await pooled.fill_pools()
    assert await pooled.store.read(pools.list_all) == []
    assert sum(name == "create" for name, _ in pooled.driver.calls) == 2


async def test_a_boot_that_ends_while_the_pool_is_looked_at_is_neither_lost_nor_doubled(pooled: World) -> None:
    go_on = asyncio.Event()

    async def before(name: str, subject: str) -> None:
        if name == "create":
            await go_on.wait()

    pooled.driver.before = before
    await pooled.pools.run_once()
    read = pooled.store.database.read

    async def read_then_end(function):  # type: ignore[no-untyped-def]  # the signature of read
        found = await read(function)
        if function == pooled.pools._look:
            go_on.set()
            await until(lambda: not pooled.pools._tasks)
        return found

    pooled.store.database.read = read_then_end  # type: ignore[method-assign]  # to be in the gap
    await pooled.pools.run_once()
    pooled.store.database.read = read  # type: ignore[method-assign]  # as it was
    await pooled.fill_pools()
    assert len(pooled.driver.created) == 2
    assert set(await waiting(pooled)) == set(pooled.driver.created)


async def test_instances_that_are_booted_alike_share_a_pool_and_others_do_not(world: World) -> None:
    revision = await world.revision()
    alike = replace(revision, id="another", revision=9, idle_timeout_seconds=1, ports=(80,))
    assert pool_key(alike) == pool_key(revision)
    for change in (
        {"image_digest": OTHER_IMAGE},
        {"command": ("sleep", "1")},
        {"working_dir": "/"},
        {"zclouds": 2},
        {"pid_limit": 9},
        {"ephemeral_disk_mb": 9},
    ):
        assert pool_key(replace(revision, **change)) != pool_key(revision), change


async def test_images_of_live_sandboxes_and_of_current_revisions_are_kept(world: World) -> None:
    first = await world.revision()
    sandbox = await world.ready()
    made = world.store.made
    request = create_revision_request(
        account_id=made.account_id, template_id=made.template_id, image_digest=OTHER_IMAGE
    )
    await create_revision(world.services, world.store.principal, request)
    worker = ImageWorker(world.services)
    await worker.run_once()
    assert world.driver.images_in_use == {first.image_digest, OTHER_IMAGE}
    await world.terminate(sandbox)
    await world.work()
    await worker.run_once()
    assert world.driver.images_in_use == {OTHER_IMAGE}
