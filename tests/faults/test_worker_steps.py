"""Every step of every worker is cut off, by an error or by the death of the control plane, and the next life converges.

A script of moves is run once to count the calls of the driver and the transactions. Then it is run again for each of
them, with that one failing: before it took effect, after it took effect, or with the whole control plane dying there.
However that goes, the ordinary passes of a later life must arrive where an undisturbed run arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tests.databases import migrated_database, opened
from tests.scripted_driver import failure
from tests.unit.workers.world import World

from atoll.domain.sandbox import Sandbox, SandboxStatus
from atoll.store import pools, sandboxes
from atoll.store.tables import sandbox_events
from atoll.workers import pools as pool_worker

S = SandboxStatus
LEASE = timedelta(seconds=1)
DRIVER_CALLS = ("prepare_image", "create", "connect", "destroy", "cleanup")


class Harm(Enum):
    """What happens at the step."""

    NAMED_FAILURE = "the driver fails with a code before anything is done"
    ERROR_BEFORE = "an error without a name before anything is done"
    ERROR_AFTER = "an error without a name after it is done"
    DEATH_BEFORE = "the control plane dies before it is done"
    DEATH_AFTER = "the control plane dies after it is done"


DEATHS = {Harm.DEATH_BEFORE, Harm.DEATH_AFTER}


class Faults:
    """Counts the steps of a world, and harms one of them."""

    def __init__(self, world: World, at: int | None, harm: Harm) -> None:
        self.world = world
        self.at = at
        self.harm = harm
        self.steps: list[str] = []
        self.died = asyncio.Event()
        self.lives = asyncio.Event()
        self.lives.set()
        self.struck = False
        self._wrap()

    def _wrap(self) -> None:
        for name in DRIVER_CALLS:
            setattr(self.world.driver, name, self._step(name, getattr(self.world.driver, name)))
        database = self.world.store.database
        database.write = self._step("write", database.write)  # type: ignore[method-assign, assignment]  # to count and to harm

    def _step(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def step(subject: Any) -> Any:
            if self.struck:
                await self.lives.wait()  # nothing moves once it is dead
                return await call(subject)
            number = len(self.steps)
            self.steps.append(name)
            if number != self.at:
                return await call(subject)
            self.struck = True
            if self.harm in {Harm.ERROR_AFTER, Harm.DEATH_AFTER}:
                await call(subject)
            return await self._strike(name)

        return step

    async def _strike(self, name: str) -> None:
        if self.harm in DEATHS:
            self.died.set()
            self.lives.clear()
            await asyncio.Event().wait()
        if self.harm is Harm.NAMED_FAILURE and name != "write":
            raise failure()
        raise OSError("struck")

    def revive(self) -> None:
        """Nothing is dead any more, and nothing more is harmed."""
        self.struck = True
        self.lives.set()


@asynccontextmanager
async def new_world(folder: Path, **settings: Any) -> AsyncIterator[World]:
    """A world of its own for one run, in a folder that there is."""
    with migrated_database(folder, None) as url:
        async with opened(url) as store:
            world = World(store, folder, **settings)
            yield world
            await world.end_life()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


Script = Callable[[World], Coroutine[Any, Any, Sandbox]]


async def boot(world: World) -> Sandbox:
    """A sandbox is asked for and provided."""
    sandbox = await world.create()
    await world.work()
    return sandbox


async def boot_and_terminate(world: World) -> Sandbox:
    """A sandbox is provided and ended."""
    sandbox = await boot(world)
    await world.terminate(sandbox)
    await world.work()
    return sandbox


async def claim_from_a_pool(world: World) -> Sandbox:
    """A pool is filled, and a sandbox claims from it."""
    await world.fill_pools()
    sandbox = await boot(world)
    await world.fill_pools()
    return sandbox


async def claim_a_dead_one(world: World) -> Sandbox:
    """A sandbox claims an instance that has died."""
    await world.fill_pools()
    world.services.agents.on_lost = None
    for instance_id in world.driver.live():
        world.driver.kill(instance_id)
    return await boot(world)


async def die(world: World) -> Sandbox:
    """A sandbox dies by itself and is cleaned up after."""
    sandbox = await boot(world)
    instance_id = (await world.get(sandbox)).instance_id
    if instance_id in world.driver.instances:
        world.driver.kill(instance_id)
    await world.watch_once()
    await world.work()
    return sandbox


SCRIPTS: dict[str, tuple[Script, dict[str, int], set[SandboxStatus]]] = {
    "boot": (boot, {}, {S.READY}),
    "boot and terminate": (boot_and_terminate, {}, {S.TERMINATED}),
    "claim from a pool": (claim_from_a_pool, {"warm_pool_size": 1}, {S.READY}),
    "claim a dead one": (claim_a_dead_one, {"warm_pool_size": 1}, {S.READY}),
    "die": (die, {}, {S.FAILED}),
}


async def run(script: Script, world: World, faults: Faults) -> None:
    """Run the script to its end, to its death, or to an error that reaches the caller."""
    running = asyncio.create_task(script(world))
    death = asyncio.create_task(faults.died.wait())
    await asyncio.wait({running, death}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    for task in (running, death):
        task.cancel()
    await asyncio.gather(running, death, return_exceptions=True)


async def converge(world: World, faults: Faults, *, restart: bool) -> None:
    """Let the ordinary passes do what they do, with time passing, until nothing is left to do."""
    if restart:
        await world.end_life()
    faults.revive()
    if restart:
        world.begin_life()
        await world.store.write(lambda tx: sandboxes.drop_leases(tx, "runner"))
    for _ in range(2):
        await world.watch_once()
        await world.work()
        world.pools._not_before = 0.0
        await world.fill_pools()
        world.store.clock.pass_seconds(61)


async def check(world: World, script: str, harm: Harm) -> None:
    """No sandbox is stuck, none has two instances, nothing is on the machine that nobody owns."""
    _, _, arrives = SCRIPTS[script]
    found = await world.store.read(
        lambda tx: sandboxes.page(tx, world.store.made.account_id, app_id=None, statuses=None, limit=100, offset=0)[1]
    )
    # A create that was cut off may have made none; never two.
    assert len(found) <= 1
    warm = {instance.id for instance in await world.store.read(pools.list_all)}
    owned = set(warm)
    for sandbox in found:
        settled = {S.READY, S.FAILED, S.TERMINATED}
        assert sandbox.status in settled, sandbox
        if harm is not Harm.NAMED_FAILURE:
            # Only a failure that the driver named may show: anything else is made good. A script that was cut off
            # before its later moves stays where they found it.
            assert sandbox.status in arrives | {S.READY}, sandbox
        if sandbox.status is S.READY:
            assert sandbox.instance_id is not None
            owned.add(sandbox.instance_id)
        else:
            assert not sandbox.allocation_pending, sandbox
        assert sandbox.desired_status is None
        e = sandbox_events.c
        events = select(e.generation).where(e.sandbox_id == sandbox.id).order_by(e.generation)
        written = await world.store.read(lambda tx, events=events: list(tx.connection.execute(events).scalars()))  # type: ignore[misc]  # bound now
        assert written == list(range(sandbox.generation + 1))
    # Nothing is left to the reaper of orphans, and it takes nothing that is owned.
    assert set(world.driver.instances) == owned
    await world.orphans.run_once()
    assert world.driver.live() == set(world.driver.instances) == owned
    claims = await world.store.write(lambda tx: sandboxes.claim_work(tx, "nobody", lease=LEASE, limit=100))
    assert claims == []


@pytest.fixture(autouse=True)
def prompt_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool lets a moment go by before it boots, here several hundred times."""
    monkeypatch.setattr(pool_worker, "_REFILL_AFTER_SECONDS", 0)


@pytest.mark.spec("SA-124", "SA-144", "SA-418")
@pytest.mark.parametrize("harm", list(Harm), ids=[harm.name.lower() for harm in Harm])
@pytest.mark.parametrize("script", list(SCRIPTS))
async def test_a_step_that_is_cut_off_is_made_good(script: str, harm: Harm, tmp_path: Path) -> None:
    play, settings, arrives = SCRIPTS[script]
    async with new_world(_made(tmp_path / "whole"), **settings) as world:
        whole = Faults(world, None, harm)
        sandbox = await play(world)
        assert (await world.get(sandbox)).status in arrives
        steps = list(whole.steps)
        await converge(world, whole, restart=False)
        await check(world, script, harm)
    assert len(steps) >= 5
    for at, name in enumerate(steps):
        if harm is Harm.NAMED_FAILURE and name == "write":
            continue
        async with new_world(_made(tmp_path / str(at)), **settings) as world:
            faults = Faults(world, at, harm)
            await run(play, world, faults)
            try:
                await converge(world, faults, restart=harm in DEATHS)
                await check(world, script, harm)
            except AssertionError as error:
                raise AssertionError(f"after step {at} ({name}) of {steps}: {error}") from error
