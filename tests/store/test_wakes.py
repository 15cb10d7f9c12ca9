"""Wakes: whoever listens before they look misses nothing, and a listener stops when it is told to."""

from __future__ import annotations

import asyncio
import random

import pytest

from atoll.store.wakes import Wakes


async def test_a_wake_between_the_look_and_the_wait_is_not_missed() -> None:
    wakes = Wakes()
    with wakes.listen("topic") as listener:
        wakes.publish(["topic"])
        assert await listener.wait(0)
        assert not await listener.wait(0.01)


async def test_a_listener_hears_its_own_topic_only() -> None:
    wakes = Wakes()
    with wakes.listen("mine") as mine, wakes.listen("theirs") as theirs:
        wakes.publish(["mine"])
        assert await mine.wait(0)
        assert not await theirs.wait(0)


async def test_every_listener_of_a_topic_hears_a_wake() -> None:
    wakes = Wakes()
    with wakes.listen("topic") as one, wakes.listen("topic") as other:
        wakes.publish(["topic"])
        assert await one.wait(0) and await other.wait(0)


async def test_nothing_is_kept_of_listeners_that_left() -> None:
    wakes = Wakes()
    for number in range(100):
        with wakes.listen(f"topic-{number}"):
            pass
    assert wakes._listeners == {}


async def test_a_counter_that_is_read_after_each_wake_is_never_seen_late() -> None:
    wakes, count = Wakes(), 0

    async def write() -> None:
        nonlocal count
        for _ in range(200):
            count += 1
            wakes.publish(["topic"])
            await asyncio.sleep(random.choice([0, 0, 0.0005]))

    with wakes.listen("topic") as listener:
        writing = asyncio.create_task(write())
        while count < 200:
            assert await listener.wait(5)
        await writing


@pytest.mark.parametrize("hops", range(6))
async def test_a_cancellation_that_comes_together_with_a_wake_is_obeyed(hops: int) -> None:
    wakes = Wakes()

    async def listen_for_ever() -> None:
        with wakes.listen("topic") as listener:
            while True:
                await listener.wait(60)

    listening = asyncio.create_task(listen_for_ever())
    await asyncio.sleep(0.01)
    wakes.publish(["topic"])
    for _ in range(hops):
        await asyncio.sleep(0)
    listening.cancel()
    done, _ = await asyncio.wait({listening}, timeout=2)
    listening.cancel()
    assert done, "the listener went on"
