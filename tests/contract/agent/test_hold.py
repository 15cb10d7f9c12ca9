"""Standing still for a snapshot: nothing moves while it is held, everything goes on after it, nobody is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from tests.contract.agent.conftest import Sandbox, until_true

from atoll.agent.connection import AgentClient

COUNT = "n=0; while true; do n=$((n+1)); echo $n > {file}.new; mv {file}.new {file}; done"


async def counter(agent: AgentClient, file: Path, *, daemon: bool = False) -> None:
    """Start something that counts in a file, as fast as it can."""
    script = COUNT.format(file=file)
    argv = ["setsid", "-f", "sh", "-c", script] if daemon else ["sh", "-c", script]
    await agent.start(uuid4(), argv)
    until_true(file.exists)


def text_of(file: Path) -> str:
    return file.read_text()


async def stands(file: Path) -> bool:
    before = text_of(file)
    await asyncio.sleep(0.2)
    return text_of(file) == before


async def moves(file: Path) -> None:
    before = text_of(file)
    async with asyncio.timeout(5):
        while text_of(file) == before:  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.01)


@pytest.fixture
def folder(root: Path) -> Path:
    """Asked for before the sandbox, so that nothing writes there any more when it goes."""
    return root


@pytest.mark.spec("SA-148")
async def test_nothing_moves_while_it_is_held_and_everything_goes_on_after(folder: Path, agent: AgentClient) -> None:
    await counter(agent, folder / "a")
    await counter(agent, folder / "b", daemon=True)
    await agent.hold(limit_seconds=60)
    assert await stands(folder / "a")
    assert await stands(folder / "b")
    assert (await agent.stats()).running_commands == 1
    await agent.release()
    await moves(folder / "a")
    await moves(folder / "b")
    await agent.release()


async def test_what_is_started_while_it_is_held_stands_still_too(folder: Path, agent: AgentClient) -> None:
    await agent.hold(limit_seconds=60)
    await counter(agent, folder / "a")
    async with asyncio.timeout(5):
        while not await stands(folder / "a"):
            pass
    await agent.release()
    await moves(folder / "a")


async def test_what_a_command_had_stopped_itself_stays_stopped(folder: Path, agent: AgentClient) -> None:
    script = f"({COUNT.format(file=folder / 'a')}) & sleep 0.2; kill -STOP $!; touch {folder}/stopped; exec sleep 100"
    await agent.start(uuid4(), ["sh", "-c", script])
    until_true((folder / "stopped").exists)
    await asyncio.sleep(0.2)  # the last rename may be under way
    await agent.hold(limit_seconds=60)
    await agent.release()
    assert await stands(folder / "a")


async def test_it_is_held_no_longer_than_was_asked_for(folder: Path, agent: AgentClient) -> None:
    await counter(agent, folder / "a")
    await agent.hold(limit_seconds=0.5)
    assert await stands(folder / "a")
    await moves(folder / "a")


async def test_it_goes_on_when_another_client_connects(folder: Path, sandbox: Sandbox) -> None:
    sandbox.start()
    async with sandbox.client() as first:
        await counter(first, folder / "a")
        await first.hold(limit_seconds=60)
        assert await stands(folder / "a")
    async with sandbox.client():
        await moves(folder / "a")


async def test_commands_can_be_stopped_while_they_are_held(folder: Path, agent: AgentClient) -> None:
    script = f"trap 'echo bye > {folder}/bye; exit 3' TERM; touch {folder}/a; while true; do sleep 0.01; done"
    execution = uuid4()
    await agent.start(execution, ["sh", "-c", script])
    until_true((folder / "a").exists)
    await agent.hold(limit_seconds=60)
    await agent.stop_commands(grace_seconds=5)
    assert (await agent.watch(execution)).exit_code == 3
    assert (folder / "bye").exists()


async def test_a_fork_bomb_does_not_keep_the_answer_away(folder: Path, agent: AgentClient) -> None:
    await agent.start(uuid4(), ["sh", "-c", f"touch {folder}/a; while true; do sh -c 'true & true & true' & done"])
    until_true((folder / "a").exists)
    async with asyncio.timeout(10):
        await agent.hold(limit_seconds=60)
    await agent.stop_commands(grace_seconds=0)
