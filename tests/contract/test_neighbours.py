"""Sandboxes beside each other on real gVisor: no packet of one comes to another or to the machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.rigs import GvisorRig

from atoll.drivers.contract import created, run, shell, until
from atoll.drivers.contract_isolation import Internet, reach
from atoll.drivers.gvisor import records
from atoll.drivers.gvisor.addresses import SlotAddresses
from atoll.drivers.gvisor.network import Namespace

pytestmark = pytest.mark.gvisor

PORT = 4_567
_LISTEN = r"""
import select, socket, sys
port = int(sys.argv[1])
kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
links = []
for kind in kinds:
    link = socket.socket(socket.AF_INET6, kind); link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    link.bind(("::", port)); links.append(link)
links[0].listen()
print("up", flush=True)
while True:
    for link in select.select(links, [], [])[0]:
        if link is links[0]: said = link.accept()[0].recv(64)
        else: said = link.recv(64)
        print(said.decode(), flush=True)
"""
_ATTACK = r"""
import json, socket, sys
port, targets = int(sys.argv[1]), json.loads(sys.argv[2])
raw = []
for host in targets:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as link:
            link.settimeout(1)
            try:
                if kind == socket.SOCK_DGRAM and family == socket.AF_INET:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                link.connect((host, port)); link.send(b"attack")
            except OSError: pass
    echo = b"\x80\0\0\0\0\1\0\1attack" if family == socket.AF_INET6 else b"\x08\0\x8d\x2d\0\1\0\1attack"
    protocol = socket.IPPROTO_ICMPV6 if family == socket.AF_INET6 else socket.IPPROTO_ICMP
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            with socket.socket(family, kind, protocol) as link:
                link.settimeout(1); link.sendto(echo, (host, 0))
                raw.append([host, kind == socket.SOCK_RAW, b"attack" in link.recv(128)])
        except OSError: pass
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); raw.append(["packets", True, True])
except OSError: pass
print(json.dumps([entry for entry in raw if entry[1] or entry[2]]))
"""
_FORGE = r"""
import json, socket, struct, sys
gateway, targets, sources = json.loads(sys.argv[1])
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); link.bind(("eth0", 0))
own = link.getsockname()[4]
gateway = bytes.fromhex(gateway.replace(":", ""))
def total(data):
    data += b"\0" * (len(data) % 2)
    number = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while number >> 16: number = (number & 0xffff) + (number >> 16)
    return ~number & 0xffff
def datagram(source, target):
    version = socket.AF_INET6 if ":" in target else socket.AF_INET
    s, t = socket.inet_pton(version, source), socket.inet_pton(version, target)
    body = b"attack"
    head = struct.pack("!HHH", 4567, 4567, 8 + len(body))
    size = 8 + len(body)
    pseudo = s + t + (struct.pack("!IHBB", size, 0, 0, 17) if len(s) == 16 else struct.pack("!BBH", 0, 17, size))
    udp = head + struct.pack("!H", total(pseudo + head + b"\0\0" + body)) + body
    if len(s) == 16: return b"\x86\xdd", struct.pack("!IHBB", 6 << 28, len(udp), 17, 64) + s + t + udp
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 7, 0, 64, 17, 0) + s + t
    return b"\x08\0", ip[:10] + struct.pack("!H", total(ip)) + ip[12:] + udp
for target in targets:
    for source in sources:
        if (":" in source) == (":" in target):
            kind, packet = datagram(source, target)
            for to in (gateway, b"\xff" * 6):
                link.send(to + own + kind + packet)
for target in targets:
    if ":" not in target:  # an answer to a question that nobody asked: the neighbour's address is here
        address = socket.inet_aton(target)
        claim = struct.pack("!HHBBH", 1, 0x800, 6, 4, 2) + own + address + gateway + address
        link.send(b"\xff" * 6 + own + b"\x08\x06" + claim)
