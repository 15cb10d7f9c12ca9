"""Standard input and terminals."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from uuid import UUID, uuid4

import pytest

from atoll.agent.connection import AgentClient
from atoll.domain.command import Output, PtySize
from atoll.domain.errors import ErrorCode, RuntimeFailure


async def output(agent: AgentClient, command: UUID, expected: bytes) -> bytes:
    """All output so far, once it holds what is expected."""
    seq, data = 0, b""
    async with asyncio.timeout(10):
        while expected not in data:
            page = await agent.read(command, from_seq=seq, wait_seconds=1)
            seq = page.next_seq
            data += b"".join(e.data for e in page.events if isinstance(e, Output))
            if page.complete:
                break
    assert expected in data
    return data


async def test_input_reaches_the_command_and_its_end_ends_it(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["cat"], stdin=True)
    await agent.write_stdin(command, b"one ")
    await agent.write_stdin(command, b"two", eof=True)
    assert (await agent.watch(command)).exit_code == 0
    assert await output(agent, command, b"one two") == b"one two"


async def test_a_megabyte_of_input_arrives_whole(agent: AgentClient) -> None:
    data = bytes(range(256)) * 4096 * 4
    command = uuid4()
    await agent.start(command, ["sha256sum"], stdin=True)
    await agent.write_stdin(command, data, eof=True)
    await output(agent, command, hashlib.sha256(data).hexdigest().encode())


async def test_a_full_pipe_makes_the_writer_wait_until_it_is_read(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "sleep 1; wc -c"], stdin=True)
    begun = time.monotonic()
    await agent.write_stdin(command, bytes(300_000), eof=True)
    assert 0.5 < time.monotonic() - begun < 10
    await output(agent, command, b"300000")


async def test_waiting_input_is_refused_when_the_command_ends(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sleep", "30"], stdin=True)
    write = asyncio.create_task(agent.write_stdin(command, bytes(100_000)))
    await agent.stats()
    await agent.signal(command, signal.SIGKILL)
    with pytest.raises(RuntimeFailure) as failure:
        await write
    # The pipe breaks a moment before the end is known.
    assert failure.value.code in (ErrorCode.EXECUTION_EXITED, ErrorCode.INVALID_REQUEST)


async def test_input_that_waits_is_bounded(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sleep", "30"], stdin=True)
    writes = [asyncio.create_task(agent.write_stdin(command, bytes(131_072))) for _ in range(10)]
    done, waiting = await asyncio.wait(writes, timeout=2)
    assert len(done) == 2 and len(waiting) == 8, "a mebibyte waits, more is refused"
    for task in done:
        error = task.exception()
        assert isinstance(error, RuntimeFailure) and error.code is ErrorCode.UNKNOWN
    await agent.signal(command, signal.SIGKILL)
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_input_without_a_reader_is_refused(agent: AgentClient) -> None:
    closed, none = uuid4(), uuid4()
    await agent.start(none, ["sleep", "30"])
    await agent.start(closed, ["sh", "-c", "exec 0<&-; echo closed; sleep 30"], stdin=True)
    await output(agent, closed, b"closed")
    for command in (none, closed):
        with pytest.raises(RuntimeFailure) as failure:
            await agent.write_stdin(command, b"x")
        assert failure.value.code is ErrorCode.INVALID_REQUEST
    await agent.signal(closed, signal.SIGKILL)
    await agent.watch(closed)
    with pytest.raises(RuntimeFailure) as failure:
        await agent.write_stdin(closed, b"x")
    assert failure.value.code is ErrorCode.EXECUTION_EXITED


async def test_a_terminal_has_its_size_controls_its_session_and_echoes(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "stty size; tty; test -w /dev/tty && echo own; cat"], pty=PtySize(33, 77))
    data = await output(agent, command, b"own\r\n")
    assert data.startswith(b"33 77\r\n/dev/pts/")
    await agent.write_stdin(command, b"typed\n")
    await output(agent, command, b"typed\r\ntyped\r\n")
    await agent.write_stdin(command, b"", eof=True)
    assert (await agent.watch(command)).exit_code == 0


async def test_a_terminal_can_be_resized(agent: AgentClient) -> None:
    command, plain = uuid4(), uuid4()
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    await agent.start(command, ["bash", "-c", script], pty=PtySize(24, 80))
    await output(agent, command, b"ready")
    await agent.resize(command, PtySize(50, 132))
    await output(agent, command, b"50 132")
    await agent.start(plain, ["sleep", "30"])
    for target, size in ((plain, PtySize(1, 1)), (command, PtySize(0, 5)), (command, PtySize(1, 4097))):
        with pytest.raises(RuntimeFailure) as failure:
            await agent.resize(target, size)
        assert failure.value.code is ErrorCode.INVALID_REQUEST


async def test_an_interrupt_typed_into_a_terminal_reaches_the_foreground(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "echo ready; sleep 30"], pty=PtySize(24, 80))
    await output(agent, command, b"ready")
    await agent.write_stdin(command, b"\x03")
    assert (await agent.watch(command)).exit_code == 130


async def test_a_command_may_close_and_reopen_its_terminal(agent: AgentClient) -> None:
    command = uuid4()
    script = "t=$(tty); exec </dev/null >/dev/null 2>&1; sleep 0.5; exec >$t; echo back; sleep 0.2"
    await agent.start(command, ["sh", "-c", script], pty=PtySize(24, 80))
    begun = time.process_time()
    await output(agent, command, b"back")
    assert time.process_time() - begun < 2
    assert (await agent.watch(command)).exit_code == 0
    assert (await agent.stats()).processes == 2
