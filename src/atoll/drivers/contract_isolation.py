# ruff: noqa: S101, D102 - a test suite: it asserts, and its names are sentences
"""What every driver that isolates must do, as tests: privileges, what can be seen of the machine, limits, network.

Beside `contract`, for drivers that run strangers' code. The image of the rig must have python3.
"""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import pytest

from atoll.domain.command import EndReason
from atoll.domain.errors import RuntimeFailure
from atoll.drivers.base import AgentConnection, Observed
from atoll.drivers.contract import Rig, created, make_spec, run, shell, until

MIB = 1024 * 1024

_REACH = """
import json, socket, sys, threading
targets, found = json.loads(sys.argv[1]), {}
def look(host, port):
    try:
        with socket.create_connection((host, port), 1.5) as link:
            found[host] = link.recv(16).decode()
    except OSError as error:
        found[host] = None
threads = [threading.Thread(target=look, args=target) for target in targets]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(json.dumps(found))
"""
_OWN_ADDRESS = """
import socket, sys
link = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
link.connect((sys.argv[1], 9)); print(link.getsockname()[0])
"""
_SERVE = """
import socket, sys
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
while True: server.accept()[0].sendall(b"hello")
"""
_ALLOCATE = "block = bytearray(%d)\nfor i in range(0, len(block), 4096): block[i] = 1\nprint('done')"
_FILL = """
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(60); os._exit(0)
    except OSError: time.sleep(0.05)
"""
_FORK = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
        made += 1
except OSError: pass
print(made, flush=True)
os.killpg(0, 9)
"""
_THREADS = """
import os, threading
stop, made = threading.Event(), 0
try:
    while made < 500:
        threading.Thread(target=stop.wait, daemon=True).start(); made += 1
except RuntimeError: pass
print(made, flush=True)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Internet:
    """Servers that the test machine reaches, each answering `hello` on one port."""

    port: int
    public: tuple[str, ...]
    """Addresses that sandboxes must reach."""
    inner: tuple[str, ...]
    """Private, metadata and other addresses, routed and answered, that they must not."""
    host: tuple[str, ...]
    """Addresses of the machine itself, with a server on the port."""


class IsolatingRig(Rig, Protocol):
    """A rig whose driver isolates."""

    def cpu_seconds(self, instance_id: str) -> float:
        """Processor time that all processes of the instance have used."""
        ...


async def reach(agent: AgentConnection, addresses: tuple[str, ...], port: int) -> dict[str, str | None]:
    """What each address answers to a command in the sandbox; None for silence or refusal."""
    targets = json.dumps([(address, port) for address in addresses])
    result = await run(agent, "python3", "-c", _REACH, targets)
    assert result.state.exit_code == 0, result.stderr.decode()
    answer: dict[str, str | None] = json.loads(result.stdout)
    return answer


