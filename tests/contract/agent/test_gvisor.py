"""The agent in real gVisor, with the machine's own /usr as its image and no network: what differs from Linux."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.agent.conftest import Sandbox

from atoll.agent.connection import AgentClient
from atoll.domain.command import EndReason, Exit, Output, PtySize

pytestmark = pytest.mark.gvisor

CAPABILITIES = [f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID")]


def configuration(binary: Path, root: Path, *, nproc: int) -> dict[str, object]:
    def mount(destination: str, kind: str, source: str, *options: str) -> dict[str, object]:
        return {"destination": destination, "type": kind, "source": source, "options": list(options)}

    agent = ["/.atoll/agent", "agent", "--uid", "1001", "--gid", "1001", "--nproc", str(nproc), "--workdir", "/tmp"]
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [*agent, "--", "sleep", "infinity"],
            "env": ["PATH=/usr/bin:/bin", "ATOLL_SECRET=1"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES),
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "mounts": [
            mount("/proc", "proc", "proc"),
            mount("/dev", "tmpfs", "tmpfs"),
            mount("/tmp", "tmpfs", "tmpfs"),
            mount("/.atoll/agent", "bind", str(binary), "ro", "bind"),
            mount("/usr", "bind", "/usr", "ro", "rbind"),
            mount("/etc", "bind", "/etc", "ro", "rbind"),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }


@pytest.fixture
def gvisor(sandbox: Sandbox) -> Iterator[Sandbox]:
    if shutil.which("runsc") is None:
        pytest.skip("there is no runsc")
    if sandbox.sanitized:
        pytest.skip("the sanitizers' libraries are not in the sandbox")
    root, bundle, state = (sandbox.folder / name for name in ("root", "bundle", "state"))
    for folder in (bundle, *(root / name for name in ("proc", "dev", "tmp", ".atoll", "usr", "etc"))):
        folder.mkdir(parents=True)
    (root / ".atoll" / "agent").touch()
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (bundle / "config.json").write_text(json.dumps(configuration(sandbox.binary, root, nproc=200)))
    name = f"agent-test-{uuid4().hex[:8]}"
    runsc = ["runsc", "--root", str(state), "--network=none", "--ignore-cgroups", "--platform=systrap"]
    sandbox.start(
        shim_options=("--hide-proc-sys-net",), command=(*runsc, "run", "--bundle", str(bundle), name), workdir="/tmp"
    )
    try:
        yield sandbox
    finally:
        raw = sandbox.raw()
        raw.send(0x05, 1)
        assert raw.answer(1)[0] == 0x96
        subprocess.run([*runsc, "delete", "-force", name], check=False, capture_output=True, timeout=20)


async def run(agent: AgentClient, script: str) -> str:
    result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=30)
    assert result.state.exit_code == 0, result
    return result.stdout.decode()


async def test_the_agent_in_gvisor(gvisor: Sandbox) -> None:
    """One boot, many looks: each would be a test of its own if sandboxes cost nothing."""
    async with gvisor.client() as agent:
        await asyncio.wait_for(agent.wait_settled(), 20)
        await commands_are_without_privilege(agent)
        await output_is_kept_and_numbered(agent)
        await input_and_terminals_work(agent)
        await whole_trees_die(agent)
        await deadlines_end_commands(agent)
        await the_agent_is_out_of_reach(agent)
        await nothing_is_left_behind(agent)


async def commands_are_without_privilege(agent: AgentClient) -> None:
    status = await run(agent, "cat /proc/self/status; id; env")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
        assert f"{name}:\t0000000000000000" in status
    assert "uid=1001 gid=1001 groups=1001" in status and "ATOLL" not in status
    assert (await run(agent, "ls /proc/$$/fd")).split() == ["0", "1", "2"]


async def output_is_kept_and_numbered(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "head -c 6000000 /dev/zero; echo end"])
    await asyncio.wait_for(agent.watch(command), 30)
    seq, data = 0, b""
    while True:
        page = await agent.read(command, from_seq=seq)
        seq = page.next_seq
        data += b"".join(e.data for e in page.events if isinstance(e, Output))
        if page.complete:
            break
    assert isinstance(page.events[-1], Exit) and data.endswith(b"\0end\n")
    assert page.state.stdout_bytes == 6_000_004 and 4 * 2**20 - 32768 < len(data) <= 4 * 2**20


async def input_and_terminals_work(agent: AgentClient) -> None:
    for pty in (None, PtySize(33, 77)):
        command = uuid4()
        script = "stty size 2>/dev/null; cat"
        await agent.start(command, ["sh", "-c", script], stdin=pty is None, pty=pty)
        await agent.write_stdin(command, b"typed\n")
        await asyncio.sleep(0.3)
        await agent.write_stdin(command, b"", eof=True)
        assert (await asyncio.wait_for(agent.watch(command), 10)).exit_code == 0
        page = await agent.read(command)
        data = b"".join(e.data for e in page.events if isinstance(e, Output))
        assert data == b"typed\n" if pty is None else b"33 77\r\n" in data and data.count(b"typed\r\n") == 2


async def whole_trees_die(agent: AgentClient) -> None:
    command = uuid4()
    script = "trap '' TERM; (setsid sh -c 'sleep 4711 & sleep 4711' &) ; sleep 0.3; echo up; sleep 4711"
    await agent.start(command, ["sh", "-c", script])
    await agent.read(command, from_seq=1, wait_seconds=20)
    assert len((await run(agent, "pgrep -f '^sleep 4711'")).split()) == 3
    await agent.signal(command, signal.SIGKILL)
    state = await asyncio.wait_for(agent.watch(command), 10)
    assert (state.exit_code, state.reason) == (137, EndReason.CANCELED)
    assert await run(agent, "pgrep -f '^sleep 4711' || true") == ""
    bomb = uuid4()
    await agent.start(bomb, ["sh", "-c", "b() { b | b & }; b 2>/dev/null; sleep 60"])
    await asyncio.sleep(1)
    await agent.signal(bomb, signal.SIGKILL)
    await asyncio.wait_for(agent.watch(bomb), 30)


async def deadlines_end_commands(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["sleep", "30"], timeout_seconds=0.3)
    assert (result.state.exit_code, result.state.reason) == (143, EndReason.DEADLINE_EXCEEDED)


async def the_agent_is_out_of_reach(agent: AgentClient) -> None:
    # gVisor shows /proc/1 to every uid: what is there has to be harmless.
    assert (await run(agent, "cat /proc/1/environ | tr -d '\\0' || true")) == ""
    attempts = (
        *("kill -9 1", "kill -STOP 1", "cat /proc/1/mem", "echo x > /proc/1/mem"),
        *("head -c 1 /proc/1/fd/0", "echo x > /proc/1/fd/0", "echo x > /proc/1/fd/1", "echo x > /proc/1/fd/2"),
    )
    for attempt in attempts:
        result = await agent.run(uuid4(), ["sh", "-c", attempt], timeout_seconds=10)
        assert result.state.exit_code not in (0, 143) and result.stdout == b"", attempt


async def nothing_is_left_behind(agent: AgentClient) -> None:
    for _ in range(50):
        assert (await agent.run(uuid4(), ["/bin/true"], timeout_seconds=10)).state.exit_code == 0
    stats = await agent.stats()
    assert stats.processes == 2 and stats.running_commands == 0 and stats.memory_bytes < 64 * 2**20
