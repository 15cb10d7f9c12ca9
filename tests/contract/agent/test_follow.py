"""Output at the pace of its reader: who keeps up loses nothing, who does not costs the command little."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID, uuid4

import pytest
from tests.contract.agent.test_output import read_all, text

from atoll.agent.connection import AgentClient
from atoll.domain.command import Truncated

FLOOD = "head -c {bytes} /dev/zero"
MEGABYTE = 1_000_000


async def ends_within(agent: AgentClient, command: UUID, *, seconds: float) -> float:
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        await agent.watch(command)
    return time.monotonic() - began


@pytest.mark.spec("SA-255", "SA-276")
async def test_whoever_follows_a_flood_gets_every_byte_of_it(agent: AgentClient) -> None:
    command = uuid4()
    script = f"{FLOOD.format(bytes=60 * MEGABYTE)}; {FLOOD.format(bytes=20 * MEGABYTE)} >&2; exit 3"
    await agent.start(command, ["sh", "-c", script])
    events = await read_all(agent, command)
    assert not any(isinstance(event, Truncated) for event in events)
    assert (len(text(events, "stdout")), len(text(events, "stderr"))) == (60 * MEGABYTE, 20 * MEGABYTE)


async def test_a_reader_that_stops_does_not_hold_the_command(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", FLOOD.format(bytes=400 * MEGABYTE)])
    await agent.read(command, from_seq=0, max_bytes=1 << 20, wait_seconds=10)
    await ends_within(agent, command, seconds=10)


async def test_a_slow_reader_costs_a_command_a_bounded_share_of_its_time(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", FLOOD.format(bytes=2_000 * MEGABYTE)])
    watch = asyncio.create_task(agent.watch(command))
    seq = 0
    async with asyncio.timeout(30):
        while not watch.done():
            seq = (await agent.read(command, from_seq=seq, max_bytes=1, wait_seconds=1)).next_seq
            await asyncio.wait({watch}, timeout=0.15)
    assert (await watch).exit_code == 0


async def test_a_command_that_ends_while_it_waits_for_its_reader_loses_nothing(agent: AgentClient) -> None:
    command = uuid4()
    script = f"echo first; sleep 0.2; {FLOOD.format(bytes=3_500_000)}; echo last >&2"
    await agent.start(command, ["sh", "-c", script])
    page = await agent.read(command, from_seq=1, wait_seconds=10)
    await ends_within(agent, command, seconds=10)
    events = [*page.events, *await read_all(agent, command, from_seq=page.next_seq)]
    assert not any(isinstance(event, Truncated) for event in events)
    assert text(events, "stdout") == b"first\n" + bytes(3_500_000)
    assert text(events, "stderr") == b"last\n"


async def test_a_second_reader_far_behind_does_not_hold_the_first(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", FLOOD.format(bytes=50 * MEGABYTE)])
    behind = asyncio.create_task(read_all(agent, command, max_bytes=1))
    events = await read_all(agent, command)
    behind.cancel()
    await asyncio.gather(behind, return_exceptions=True)
    assert len(text(events, "stdout")) == 50 * MEGABYTE


async def test_a_command_that_waits_for_its_reader_can_be_killed(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", "cat /dev/zero"])
    await agent.read(command, from_seq=0, max_bytes=1 << 20, wait_seconds=10)
    await agent.signal(command, 9)
    assert await ends_within(agent, command, seconds=5) < 2
