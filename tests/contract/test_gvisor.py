"""What only the gVisor driver promises: gVisor itself, its network rules, named failures, and no leftover of a killed
owner."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import internet as test_internet
from tests.contract.rigs import GvisorRig
from tests.images import default_image_store

from atoll.agent.binary import agent_binary
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers import process
from atoll.drivers.base import Observed
from atoll.drivers.contract import created, make_spec, run, shell
from atoll.drivers.gvisor.driver import GvisorDriver
from atoll.drivers.gvisor.network import Namespace
from atoll.drivers.gvisor.probe import RunscTraits

pytestmark = pytest.mark.gvisor

_OWNER = Path(__file__).with_name("owner.py")
_SENDER = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind((sys.argv[1], 0))
for _ in range(5): link.sendto(b"spoof", (sys.argv[2], int(sys.argv[3])))
"""
_RECEIVER = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind((sys.argv[1], int(sys.argv[2]))); link.settimeout(1.5)
print("up", flush=True)
try:
    while True: print(link.recvfrom(100)[1][0], flush=True)
except OSError: pass
"""


def changed(rig: GvisorRig, traits: RunscTraits, **changes: object) -> GvisorDriver:
    """A driver over the same machine with other settings."""
    settings = dataclasses.replace(rig.driver._settings, **changes)  # type: ignore[arg-type]
    return GvisorDriver(settings, default_image_store(), agent=agent_binary(), traits=traits)


def spawn(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


@pytest.mark.spec("SA-001")
async def test_the_workload_sees_the_kernel_of_gvisor_and_not_the_machines(rig: GvisorRig) -> None:
    agent = await created(rig)
    assert "gVisor" in await shell(agent, "dmesg")
    assert os.uname().release not in await shell(agent, "uname -a; cat /proc/version")


async def test_a_sandbox_of_half_a_processor_runs_on_one_at_a_time(rig: GvisorRig) -> None:
    await created(rig)
    allowed = {frozenset(os.sched_getaffinity(pid)) for pid in rig.cgroups.processes("one")}
    assert [len(processors) for processors in allowed] == [1]


async def test_the_rules_stand_before_the_first_sandbox_and_come_back_when_flushed(
    rig: GvisorRig,
) -> None:
    tables = (await process.run(["nft", "list", "tables", "inet"], timeout=10)).stdout.decode()
    assert rig.layout.table in tables
    await process.run(["nft", "delete", "table", "inet", rig.layout.table], timeout=10)
    await rig.driver._network._check_rules()
    tables = (await process.run(["nft", "list", "tables", "inet"], timeout=10)).stdout.decode()
    assert rig.layout.table in tables


async def test_a_forged_source_address_does_not_leave_the_machine(rig: GvisorRig) -> None:
    namespace = await rig.driver._network.take()
    try:
        with test_internet.internet() as internet:
            plan = rig.driver._network._plan
            assert plan is not None
            own, port = str(plan.slot(namespace.slot).sandbox4), str(internet.port)
            # Somebody else's address on the loopback interface of the namespace, as a sandbox could forge it.
            forged = str(plan.slot(namespace.slot + 1).sandbox4)
            await process.run(["ip", "-n", namespace.name, "addr", "add", f"{forged}/32", "dev", "lo"], timeout=10)
            outside = ["ip", "netns", "exec", f"atoll-test-{os.getpid()}", sys.executable, "-c", _RECEIVER]
            receiver = await asyncio.to_thread(spawn, *outside, internet.public[0], port)
            assert await asyncio.to_thread(first_line, receiver) == "up\n"
            for source in (forged, own):
                words = ["ip", "netns", "exec", namespace.name, sys.executable, "-c", _SENDER]
                await process.run([*words, source, internet.public[0], port], timeout=10)
            heard, _ = await asyncio.to_thread(receiver.communicate, timeout=20)
            # Only the honest packets came, with the machine's address in place of their own.
            assert heard.split() == [internet.host[0]] * 5
    finally:
        await rig.driver._network.remove([namespace.slot])


async def test_a_broken_runsc_is_named_and_says_nothing_of_the_machine(
    rig: GvisorRig, traits: RunscTraits, tmp_path: Path
) -> None:
    broken = tmp_path / "runsc"
    broken.write_text("#!/bin/sh\necho 'running container: creating container: /var/lib/secret' >&2\nexit 128\n")
    broken.chmod(0o755)
    for path in (broken, tmp_path / "none"):
        driver = changed(rig, traits, runsc=path, namespace_pool=0)
        await driver.start()
        try:
            with pytest.raises(RuntimeFailure) as caught:
                await driver.create(make_spec(rig))
            assert caught.value.code is ErrorCode.UNKNOWN
            assert "atoll doctor" in caught.value.message
            assert "/" not in caught.value.message.replace("`", "")
            await driver.cleanup("one")
            assert rig.remains("one") == []
        finally:
            await driver.stop()


async def test_a_boot_that_takes_too_long_can_be_retried(rig: GvisorRig, traits: RunscTraits) -> None:
    driver = changed(rig, traits, boot_timeout_seconds=0.02, namespace_pool=0)
    await driver.start()
    try:
        with pytest.raises(RuntimeFailure) as caught:
            await driver.create(make_spec(rig))
        assert caught.value.code is ErrorCode.AGENT_UNREACHABLE
        assert not [what for what in rig.remains("one") if what.startswith("process")]
    finally:
        await driver.stop()


async def test_a_namespace_that_is_gone_is_named(rig: GvisorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def take() -> Namespace:
        return Namespace(999, "atoll-none-999", "none")

    monkeypatch.setattr(rig.driver._network, "take", take)
    with pytest.raises(RuntimeFailure) as caught:
        await rig.driver.create(make_spec(rig))
    assert caught.value.code is ErrorCode.NAMESPACE_DENIED


async def test_a_full_disk_is_named_and_can_be_retried(rig: GvisorRig) -> None:
    disk = rig.layout.disk_dir
    await process.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=2,size=64k", "none", str(disk)], timeout=10)
    try:
        with pytest.raises(RuntimeFailure) as caught:
            await rig.driver.create(make_spec(rig))
        assert caught.value.code is ErrorCode.SANDBOX_NOT_READY
        assert caught.value.code.retryable
        assert "disk" in caught.value.message
        await rig.driver.cleanup("one")
    finally:
        await process.run(["umount", str(disk)], timeout=10)
    assert (await run(await created(rig), "true")).state.exit_code == 0


async def test_leftovers_without_their_folder_are_found(rig: GvisorRig) -> None:
    rig.cgroups.create("group-only", rig.driver._limits(make_spec(rig)))
    (rig.layout.disk_dir / "disk-only" / "root").mkdir(parents=True)
    (rig.layout.instances_dir / "folder-only").mkdir()
    seen = {found.instance_id: found.observed for found in await rig.driver.list_instances()}
    assert seen == dict.fromkeys(("disk-only", "folder-only", "group-only"), Observed.EXITED)
    for name in seen:
        await rig.driver.cleanup(name)
        assert rig.remains(name) == []


async def test_a_namespace_that_nothing_names_is_removed_at_the_next_start(rig: GvisorRig) -> None:
    await created(rig)
    lost = await rig.driver._network.take()
    await rig.driver.stop()
    driver = await rig.restarted()
    try:
        assert lost.slot not in rig.network.existing() or lost.slot in {n.slot for n in driver._network._ready}
        agent = await driver.connect("one")
        assert (await run(agent, "true")).state.exit_code == 0
    finally:
        await driver.stop()


async def test_a_folder_of_another_kind_is_not_an_instance(rig: GvisorRig) -> None:
    (rig.layout.instances_dir / "not an id").mkdir()
    assert await rig.driver.list_instances() == []


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4])
async def test_a_killed_owner_leaves_nothing_that_is_not_found(
    rig: GvisorRig, traits: RunscTraits, runsc: Path, seconds: float
) -> None:
    await rig.driver.stop()
    hide = "1" if traits.hide_proc_sys_net else "0"
    words = [str(rig.driver._settings.data_dir), str(default_image_store().root), rig.image_digest, str(runsc), hide]
    owner = await asyncio.to_thread(spawn, sys.executable, str(_OWNER), *words)
    try:
        assert await asyncio.to_thread(first_line, owner) == "started\n"
        await asyncio.sleep(seconds)
    finally:
        owner.kill()
        owner.communicate(timeout=10)
    driver = await rig.restarted()
    try:
        assert len(await driver.list_instances()) <= 1
        await driver.create(make_spec(rig))
        agent = await driver.connect("one")
        assert (await run(agent, "true")).state.exit_code == 0
        assert [found.observed for found in await driver.list_instances()] == [Observed.RUNNING]
        await driver.destroy("one")
        await driver.cleanup("one")
        assert rig.remains("one") == []
    finally:
        await driver.stop()
