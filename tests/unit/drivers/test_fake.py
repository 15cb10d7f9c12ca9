"""What tests can break in the fake driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.contract.rigs import FakeRig, fake_rig

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import Observed
from atoll.drivers.contract import make_spec

FAILURE = RuntimeFailure("broken by the test", code=ErrorCode.SANDBOX_NOT_READY)


@pytest.fixture
async def rig() -> AsyncIterator[FakeRig]:
    async with fake_rig() as made:
        yield made


async def test_the_next_create_fails_and_the_one_after_works(rig: FakeRig) -> None:
    rig.driver.faults.fail_next("create", FAILURE)
    with pytest.raises(RuntimeFailure, match="broken by the test"):
        await rig.driver.create(make_spec(rig))
    assert (await rig.driver.observe("one")).observed is Observed.ABSENT
    await rig.driver.create(make_spec(rig))
    assert (await rig.driver.observe("one")).observed is Observed.RUNNING


async def test_a_create_can_fail_after_its_work_and_leaves_nothing_running(rig: FakeRig) -> None:
    rig.driver.faults.fail_next("create", FAILURE, moment="after")
    with pytest.raises(RuntimeFailure):
        await rig.driver.create(make_spec(rig))
    assert (await rig.driver.observe("one")).observed is Observed.EXITED


async def test_a_call_can_be_delayed_and_held(rig: FakeRig) -> None:
    rig.driver.faults.delay("observe", 0.1)
    begun = time.monotonic()
    await rig.driver.observe("one")
    assert time.monotonic() - begun >= 0.1
    gate = rig.driver.faults.hold("create")
    making = asyncio.create_task(rig.driver.create(make_spec(rig)))
    done, _ = await asyncio.wait([making], timeout=0.2)
    assert not done
    assert [found.observed for found in await rig.driver.list_instances()] in ([], [Observed.STARTING])
    gate.set()
    await making


async def test_an_instance_can_be_killed_from_outside(rig: FakeRig) -> None:
    await rig.driver.create(make_spec(rig))
    await rig.driver.kill_from_outside("one")
    assert (await rig.driver.observe("one")).observed is Observed.EXITED
