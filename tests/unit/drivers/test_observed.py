"""The observing wrapper changes nothing and records every call."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs
from tests.contract.rigs import FakeRig, fake_rig

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import Driver
from atoll.drivers.contract import make_spec, run
from atoll.drivers.observed import ObservedDriver


@pytest.fixture
async def rig() -> AsyncIterator[FakeRig]:
    async with fake_rig() as made:
        yield made


async def test_calls_pass_through_and_are_recorded_with_their_outcome(rig: FakeRig) -> None:
    recorded: list[tuple[str, str]] = []
    driver = ObservedDriver(rig.driver, record=lambda call, seconds, outcome: recorded.append((call, outcome)))
    with capture_logs() as logs:
        await driver.create(make_spec(rig, command=("sleep", "424242")))
        agent = await driver.connect("one")
        assert (await run(agent, "true")).state.exit_code == 0
        rig.driver.faults.fail_next("destroy", RuntimeFailure("no", code=ErrorCode.UNKNOWN))
        with pytest.raises(RuntimeFailure):
            await driver.destroy("one")
        await driver.cleanup("one")
    assert recorded == [("create", "ok"), ("connect", "ok"), ("destroy", "UNKNOWN"), ("cleanup", "ok")]
    assert {entry["instance_id"] for entry in logs} == {"one"}
    assert "424242" not in str(logs)


def test_every_call_of_the_interface_is_wrapped() -> None:
    for name, member in inspect.getmembers(Driver, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(ObservedDriver, name)) == inspect.signature(member), name
