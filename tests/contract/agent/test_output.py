"""The events of a command: their order, their numbers, and what the ring keeps of them."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import struct
import time
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from tests.contract.agent.conftest import Sandbox

from atoll.agent.connection import AgentClient
from atoll.domain.command import CommandEvent, Exit, Init, Output, Truncated

RING = 4 * 1024 * 1024
CHUNK = 32 * 1024


async def finished(agent: AgentClient, argv: Sequence[str]) -> UUID:
    command = uuid4()
    await agent.start(command, argv)
    await agent.watch(command)
    return command


async def read_all(
    agent: AgentClient, command: UUID, *, from_seq: int = 0, max_bytes: int = 1 << 20
) -> list[CommandEvent]:
    events: list[CommandEvent] = []
    while True:
        page = await agent.read(command, from_seq=from_seq, max_bytes=max_bytes, wait_seconds=10)
        events.extend(page.events)
        assert page.next_seq == (events[-1].seq + 1 if events else from_seq)
        from_seq = page.next_seq
        if page.complete:
            return events


def text(events: Sequence[CommandEvent], stream: str) -> bytes:
    return b"".join(e.data for e in events if isinstance(e, Output) and e.stream == stream)


@pytest.mark.spec("SA-270", "SA-271", "SA-272", "SA-274")
async def test_init_comes_first_and_exit_last_with_numbers_from_zero(agent: AgentClient) -> None:
    command = uuid4()
    started = await agent.start(command, ["sh", "-c", "echo a; sleep 0.1; echo b >&2; sleep 0.1; echo c; exit 4"])
    events = await read_all(agent, command)
    assert [e.seq for e in events] == list(range(len(events)))
    assert events[0] == Init(0, started.process_id)
    assert events[-1] == Exit(len(events) - 1, 4, None)
    assert text(events, "stdout") == b"a\nc\n" and text(events, "stderr") == b"b\n"


@pytest.mark.spec("SA-255", "SA-276")
async def test_following_with_next_seq_gives_every_byte_once(agent: AgentClient) -> None:
    command = uuid4()
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i; [ $((i % 7)) = 0 ] && echo err $i >&2; i=$((i+1)); done"
    await agent.start(command, ["sh", "-c", script])
    events = await read_all(agent, command)
    assert [e.seq for e in events] == list(range(len(events)))
    assert text(events, "stdout") == b"".join(b"line %d\n" % i for i in range(3000))
    assert text(events, "stderr") == b"".join(b"err %d\n" % i for i in range(0, 3000, 7))


@pytest.mark.spec("SA-254")
async def test_reading_again_from_the_same_number_gives_the_same(agent: AgentClient) -> None:
    command = await finished(agent, ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done"])
    everything = await read_all(agent, command)
    assert await read_all(agent, command) == everything
    for seq in range(len(everything) + 1):
        page = await agent.read(command, from_seq=seq)
        assert list(page.events) == everything[seq:] and page.complete
    beyond = await agent.read(command, from_seq=1000, wait_seconds=5)
    assert (beyond.events, beyond.next_seq, beyond.complete) == ((), 1000, True)


@pytest.mark.spec("SA-255")
async def test_an_event_that_was_read_never_changes(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "printf one; sleep 0.3; printf two; sleep 0.3; printf three; sleep 0.3"])
    seen: dict[int, CommandEvent] = {}
    while True:
        page = await agent.read(command)
        for event in page.events:
            assert seen.setdefault(event.seq, event) == event
        if page.complete:
            break
        await agent.read(command, from_seq=page.next_seq, wait_seconds=2)
    assert text(list(seen.values()), "stdout") == b"onetwothree"


async def test_unread_output_gathers_in_chunks_of_32_kib(agent: AgentClient) -> None:
    command = await finished(
        agent, ["sh", "-c", "i=0; while [ $i -lt 100 ]; do head -c 1000 /dev/zero; i=$((i+1)); done"]
    )
    sizes = [len(e.data) for e in await read_all(agent, command) if isinstance(e, Output)]
    assert sizes == [CHUNK, CHUNK, CHUNK, 100_000 - 3 * CHUNK]


@pytest.mark.spec("SA-267", "SA-268", "SA-269", "SA-273")
async def test_the_ring_keeps_the_newest_four_mebibytes_and_tells_what_it_dropped(agent: AgentClient) -> None:
    total = 10_000_000
    script = "i=0; while [ $i -lt 10 ]; do head -c 1000000 /dev/zero | tr '\\0' $i; i=$((i+1)); done"
    command = await finished(agent, ["sh", "-c", script])
    written = b"".join(b"%d" % i * 1_000_000 for i in range(10))
    first = await agent.read(command)
    assert first.state.stdout_bytes == total and first.state.output_truncated
    truncated = first.events[0]
    assert isinstance(truncated, Truncated)
    events = await read_all(agent, command)
    kept = text(events, "stdout")
    assert RING - CHUNK < len(kept) <= RING
    assert hashlib.sha256(kept).digest() == hashlib.sha256(written[-len(kept) :]).digest()
    assert truncated.dropped_bytes == total - len(kept)
    assert truncated.dropped_events == truncated.seq + 1 == 1 + truncated.dropped_bytes // CHUNK
    assert [e.seq for e in events] == list(range(truncated.seq, truncated.seq + len(events)))
    assert isinstance(events[-1], Exit)


@pytest.mark.spec("SA-273")
async def test_what_was_dropped_is_counted_from_where_the_reader_is(agent: AgentClient) -> None:
    command = await finished(agent, ["head", "-c", "8000000", "/dev/zero"])
    whole = (await agent.read(command, max_bytes=1)).events[0]
    assert isinstance(whole, Truncated)
    for seq in (1, 2, 17, whole.seq):
        part = (await agent.read(command, from_seq=seq, max_bytes=1)).events[0]
        # Event 0 is init; every dropped one after it is a whole chunk.
        assert part == Truncated(whole.seq, whole.dropped_bytes - (seq - 1) * CHUNK, whole.dropped_events - seq)
    kept = (await agent.read(command, from_seq=whole.seq + 1, max_bytes=1)).events
    assert isinstance(kept[0], Output) and kept[0].seq == whole.seq + 1


@pytest.mark.spec("SA-269")
async def test_four_mebibytes_exactly_drop_nothing(agent: AgentClient) -> None:
    command = await finished(agent, ["head", "-c", str(RING), "/dev/zero"])
    events = await read_all(agent, command)
    assert isinstance(events[0], Init) and len(text(events, "stdout")) == RING
    assert not (await agent.read(command)).state.output_truncated


@pytest.mark.spec("SA-275", "SA-277")
async def test_a_page_holds_about_a_mebibyte_and_only_the_last_is_complete(agent: AgentClient) -> None:
    command = await finished(agent, ["head", "-c", "3000000", "/dev/zero"])
    seq, pages = 0, 0
    while True:
        page = await agent.read(command, from_seq=seq)
        size = sum(len(e.data) for e in page.events if isinstance(e, Output))
        assert size <= 1 << 20
        assert page.complete == isinstance(page.events[-1], Exit)
        seq, pages = page.next_seq, pages + 1
        if page.complete:
            break
        assert size > (1 << 20) - 2 * CHUNK
    assert pages == 3


async def test_a_page_of_tiny_events_is_bounded_too(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["cat"], stdin=True)
    for _ in range(200):
        await agent.write_stdin(command, b"x")
        await agent.read(command, from_seq=10_000, wait_seconds=0)
        page = await agent.read(command)
    page = await agent.read(command, max_bytes=1000)
    assert len(page.events) <= 1000 // 22
    await agent.write_stdin(command, b"", eof=True)


@pytest.mark.spec("SA-257")
async def test_a_wait_ends_with_new_output_or_with_its_time(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "sleep 0.4; echo late; sleep 30"])
    begun = time.monotonic()
    page = await agent.read(command, from_seq=1, wait_seconds=20)
    assert text(page.events, "stdout") == b"late\n" and time.monotonic() - begun < 10
    begun = time.monotonic()
    page = await agent.read(command, from_seq=page.next_seq, wait_seconds=0.3)
    assert not page.events and not page.complete and page.state.running
    assert 0.29 <= time.monotonic() - begun < 5


@pytest.mark.spec("SA-258")
async def test_a_wait_on_an_ended_command_answers_at_once(agent: AgentClient) -> None:
    command = await finished(agent, ["true"])
    begun = time.monotonic()
    page = await agent.read(command, from_seq=2, wait_seconds=20)
    assert page.complete and not page.events and time.monotonic() - begun < 5


async def test_both_streams_of_a_loud_command_are_kept_apart(agent: AgentClient) -> None:
    script = "head -c 1000000 /dev/zero & head -c 1000000 /dev/zero | tr '\\0' e >&2; wait"
    command = await finished(agent, ["sh", "-c", script])
    events = await read_all(agent, command)
    assert text(events, "stdout") == bytes(1_000_000)
    assert text(events, "stderr") == b"e" * 1_000_000


async def test_a_loud_command_is_followed_without_loss_while_the_reader_keeps_up(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do seq 1 100000; sleep 0.05; done"])
    data = text(await read_all(agent, command), "stdout")
    assert data == "".join(f"{i}\n" for i in range(1, 100_001)).encode() * 8


async def test_exited_commands_are_bounded_in_number_and_bytes(agent: AgentClient) -> None:
    for _ in range(20):
        await finished(agent, ["head", "-c", "5000000", "/dev/zero"])
    kept = await agent.list_commands()
    assert 14 <= len(kept) <= 16, "64 MiB of rings of 4 MiB"


async def test_a_client_that_reads_nothing_holds_up_neither_commands_nor_other_clients_for_ever(
    sandbox: Sandbox,
) -> None:
    sandbox.start()
    async with sandbox.client() as agent:
        command = uuid4()
        await agent.start(command, ["sh", "-c", "head -c 20000000 /dev/zero; echo over > /dev/null"])
        await agent.watch(command)
        loud = uuid4()
        await agent.start(
            loud, ["sh", "-c", "i=0; while [ $i -lt 200 ]; do head -c 1000000 /dev/zero; i=$((i+1)); done"]
        )
    stuck = sandbox.raw()
    stuck.hello()
    for request in range(1, 400):
        stuck.send(0x11, request, command.bytes + struct.pack(">QII", 0, 1 << 20, 0))
    # 400 MiB were asked for; the shim and the agent hold a few, and the loud command goes on meanwhile.
    await asyncio.sleep(0.5)
    assert sandbox.sanitized or sandbox.agent_memory() < 48 * 1024 * 1024
    async with sandbox.client() as agent:
        state = await asyncio.wait_for(agent.watch(loud), 30)
        assert state.exit_code == 0 and state.stdout_bytes == 200_000_000
    assert stuck.closed()


async def test_output_up_to_a_kill_is_kept(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "echo before; sleep 30"])
    await agent.read(command, from_seq=1, wait_seconds=10)
    await agent.signal(command, signal.SIGKILL)
    events = await read_all(agent, command)
    assert text(events, "stdout") == b"before\n" and isinstance(events[-1], Exit)
