"""The loop of every worker: woken, on a timer, not ended by a pass that fails, and stopped when told."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.workers.world import until

from atoll.store.wakes import Wakes
from atoll.workers.base import run_forever


class Counting:
    """Counts its passes; fails in those it is told to fail in."""

    name = "counting"
    interval = 60.0
    patience = 0.0

    def __init__(self, topics: tuple[str, ...], due: float | None = None, fails: int = 0) -> None:
        self.topics = topics
        self.due = due
        self.fails = fails
        self.passes = 0

    async def run_once(self) -> float | None:
        self.passes += 1
        if self.passes <= self.fails:
            raise OSError("no")
        return self.due

    async def close(self) -> None:
        return


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done


@pytest.mark.parametrize("topics", [("one",), ("one", "two")])
async def test_a_worker_looks_at_its_start_and_at_every_wake(topics: tuple[str, ...]) -> None:
    wakes, worker = Wakes(), Counting(topics)
    task = asyncio.create_task(run_forever(worker, wakes))
    await until(lambda: worker.passes == 1)
    for number, topic in enumerate(topics * 2, start=2):
        await asyncio.sleep(0.01)
        wakes.publish([topic])
        await until(lambda number=number: worker.passes == number)
    await stop(task)


@pytest.mark.parametrize("topics", [(), ("one",), ("one", "two")])
async def test_a_worker_that_knows_when_there_is_more_is_back_then(topics: tuple[str, ...]) -> None:
    worker = Counting(topics, due=0.01)
    task = asyncio.create_task(run_forever(worker, Wakes()))
    await until(lambda: worker.passes >= 3)
    await stop(task)


async def test_a_pass_that_fails_does_not_end_the_worker_nor_make_it_deaf() -> None:
    wakes, worker = Wakes(), Counting(("one",), fails=2)
    task = asyncio.create_task(run_forever(worker, wakes))
    await until(lambda: worker.passes == 1)
    assert not task.done()
    for number in (2, 3):
        await asyncio.sleep(0.01)
        wakes.publish(["one"])
        await until(lambda number=number: worker.passes == number)
    await stop(task)