"""


def ends_of(rig: GvisorRig, instance_id: str) -> SlotAddresses:
    """The addresses of a sandbox and of the machine on their link."""
    slot, plan = records.read_slot(rig.layout.instance(instance_id)), rig.driver._network._plan
    assert slot is not None and plan is not None
    return plan.slot(slot)


@contextlib.contextmanager
def heard_by_the_machine() -> Iterator[list[socket.socket]]:
    """Listeners on every address of the machine."""
    with contextlib.ExitStack() as stack:
        made = []
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            link = stack.enter_context(socket.socket(socket.AF_INET6, kind))
            link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            link.bind(("::", PORT))
            made.append(link)
        made[0].listen()
        yield made


def came_to(listeners: list[socket.socket]) -> list[str]:
    """What came to them until now."""
    found = []
    for link, take in zip(listeners, ("accept", "recv"), strict=True):
        link.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            found.append(str(getattr(link, take)(*([64] if take == "recv" else []))))
    return found


@pytest.mark.spec("SA-197")
async def test_no_packet_of_a_sandbox_comes_to_its_neighbour_or_to_the_machine(
    rig: GvisorRig, internet: Internet
) -> None:
    attacker, victim = await created(rig, "attacker"), await created(rig, "victim")
    listening = await victim.start(uuid4(), ["sh", "-c", 'exec python3 -c "$0" "$1" > /tmp/heard', _LISTEN, str(PORT)])
    assert listening is not None
    its, own = ends_of(rig, "victim"), ends_of(rig, "attacker")

    async def heard() -> list[str]:
        return (await shell(victim, "cat /tmp/heard 2>/dev/null || true")).split()

    async def is_up() -> bool:
        return "up" in await heard()

    await until(is_up)
    targets = [its.sandbox4, its.sandbox6, its.gateway4, its.gateway6, own.gateway4, own.gateway6]
    more = ["255.255.255.255", "224.0.0.1", "ff02::1%2", "fe80::1%2", "127.0.0.1", "169.254.169.254", *internet.host]
    with heard_by_the_machine() as listeners:
        attack = json.dumps([*map(str, targets), *more])
        result = await run(attacker, "python3", "-c", _ATTACK, str(PORT), attack, timeout_seconds=90)
        assert result.state.exit_code == 0, result.stderr.decode()
        answered = [entry for entry in json.loads(result.stdout) if entry[0] != "127.0.0.1"]
        assert answered == [], "no raw socket, and no echo from anybody"
        assert came_to(listeners) == []
    assert await heard() == ["up"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.sendto(b"honest", (str(its.sandbox4), PORT))

    async def hears() -> bool:
        return await heard() == ["up", "honest"]

    await until(hears)


@pytest.mark.spec("SA-197")
async def test_services_of_the_machine_do_not_answer_sandboxes(rig: GvisorRig, internet: Internet) -> None:
    agent = await created(rig)
    ends = ends_of(rig, "one")
    gateways = (str(ends.gateway4), str(ends.gateway6))
    for gateway in gateways:
        with socket.create_connection((gateway, internet.port), 5) as link:
            assert link.recv(16) == b"hello", "it would answer there"
    assert set((await reach(agent, (*gateways, *internet.host), internet.port)).values()) == {None}


@pytest.mark.spec("SA-197")
async def test_whoever_broke_out_of_gvisor_forges_no_packet_to_a_neighbour_or_the_machine(rig: GvisorRig) -> None:
    network = rig.driver._network
    one, two = await network.take(), await network.take()
    try:
        assert network._plan is not None
        own, its = network._plan.slot(one.slot), network._plan.slot(two.slot)
        with (
            _listening(two) as victim,
            heard_by_the_machine() as listeners,
        ):
            targets = [str(each) for each in (its.sandbox4, its.sandbox6, its.gateway4, its.gateway6, own.gateway4)]
            sources = [str(each) for each in (own.sandbox4, own.sandbox6, its.sandbox4, its.sandbox6, own.gateway4)]
            sources += [str(its.gateway4), str(its.gateway6), "127.0.0.1", "::1", "203.0.113.10"]
            link = Path(f"/sys/class/net/{one.interface}/address")
            words = json.dumps([(await asyncio.to_thread(link.read_text)).strip(), targets, sources])
            forging = ["ip", "netns", "exec", one.name, sys.executable, "-c", _FORGE, words]
            await asyncio.to_thread(subprocess.run, forging, check=True, timeout=30)
            assert came_to(listeners) == []
            for address in (its.sandbox4, its.sandbox6):
                family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
                with socket.socket(family, socket.SOCK_DGRAM) as honest:
                    honest.sendto(b"honest", (str(address), PORT))
            assert victim.stdout is not None
            heard = [await asyncio.to_thread(victim.stdout.readline) for _ in range(2)]
            assert heard == ["honest\n"] * 2
    finally:
        await network.remove([one.slot, two.slot])


@contextlib.contextmanager
def _listening(namespace: Namespace) -> Iterator[subprocess.Popen[str]]:
    argv = ["ip", "netns", "exec", namespace.name, sys.executable, "-c", _LISTEN, str(PORT)]
    listener = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "up\n"
        yield listener
    finally:
        listener.kill()
        listener.communicate(timeout=10)
