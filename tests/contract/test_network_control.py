"""Restricted egress on real gVisor: addresses by the packet rules, names by the proxy."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.contract.rigs import GvisorRig

from atoll.domain.egress import EgressPolicy
from atoll.drivers import process
from atoll.drivers.contract import created, run
from atoll.drivers.contract_isolation import Internet, reach

pytestmark = pytest.mark.gvisor

_DATAGRAM = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); link.settimeout(1)
link.sendto(b"hello", (sys.argv[1], int(sys.argv[2])))
"""


def answering(found: dict[str, str | None]) -> set[str]:
    return {address for address, answer in found.items() if answer is not None}


@pytest.mark.spec("SA-189", "SA-197")
async def test_a_sandbox_with_a_list_of_addresses_reaches_those_alone(rig: GvisorRig, internet: Internet) -> None:
    four, six = internet.public
    listed = await created(rig, "listed", egress=EgressPolicy((f"{four}/32",), ()))
    assert answering(await reach(listed, internet.public + internet.inner + internet.host, internet.port)) == {four}
    other = await created(rig, "other", egress=EgressPolicy(("2001:db8:113::/64",), ()))
    assert answering(await reach(other, internet.public, internet.port)) == {six}
    assert answering(await reach(listed, internet.public, internet.port)) == {four}, "one's list is not another's"


@pytest.mark.spec("SA-197")
async def test_the_widest_list_opens_no_infrastructure(rig: GvisorRig, internet: Internet) -> None:
    agent = await created(rig, egress=EgressPolicy(("0.0.0.0/0", "::/0"), ()))
    found = await reach(agent, internet.public + internet.inner + internet.host, internet.port)
    assert answering(found) == set(internet.public)


@pytest.mark.spec("SA-198")
async def test_the_next_sandbox_with_the_same_address_has_a_policy_of_its_own(
    rig: GvisorRig, internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig.driver._network
    await created(rig, "first", egress=EgressPolicy(("192.0.2.1/32",), ()))
    (slot,) = network._restricted
    await rig.driver.destroy("first")
    await rig.driver.cleanup("first")
    unused = [namespace.slot for namespace in network._ready]
    network._ready.clear()
    for _ in range(100):
        if slot not in network.interfaces():
            break
        await asyncio.sleep(0.05)
    monkeypatch.setattr(network, "_free_slots", lambda count: [slot])
    monkeypatch.setattr(network, "_pool_size", 0)
    agent = await created(rig, "second")
    assert answering(await reach(agent, internet.public, internet.port)) == set(internet.public)
    assert network._restricted == {}
    await network.remove(unused)


@pytest.mark.spec("SA-189")
async def test_a_list_holds_while_the_control_plane_is_away_and_when_the_rules_were_flushed(
    rig: GvisorRig, internet: Internet
) -> None:
    four = internet.public[0]
    agent = await created(rig, egress=EgressPolicy((f"{four}/32",), ()))
    await rig.driver.stop()
    assert answering(await reach(agent, internet.public, internet.port)) == {four}
    await process.run(["nft", "delete", "table", "inet", rig.layout.table], timeout=10)
    driver = await rig.restarted()
    try:
        again = await driver.connect("one")
        assert answering(await reach(again, internet.public, internet.port)) == {four}
    finally:
        await driver.stop()


async def test_a_list_keeps_datagrams_back_too(rig: GvisorRig, internet: Internet) -> None:
    agent = await created(rig, egress=EgressPolicy(("192.0.2.1/32",), ()))
    namespace = f"atoll-test-{os.getpid()}"
    # Datagrams alone: the link carries neighbours' discovery of its own.
    watch = ["ip", "netns", "exec", namespace, "grep", "^Udp:", "/proc/net/snmp"]
    before = (await process.run(watch, timeout=10)).stdout
    await run(agent, "python3", "-c", _DATAGRAM, internet.public[0], "9")
    await asyncio.sleep(0.2)
    assert (await process.run(watch, timeout=10)).stdout == before
