"""A connection that is dropped while it is made is closed, and nothing is kept of instances that are gone."""

from __future__ import annotations

import asyncio

import pytest
from tests.scripted_driver import ScriptedDriver
from tests.unit.workers.world import until

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import AgentConnection, InstanceSpec
from atoll.drivers.connections import AgentConnections

SPEC = InstanceSpec("one", "debian@sha256:" + "0" * 64, None, None, 1, None, None)


class GatedDriver(ScriptedDriver):
    """Connects once the gate is open, and keeps what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.connecting = 0
        self.made: list[AgentConnection] = []

    async def connect(self, instance_id: str) -> AgentConnection:
        self.connecting += 1
        await self.gate.wait()
        self.made.append(await super().connect(instance_id))
        return self.made[-1]


@pytest.fixture
async def driver() -> GatedDriver:
    driver = GatedDriver()
    await driver.create(SPEC)
    return driver


async def test_many_at_once_share_one_connection(driver: GatedDriver) -> None:
    connections = AgentConnections(driver)
    waiting = [asyncio.create_task(connections.get("one")) for _ in range(3)]
    await until(lambda: driver.connecting)
    driver.gate.set()
    assert len({id(await task) for task in waiting}) == 1
    assert len(driver.made) == 1
    assert connections._makings == {}
    await connections.close()
    assert driver.made[0].closed


async def test_a_connection_dropped_while_it_is_made_is_closed(driver: GatedDriver) -> None:
    connections = AgentConnections(driver)
    first = asyncio.create_task(connections.get("one"))
    await until(lambda: driver.connecting)
    await connections.drop("one")
    second = asyncio.create_task(connections.get("one"))
    await asyncio.sleep(0.02)
    assert driver.connecting == 1, "the second does not wait for the first"
    driver.gate.set()
    with pytest.raises(RuntimeFailure) as caught:
        await first
    assert caught.value.code is ErrorCode.AGENT_UNREACHABLE
    live = await second
    assert [made.closed for made in driver.made] == [True, False]
    assert live is driver.made[1]
    assert connections._makings == {}
    await connections.close()


async def test_nothing_is_kept_of_an_instance_that_is_gone(driver: GatedDriver) -> None:
    connections = AgentConnections(driver)
    driver.gate.set()
    for number in range(3):
        with pytest.raises(RuntimeFailure):
            await connections.get(f"gone-{number}")
    assert connections._makings == {}
