"""Memory that runs out: the greedy process dies, the sandbox goes on.

Version 1 of cgroups for real; version 2 from files as Linux 6 writes them, with the numbers set by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.agent.conftest import Sandbox, until_true
from tests.contract.agent.test_shim import remove

from atoll.domain.command import EndReason

MIB = 1024 * 1024
V1 = Path("/sys/fs/cgroup/memory")
RECORDED = Path(__file__).parent / "recorded"
GREED = "my @a; for (1..400) { push @a, 'x' x 1048576; select(undef, undef, undef, 0.002) } print 'survived'"


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    if not (V1 / "memory.usage_in_bytes").exists():
        pytest.skip("no version 1 memory cgroup here")
    cgroup = V1 / f"atoll-agent-test-{uuid4().hex[:8]}"
    cgroup.mkdir()
    try:
        yield cgroup
    finally:
        until_true(lambda: remove(cgroup))


def remove_file(file: str) -> None:
    Path(file).unlink(missing_ok=True)


def options(version: str, cgroup: Path, limit: int, reserve: int) -> tuple[str, ...]:
    return (
        *("--memory", version, "--memory-cgroup", str(cgroup)),
        *("--memory-limit", str(limit), "--memory-reserve", str(reserve)),
    )


def start_limited(sandbox: Sandbox, cgroup: Path, *, limit: int, hard: int) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(str(hard))
    (cgroup / "memory.oom_control").write_text("1")
    join = ("--join", str(cgroup / "cgroup.procs"), "--kill-cgroup", str(cgroup))
    sandbox.start(shim_options=(*join, *options("v1", cgroup, limit, 64 * MIB)))


@pytest.mark.spec("SA-234", "SA-265")
async def test_the_greedy_process_dies_and_the_sandbox_goes_on(memory_cgroup: Path, sandbox: Sandbox) -> None:
    start_limited(sandbox, memory_cgroup, limit=120 * MIB, hard=250 * MIB)
    async with sandbox.client() as client:
        modest = uuid4()
        await client.start(modest, ["perl", "-e", "my $x = 'x' x (20 << 20); sleep 60"])
        for _ in range(3):
            result = await client.run(uuid4(), ["perl", "-e", GREED], timeout_seconds=30)
            assert (result.state.exit_code, result.state.reason, result.stdout) == (137, EndReason.KILLED, b"")
        assert next(s for s in await client.list_commands() if s.execution_id == modest).running
        await client.kill_sandbox(limit_seconds=10)
    assert sandbox.ending() == {"code": 0, "signal": 9, "oom": 0, "killed": 1}


async def test_a_command_whose_child_ate_the_memory_is_called_killed(memory_cgroup: Path, sandbox: Sandbox) -> None:
    start_limited(sandbox, memory_cgroup, limit=100 * MIB, hard=220 * MIB)
    async with sandbox.client() as client:
        script = 'perl -e "$1"; echo child ended; exit 5'
        result = await client.run(uuid4(), ["sh", "-c", script, "sh", GREED], timeout_seconds=30)
        assert (result.state.exit_code, result.state.reason) == (137, EndReason.KILLED)
        assert result.stdout == b"child ended\n"
        forgiving = await client.run(uuid4(), ["sh", "-c", 'perl -e "$1"; true', "sh", GREED], timeout_seconds=30)
        assert (forgiving.state.exit_code, forgiving.state.reason) == (0, None)


async def test_the_page_cache_kills_nobody(memory_cgroup: Path, sandbox: Sandbox) -> None:
    start_limited(sandbox, memory_cgroup, limit=60 * MIB, hard=120 * MIB)
    file = f"/tmp/atoll-cache-{uuid4().hex}"
    try:
        async with sandbox.client() as client:
            write = ["dd", "if=/dev/zero", f"of={file}", "bs=1M", "count=150"]
            assert (await client.run(uuid4(), write, timeout_seconds=60)).state.exit_code == 0
            assert (await client.run(uuid4(), ["perl", "-e", GREED], timeout_seconds=30)).state.exit_code == 137
    finally:
        remove_file(file)


async def test_a_sandbox_frozen_at_its_hard_limit_is_thawed(memory_cgroup: Path, sandbox: Sandbox) -> None:
    # No room between the two limits, so that the freeze comes first.
    start_limited(sandbox, memory_cgroup, limit=100 * MIB, hard=100 * MIB)
    async with sandbox.client() as client:
        fast = "my $x = 'x' x (300 << 20); print 'survived'"
        result = await client.run(uuid4(), ["perl", "-e", fast], timeout_seconds=30)
        assert (result.state.exit_code, result.state.reason) == (137, EndReason.KILLED)
        limit = memory_cgroup / "memory.limit_in_bytes"
        await asyncio.to_thread(until_true, lambda: int(limit.read_text()) == 100 * MIB, limit=5)
        assert (await client.run(uuid4(), ["true"], timeout_seconds=10)).state.exit_code == 0


async def test_version_2_files_lead_to_the_same_kill(sandbox: Sandbox) -> None:
    cgroup = sandbox.folder / "cgroup"
    cgroup.mkdir()

    def record(name: str) -> None:
        for file in sorted((RECORDED / name).iterdir(), key=lambda file: file.name == "memory.events"):
            (cgroup / file.name).write_text(file.read_text())

    record("v2-quiet")
    sandbox.start(shim_options=options("v2", cgroup, 512 * MIB, 128 * MIB))
    async with sandbox.client() as client:
        greedy = uuid4()
        await client.start(greedy, ["perl", "-e", "my $x = 'x' x (30 << 20); print 'up'; $| = 1; print ''; sleep 60"])
        await client.read(greedy, from_seq=1, wait_seconds=10)
        record("v2-page-cache")
        await asyncio.sleep(0.4)
        assert (await client.stats()).running_commands == 1, "the page cache does not count"
        record("v2-over-the-limit")
        state = await asyncio.wait_for(client.watch(greedy), 10)
        assert (state.exit_code, state.reason) == (137, EndReason.KILLED)
        record("v2-quiet")
        await asyncio.sleep(0.1)
        await client.kill_sandbox(limit_seconds=10)
    assert sandbox.ending()["oom"] == 0


async def test_a_kill_by_the_kernel_is_written_down(sandbox: Sandbox) -> None:
    cgroup = sandbox.folder / "cgroup"
    cgroup.mkdir()
    for file in (RECORDED / "v2-killed").iterdir():
        (cgroup / file.name).write_text(file.read_text())
    sandbox.start(entrypoint=("true",), shim_options=options("v2", cgroup, 512 * MIB, 128 * MIB))
    assert sandbox.ending()["oom"] == 1
