"""Archives wait for threads of their own, and the time limit of one begins with its work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from atoll.storage import snapshots


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """One thread for archives; the event ends what `occupy` does."""
    release = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(snapshots, "_threads", threads)
        yield release
        release.set()


async def occupy(release: threading.Event) -> asyncio.Task[bool]:
    begun = threading.Event()

    def hold(cancel: threading.Event) -> bool:
        begun.set()
        return release.wait(10)

    task = asyncio.create_task(snapshots._in_thread(hold, 10))
    assert await asyncio.to_thread(begun.wait, 10)
    return task


async def test_waiting_for_a_thread_does_not_use_up_the_time_limit(release: threading.Event) -> None:
    first = await occupy(release)
    second = asyncio.create_task(snapshots._in_thread(lambda cancel: "done", 0.05))
    await asyncio.sleep(0.2)
    assert not second.done()
    release.set()
    assert await asyncio.wait_for(second, 10) == "done"
    assert await first


async def test_what_is_cancelled_while_it_waits_never_begins(release: threading.Event) -> None:
    first = await occupy(release)
    begun: list[bool] = []
    second = asyncio.create_task(snapshots._in_thread(lambda cancel: begun.append(True), 10))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(second, 5)
    release.set()
    await first
    assert await snapshots._in_thread(lambda cancel: "next", 10) == "next"
    assert begun == []


async def test_work_over_its_limit_is_told_to_stop_and_waited_for(release: threading.Event) -> None:
    stopped: list[bool] = []

    def work(cancel: threading.Event) -> None:
        stopped.append(cancel.wait(10))

    with pytest.raises(TimeoutError):
        await snapshots._in_thread(work, 0.05)
    assert stopped == [True]


async def test_slow_archives_leave_other_threads_alone(release: threading.Event) -> None:
    first = await occupy(release)
    waiting = [asyncio.create_task(snapshots._in_thread(lambda cancel: None, 10)) for _ in range(64)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 5) == "free"
    release.set()
    await asyncio.gather(first, *waiting)