class IsolationContract:
    """Subclass it, give it fixtures `rig` and `internet`, and run it."""

    async def test_commands_have_no_capability_and_gain_no_privilege(self, rig: Rig) -> None:
        agent = await created(rig)
        status = await shell(agent, "cat /proc/self/status")
        found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
            assert int(found[name], 16) == 0, name
        assert (await run(agent, "python3", "-c", "import os; os.setuid(0)")).state.exit_code != 0
        script = "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"
        assert await shell(agent, f"python3 -c '{script}'") == "1\n"

    async def test_only_the_usual_device_files_are_there_and_no_other_opens(self, rig: Rig) -> None:
        agent = await created(rig)
        found = set((await shell(agent, "find /dev -type b -o -type c | sort")).split())
        usual = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console")}
        # gVisor has its own fuse and tun, which are not those of the machine.
        assert {name for name in found if not name.startswith("/dev/pts/")} <= usual | {"/dev/fuse", "/dev/net/tun"}
        # gVisor lets anyone make the node, but nothing is behind it.
        for node in ("b 8 0", "b 254 0", "c 1 1", "c 10 232"):
            script = f"rm -f /workspace/node; mknod /workspace/node {node} && head -c 1 /workspace/node"
            assert (await run(agent, "sh", "-c", script)).state.exit_code != 0, node

    async def test_the_machine_cannot_be_seen(self, rig: Rig) -> None:
        agent = await created(rig)
        mounts = await shell(agent, "cat /proc/self/mountinfo /proc/mounts; cat /proc/1/cmdline | tr '\\0' ' '")
        for path in ("/run/atoll", "/var/lib", "/sys/fs/cgroup", "ephemeral", "/images/"):
            assert path not in mounts
        assert len((await shell(agent, "ls /proc | grep -c '^[0-9]'")).split()) == 1
        assert int(await shell(agent, "ls /proc | grep -c '^[0-9]'")) < 12
        assert await shell(agent, "hostname 2>/dev/null || cat /proc/sys/kernel/hostname") == "sandbox\n"
        assert (await run(agent, "sh", "-c", "echo x >> /.atoll/agent")).state.exit_code != 0

    async def test_instances_share_no_files_and_the_image_stays_as_it_is(self, rig: Rig) -> None:
        one, two = await created(rig, "one"), await created(rig, "two")
        await shell(one, "echo secret > /workspace/file; echo secret > /tmp/file")
        assert (await run(two, "sh", "-c", "cat /workspace/file || cat /tmp/file")).state.exit_code != 0
        assert (await run(two, "sh", "-c", "ls -A /workspace /tmp | grep -q file")).state.exit_code != 0

    @pytest.mark.spec("SA-099", "SA-100", "SA-029")
    async def test_a_process_over_the_memory_is_killed_and_the_sandbox_goes_on(self, rig: Rig) -> None:
        agent = await created(rig)
        bystander = uuid4()
        await agent.start(bystander, ["sleep", "300"])
        result = await run(agent, "python3", "-c", _ALLOCATE % (900 * MIB))
        assert (result.state.exit_code, result.state.reason) == (137, EndReason.KILLED)
        assert await shell(agent, "echo alive") == "alive\n"
        states = {state.execution_id: state for state in await agent.list_commands()}
        assert states[bystander].running
        assert (await rig.driver.observe("one")).observed is Observed.RUNNING

    @pytest.mark.spec("SA-029", "SA-030")
    async def test_memory_within_the_size_is_there(self, rig: Rig) -> None:
        agent = await created(rig)
        assert await shell(agent, "grep MemTotal /proc/meminfo | tr -dc 0-9") == str(512 * 1024)
        assert (await run(agent, "python3", "-c", _ALLOCATE % (400 * MIB))).stdout == b"done\n"
        await rig.driver.destroy("one")
        agent = await created(rig, "two", zclouds=2)
        assert (await run(agent, "python3", "-c", _ALLOCATE % (900 * MIB))).stdout == b"done\n"

    @pytest.mark.spec("SA-029", "SA-030")
    async def test_no_more_than_half_a_processor_for_one_zcloud(self, rig: IsolatingRig) -> None:
        agent = await created(rig)
        for _ in range(2):
            await agent.start(uuid4(), ["sh", "-c", "while :; do :; done"])
        await asyncio.sleep(0.5)
        before, begun = rig.cpu_seconds("one"), asyncio.get_running_loop().time()
        await asyncio.sleep(2.0)
        used, took = rig.cpu_seconds("one") - before, asyncio.get_running_loop().time() - begun
        assert 0.1 < used / took < 0.65

    @pytest.mark.spec("SA-404", "SA-405")
    async def test_the_process_limit_counts_children_and_threads(self, rig: Rig) -> None:
        agent = await created(rig, pid_limit=40)
        for script in (_FORK, _THREADS):
            result = await run(agent, "python3", "-c", script)
            assert 20 < int(result.stdout) <= 40
        assert (await run(agent, "true")).state.exit_code == 0

    @pytest.mark.spec("SA-406")
    async def test_the_supervisor_has_a_process_limit_of_its_own(self, rig: Rig) -> None:
        agent = await created(rig, pid_limit=20)
        full = uuid4()
        await agent.start(full, ["python3", "-c", _FILL])

        async def refused() -> bool:
            return (await run(agent, "sh", "-c", "/bin/true & wait $!")).state.exit_code != 0

        await until(refused)
        assert (await agent.stats()).processes >= 20
        await agent.signal(full, signal.SIGKILL)
        await agent.watch(full)
        assert (await run(agent, "true")).state.exit_code == 0

    @pytest.mark.spec("SA-407")
    async def test_a_very_small_process_limit_keeps_the_sandbox_from_starting(self, rig: Rig) -> None:
        with pytest.raises(RuntimeFailure) as failure:
            await created(rig, pid_limit=1)
        assert not failure.value.code.retryable
        await rig.driver.cleanup("one")
        assert rig.remains("one") == []

    @pytest.mark.spec("SA-404", "SA-409", "SA-410")
    @pytest.mark.parametrize("folder", ["/workspace", "/tmp"])  # noqa: S108 - inside the sandbox
    async def test_too_much_temporary_disk_evicts_the_sandbox_later(self, rig: Rig, folder: str) -> None:
        agent = await created(rig, ephemeral_disk_mb=64)
        result = await run(agent, "dd", "if=/dev/urandom", f"of={folder}/small", "bs=1M", "count=16")
        assert result.state.exit_code == 0
        try:
            result = await run(agent, "dd", "if=/dev/urandom", f"of={folder}/large", "bs=1M", "count=128")
            assert result.state.exit_code == 0
        except RuntimeFailure:
            pass  # evicted while it wrote, which is as good

        async def evicted() -> bool:
            return (await rig.driver.observe("one")).observed is Observed.EXITED

        await until(evicted, seconds=30)
        assert (await rig.driver.observe("one")).detail == "evicted: temporary disk limit"
        await rig.driver.cleanup("one")
        assert rig.remains("one") == []

    async def test_the_internet_is_reached_and_nothing_inside_is(self, rig: Rig, internet: Internet) -> None:
        agent = await created(rig)
        found = await reach(agent, internet.public + internet.inner + internet.host, internet.port)
        assert {address for address, answer in found.items() if answer == "hello"} == set(internet.public)

    async def test_sandboxes_do_not_reach_each_other(self, rig: Rig, internet: Internet) -> None:
        one, two = await created(rig, "one"), await created(rig, "two")
        await one.start(uuid4(), ["python3", "-c", _SERVE, str(internet.port)])
        own = [
            (await run(one, "python3", "-c", _OWN_ADDRESS, public)).stdout.decode().strip()
            for public in internet.public
        ]

        async def serving() -> bool:
            return set((await reach(one, tuple(own), internet.port)).values()) == {"hello"}

        await until(serving)
        assert set((await reach(two, tuple(own), internet.port)).values()) == {None}

    async def test_twenty_at_once(self, rig: Rig) -> None:
        names = [f"many{number}" for number in range(20)]
        await asyncio.gather(*(rig.driver.create(make_spec(rig, name)) for name in names))
        for name in names:
            agent = await rig.driver.connect(name)
            assert (await run(agent, "true")).state.exit_code == 0
            await agent.close()
        await asyncio.gather(*(rig.driver.destroy(name) for name in names))
        await asyncio.gather(*(rig.driver.cleanup(name) for name in names))
        assert [what for name in names for what in rig.remains(name)] == []
