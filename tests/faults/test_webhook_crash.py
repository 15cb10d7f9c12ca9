"""Deliveries survive the death of the server: at least once, under one id, with one body."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.plane import AGENT, Plane, running_plane, until
from tests.webhook_receiver import SECRET, Answer, Receiver, running_receiver

from atoll.drivers.fake import FakeDriver

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as running:
        yield running


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    """Short, because it holds sockets; what runs in it is ended afterwards."""
    path = Path(tempfile.mkdtemp(prefix="atoll-", dir="/tmp"))
    yield path
    driver = FakeDriver(path / "i", agent=AGENT)
    for instance in await driver.list_instances():
        await driver.cleanup(instance.instance_id)
    shutil.rmtree(path, ignore_errors=True)


async def live_until(folder: Path, receiver: Receiver, moment: Callable[[], Awaitable[object]]) -> None:
    """Let a server live until a moment, then kill it as a power cut would."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.webhook_life", str(folder / "d"), str(folder / "i")),
        json.dumps(receiver.destinations),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60):
            await moment()
    finally:
        process.kill()
        await process.wait()


async def delivered(plane: Plane) -> list[tuple[str, int]]:
    """State and attempts of every delivery, once none is pending."""

    async def look() -> list[tuple[str, int]]:
        rows = await plane.sql("SELECT state, attempts FROM webhook_deliveries")
        return [(row[0], row[1]) for row in rows] if rows and all(row[0] != "PENDING" for row in rows) else []

    found: list[tuple[str, int]] = await until(look)
    return found


@pytest.mark.spec("SA-320")
async def test_an_attempt_whose_outcome_a_kill_took_is_made_again(folder: Path, receiver: Receiver) -> None:
    never = asyncio.Event()
    receiver.answers = [Answer(after=never.wait)]
    await live_until(folder, receiver, lambda: receiver.wait_for(1, seconds=50))
    assert len(receiver.received) == 1
    driver = FakeDriver(folder / "i", agent=AGENT)
    async with running_plane(folder / "d", driver, webhook_test_destinations=receiver.destinations) as plane:
        first, second = await receiver.wait_for(2)
        assert await delivered(plane) == [("DELIVERED", 2)]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert first.event["data"]["exitCode"] == 3
    never.set()


@pytest.mark.spec("SA-312", "SA-320")
async def test_a_planned_retry_is_kept_over_a_kill(folder: Path, receiver: Receiver) -> None:
    receiver.answers = [Answer(503)]

    async def recorded() -> None:
        await receiver.wait_for(1, seconds=50)
        await asyncio.sleep(0.5)  # for the record of the 503: nothing outside the server shows it

    await live_until(folder, receiver, recorded)
    driver = FakeDriver(folder / "i", agent=AGENT)
    async with running_plane(folder / "d", driver, webhook_test_destinations=receiver.destinations) as plane:
        rows = await plane.sql("SELECT state, attempts, last_status FROM webhook_deliveries")
        assert rows == [("PENDING", 1, 503)]
        plane.clock.pass_seconds(40)
        plane.services.wakes.publish(["webhooks"])
        assert await delivered(plane) == [("DELIVERED", 2)]


@pytest.mark.spec("SA-306", "SA-320")
async def test_the_end_of_a_command_while_no_server_ran_is_told_by_the_next(folder: Path, receiver: Receiver) -> None:
    driver = FakeDriver(folder / "i", agent=AGENT)
    settings: dict[str, Any] = {"webhook_test_destinations": receiver.destinations}
    async with running_plane(folder / "d", driver, **settings) as plane:
        sandbox = await plane.api.ready_sandbox(executionWebhook={"url": f"https://{receiver.host}/", "secret": SECRET})
        started = await plane.api.start(sandbox["sandboxId"], "sh", "-c", "sleep 1; exit 4")
    await asyncio.sleep(1.2)  # it ends now, and nobody hears of it
    assert receiver.received == []
    async with running_plane(folder / "d", FakeDriver(folder / "i", agent=AGENT), **settings) as plane:
        (received,) = await receiver.wait_for(1)
        assert received.event["data"]["executionId"] == started["executionId"]
        assert (received.event["data"]["status"], received.event["data"]["exitCode"]) == ("FAILED", 4)
        assert await delivered(plane) == [("DELIVERED", 1)]
