"""The shim: what it leaves in its folder, how it relays, and how it kills."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import struct
import subprocess
import time
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.agent.conftest import Sandbox, alive, until_true

from atoll.agent.connection import AgentClient
from atoll.domain.command import Output
from atoll.domain.errors import ErrorCode, RuntimeFailure

READ, START, STATS, WATCH = 0x11, 0x10, 0x17, 0x1A


def test_the_socket_is_for_its_owner_alone_and_the_shim_in_a_session_of_its_own(sandbox: Sandbox) -> None:
    sandbox.start()
    assert stat.S_IMODE(sandbox.socket.stat().st_mode) == 0o600
    assert os.getsid(sandbox.shim_pid) == sandbox.shim_pid
    assert {str(Path(f"/proc/{sandbox.shim_pid}/fd/{n}").readlink()) for n in (0, 1)} == {"/dev/null"}


def test_a_command_line_that_cannot_run_is_told_to_the_caller(sandbox: Sandbox) -> None:
    argv = [str(sandbox.binary), "shim", "--dir", str(sandbox.folder), "--", "/no/such/runsc"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1 and "cannot be executed" in result.stderr
    argv = [str(sandbox.binary), "shim", "--dir", str(sandbox.folder), "--join", "/no/such", "--", "true"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1 and "cgroup" in result.stderr
    assert not sandbox.socket.exists()


@pytest.mark.parametrize(("entrypoint", "code"), [(("sh", "-c", "exit 3"), 3), (("sh", "-c", "kill -9 $$"), 137),
                                                  (("no-such-program",), 127)])  # fmt: skip
async def test_the_end_of_the_entrypoint_is_the_end_of_the_sandbox(
    sandbox: Sandbox, entrypoint: tuple[str, ...], code: int
) -> None:
    sandbox.start(entrypoint=entrypoint)
    assert sandbox.ending() == {"code": code, "signal": 0, "oom": 0, "killed": 0}
    until_true(lambda: not alive(sandbox.shim_pid))


async def test_a_sandbox_is_settled_when_its_entrypoint_sleeps_or_lives_on(sandbox: Sandbox) -> None:
    sandbox.start(entrypoint=("sh", "-c", "while :; do :; done"))
    async with sandbox.client() as busy:
        begun = time.monotonic()
        await asyncio.wait_for(busy.wait_settled(), 10)
        assert time.monotonic() - begun > 0.1


async def test_a_sandbox_whose_entrypoint_ends_is_never_settled(sandbox: Sandbox) -> None:
    sandbox.start(entrypoint=("sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"))
    with pytest.raises(RuntimeFailure) as failure:
        async with sandbox.client() as client:
            await client.wait_settled()
    assert failure.value.code is ErrorCode.AGENT_UNREACHABLE


async def test_the_entrypoints_end_kills_every_command(sandbox: Sandbox) -> None:
    sandbox.start(entrypoint=("sleep", "0.5"))
    async with sandbox.client() as client:
        await client.start(uuid4(), ["sh", "-c", "trap '' TERM; setsid sleep 100 & sleep 100"])
        pids = sandbox.descendants()
        await asyncio.wait_for(client.wait_closed(), 10)
        assert client.closed
    until_true(lambda: not any(map(alive, pids)))


async def test_a_command_outlives_its_client_and_no_byte_is_lost(sandbox: Sandbox) -> None:
    sandbox.start()
    command = uuid4()
    async with sandbox.client() as first:
        await first.start(command, ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.1; done"])
        page = await first.read(command, from_seq=1, wait_seconds=5)
    data = b"".join(e.data for e in page.events if isinstance(e, Output))
    async with sandbox.client() as second:
        await second.watch(command)
        rest = await second.read(command, from_seq=page.next_seq)
        data += b"".join(e.data for e in rest.events if isinstance(e, Output))
    assert data == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n" and rest.complete


async def test_a_run_whose_client_died_is_picked_up_by_its_id(sandbox: Sandbox) -> None:
    sandbox.start()
    run, argv = uuid4(), ["sh", "-c", "sleep 0.5; echo result"]
    async with sandbox.client() as first:
        lost = asyncio.create_task(first.run(run, argv, timeout_seconds=10))
        await first.stats()
    with pytest.raises(RuntimeFailure) as failure:
        await lost
    assert failure.value.code is ErrorCode.AGENT_UNREACHABLE
    async with sandbox.client() as second:
        assert (await second.run(run, argv, timeout_seconds=10)).stdout == b"result\n"
        assert len(await second.list_commands()) == 1


async def test_the_newest_client_wins(sandbox: Sandbox) -> None:
    sandbox.start()
    async with sandbox.client() as first:
        await first.stats()
        async with sandbox.client() as second:
            await asyncio.wait_for(first.wait_closed(), 5)
            assert (await second.stats()).processes == 2
            with pytest.raises(RuntimeFailure):
                await first.stats()


async def test_a_client_that_dies_in_the_middle_of_a_frame_leaves_no_trace(sandbox: Sandbox) -> None:
    sandbox.start()
    for cut in (1, 3, 4, 8, 9, 20, 60):
        raw = sandbox.raw()
        raw.hello()
        payload = uuid4().bytes + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">I", 1) + b"\0\0\0\x04true" + bytes(8)
        frame = struct.pack(">IBI", len(payload) + 5, START, 7) + payload
        raw.socket.sendall(frame[:cut])
        raw.socket.close()
        async with sandbox.client() as client:
            assert not await client.list_commands()


async def test_a_client_that_dies_in_the_middle_of_an_answer_leaves_no_trace(sandbox: Sandbox) -> None:
    sandbox.start()
    command = uuid4()
    async with sandbox.client() as client:
        await client.start(command, ["head", "-c", "4000000", "/dev/zero"])
        await client.watch(command)
    for count in (10, 5000, 70_000):
        raw = sandbox.raw()
        raw.hello()
        for request in range(1, 9):
            raw.send(READ, request, command.bytes + struct.pack(">QII", 0, 1 << 20, 0))
        while count > 0:
            count -= len(raw.socket.recv(count))
        raw.socket.close()
        async with sandbox.client() as client:
            assert (await client.read(command)).events[0].seq == 0


async def test_answers_of_an_earlier_client_never_reach_the_next(sandbox: Sandbox) -> None:
    sandbox.start()
    command = uuid4()
    async with sandbox.client() as client:
        await client.start(command, ["sleep", "30"])
    first = sandbox.raw()
    first.hello()
    for request in range(1, 100):
        first.send(WATCH, request, command.bytes)
        first.send(STATS, 1000 + request)
    second = sandbox.raw()
    second.hello()
    second.send(STATS, 5)
    kind, request_id, _ = second.frame()
    while request_id == 0:  # a notice is for whoever is there
        kind, request_id, _ = second.frame()
    assert (kind, request_id) == (0x94, 5), "the first answer is to the second client's own request"
    first.socket.close()
    second.socket.close()


async def test_a_hundred_clients_in_a_row_cost_nothing(sandbox: Sandbox) -> None:
    sandbox.start()
    for _ in range(100):
        sandbox.raw().socket.close()
    raw = sandbox.raw()
    raw.hello()
    raw.socket.close()


@pytest.mark.parametrize("length", [0, 4, 262_145, 0xFFFF_FFFF])
async def test_a_length_out_of_range_ends_the_connection_but_not_the_sandbox(sandbox: Sandbox, length: int) -> None:
    sandbox.start()
    raw = sandbox.raw()
    raw.hello()
    raw.socket.sendall(struct.pack(">IBI", length, STATS, 1) + bytes(100))
    assert raw.closed()
    async with sandbox.client() as client:
        await client.stats()


@pytest.mark.parametrize("kind", [0x00, 0x01, 0x02, 0x06, 0x0F, 0x1B, 0x7F, 0x81, 0xFF])
async def test_what_no_client_may_say_is_refused(sandbox: Sandbox, kind: int) -> None:
    sandbox.start()
    raw = sandbox.raw()
    raw.hello()
    raw.send(kind, 77, bytes(4))
    answer, payload = raw.answer(77)
    assert (answer, payload[0]) == (0x97, 1)
    raw.send(STATS, 78)
    assert raw.answer(78)[0] == 0x94


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(15),
        bytes(16),
        bytes(16) + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">I", 0) + bytes(8),
        bytes(16) + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">I", 0xFFFFFFFF) + bytes(8),
        bytes(16) + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">II", 1, 0xFFFFFFFF) + bytes(8),
        bytes(16) + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">II", 1, 4) + b"a\0bc" + bytes(8),
        bytes(16) + struct.pack(">IHHQ", 4, 0, 0, 0) + struct.pack(">II", 1, 4) + b"true" + bytes(8),
        bytes(16) + struct.pack(">IHHQ", 2, 0, 0, 0) + struct.pack(">II", 1, 4) + b"true" + bytes(8),
        bytes(16) + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">II", 1, 4) + b"true" + bytes(9),
        bytes(16) + struct.pack(">IHHQ", 0, 0, 0, 0) + struct.pack(">II", 1, 4) + b"true" + bytes(4)
        + struct.pack(">II", 1, 2) + b"=x",
    ],
)  # fmt: skip
async def test_a_start_that_does_not_parse_is_refused(sandbox: Sandbox, payload: bytes) -> None:
    sandbox.start()
    raw = sandbox.raw()
    raw.hello()
    raw.send(START, 9, payload)
    answer, error = raw.answer(9)
    assert (answer, error[0]) == (0x97, 1)
    raw.socket.close()


async def test_the_sandbox_ends_with_its_shim(sandbox: Sandbox) -> None:
    sandbox.start()
    async with sandbox.client() as client:
        await client.start(uuid4(), ["sh", "-c", "setsid sleep 100 & sleep 100"])
        pids = sandbox.descendants()
        assert len(pids) >= 4
        os.kill(sandbox.shim_pid, signal.SIGKILL)
        await asyncio.wait_for(client.wait_closed(), 5)
    until_true(lambda: not any(map(alive, pids)))


async def test_kill_leaves_nothing_alive_and_is_answered(sandbox: Sandbox) -> None:
    sandbox.start()
    async with sandbox.client() as client:
        await client.start(uuid4(), ["sh", "-c", "trap '' TERM; setsid sleep 100 & sleep 100"])
        pids = sandbox.descendants()
        await client.kill_sandbox(limit_seconds=10)
        assert not any(map(alive, pids))
        assert sandbox.ending(limit=0.1)["killed"] == 1
        await asyncio.wait_for(client.wait_closed(), 5)


async def test_kill_works_while_everything_is_stopped(sandbox: Sandbox) -> None:
    sandbox.start()
    raw = sandbox.raw()
    raw.hello()
    pids = sandbox.descendants()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    # More than the socket to the agent and the shim's own queue can hold, so that nothing is taken any more.
    raw.socket.setblocking(False)
    frame = struct.pack(">IBI", 262_144, 0x12, 1) + bytes(262_139)
    sent = 0
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        try:
            sent += raw.socket.send(frame[sent % len(frame) :])
        except BlockingIOError:
            await asyncio.sleep(0.01)
    assert sent > 1_000_000
    second = sandbox.raw()
    second.send(0x05, 3)
    assert second.answer(3)[0] == 0x96
    assert not any(map(alive, pids))


async def test_kill_empties_the_cgroups_it_was_given(sandbox: Sandbox) -> None:
    cgroup = Path("/sys/fs/cgroup/pids") / f"atoll-agent-test-{uuid4().hex[:8]}"
    if not cgroup.parent.is_dir():
        cgroup = Path("/sys/fs/cgroup") / cgroup.name
    (cgroup / "below").mkdir(parents=True)
    stranger = spawn_sleep()
    try:
        # A process of the cgroup that does not descend from the shim.
        (cgroup / "below" / "cgroup.procs").write_text(str(stranger.pid))
        sandbox.start(shim_options=("--join", str(cgroup / "cgroup.procs"), "--kill-cgroup", str(cgroup)))
        inside = {int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()}
        assert inside and sandbox.shim_pid not in inside
        async with sandbox.client() as client:
            killing = asyncio.create_task(client.kill_sandbox(limit_seconds=10))
            assert await asyncio.to_thread(stranger.wait, 5) == -signal.SIGKILL
            await killing
        assert not (cgroup / "cgroup.procs").read_text()
    finally:
        stranger.kill()
        stranger.wait()
        for folder in (cgroup / "below", cgroup):
            until_true(partial(remove, folder))


def spawn_sleep() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


def remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True


def test_proc_sys_net_can_be_hidden_in_a_namespace_of_the_sandboxs_own(sandbox: Sandbox) -> None:
    sandbox.start(
        shim_options=("--hide-proc-sys-net",),
        command=(
            "sh",
            "-c",
            "ls -A /proc/sys/net > seen; ls -A /proc/sys/net > $0; sleep 100",
            str(sandbox.folder / "seen"),
        ),
    )
    until_true((sandbox.folder / "seen").exists)
    assert (sandbox.folder / "seen").read_text() == ""
    assert list(Path("/proc/sys/net").iterdir()), "the machine's own stays as it is"
    raw = sandbox.raw()  # sh does not end with its standard input, as the agent would
    raw.send(0x05, 1)
    assert raw.answer(1)[0] == 0x96


async def test_a_sandbox_that_does_not_speak_the_protocol_is_cut_off(sandbox: Sandbox) -> None:
    sandbox.start(command=("sh", "-c", "printf 'garbage garbage garbage'; sleep 100"))
    with pytest.raises(RuntimeFailure) as failure:
        await AgentClient.connect(sandbox.socket, timeout=1)
    assert failure.value.code is ErrorCode.AGENT_UNREACHABLE
    raw = sandbox.raw()
    raw.send(0x05, 1)
    assert raw.answer(1)[0] == 0x96


async def test_a_long_folder_is_no_obstacle(sandbox: Sandbox) -> None:
    deep = sandbox.folder / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    inner = Sandbox(sandbox.binary, deep)
    try:
        inner.start()
        async with inner.client() as client:
            await client.stats()
    finally:
        inner.close()


def test_the_agent_alone_ends_with_its_connection(binary: Path) -> None:
    ours, theirs = socket.socketpair()
    argv = [str(binary), "agent", "--workdir", "/tmp"]
    with subprocess.Popen(argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE) as process:
        theirs.close()
        assert ours.recv(9)[4] == 0xA1, "settled at once without an entrypoint"
        ours.close()
        assert process.wait(10) == 0, process.stderr and process.stderr.read()
