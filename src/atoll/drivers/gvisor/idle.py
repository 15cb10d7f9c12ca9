"""Makes idle sandboxes cheap where there are many of them.

A sandbox of gVisor that does nothing still costs 4 to 5 % of a processor: its systrap platform looks at its own
latency every 0.4 ms (google/gvisor#13361), so fifty of them fill two processors. The kernel may be told to bundle the
timers of a thread (its timer slack); at 20 ms the cost falls to half a percent, and a command that starts then takes
some 10 ms longer. So only sandboxes that are idle are treated so, only on a machine with many, and it ends within a
look of their waking up, or at once when somebody connects. Started by the driver; it only writes timer slacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

IDLE_SLACK_NANOSECONDS = 20_000_000
USUAL_SLACK_NANOSECONDS = 50_000
CROWDED_PER_CPU = 4
"""Sandboxes per processor up to which all keep their usual timers."""
_LOOK_SECONDS = 2.0
_IDLE_BELOW = 0.10
"""Share of a processor; idle costs 0.05 with the usual timers and some more on a loaded machine."""
_BUSY_ABOVE = 0.03
"""The same with bundled timers, where idle costs 0.005."""
_PROC = Path("/proc")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One running sandbox."""

    instance_id: str
    processes: Callable[[], Iterable[int]]


@dataclass(slots=True)
class _Seen:
    pid: int
    ticks: int
    at: float
    bundled: bool = False


class IdleSandboxes:
    """Looks every two seconds."""

    def __init__(self, sandboxes: Callable[[], list[Sandbox]], *, cpus: int) -> None:
        self._sandboxes = sandboxes
        self._crowded = CROWDED_PER_CPU * cpus
        self._seen: dict[str, _Seen] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin looking."""
        self._task = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop looking; give every sandbox its usual timers back, since nobody wakes them now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for instance_id in list(self._seen):
            self.wake(instance_id)

    def wake(self, instance_id: str) -> None:
        """Give a sandbox its usual timers back now."""
        seen = self._seen.get(instance_id)
        if seen is not None and seen.bundled:
            seen.bundled = False
            seen.at = time.monotonic()
            _set_slack(seen.pid, USUAL_SLACK_NANOSECONDS)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                sandboxes = await asyncio.to_thread(self._sandboxes)
                await asyncio.to_thread(self._find, sandboxes)
                self.look(len(sandboxes), time.monotonic())
            except Exception:
                # One look that failed must not end the looking.
                _log.exception("looking for idle sandboxes failed")

    def _find(self, sandboxes: list[Sandbox]) -> None:
        """Learn the processes of new sandboxes and forget those of gone ones."""
        for gone in self._seen.keys() - {sandbox.instance_id for sandbox in sandboxes}:
            del self._seen[gone]
        for sandbox in sandboxes:
            if sandbox.instance_id not in self._seen and (pid := _sentry(sandbox.processes())) is not None:
                self._seen[sandbox.instance_id] = _Seen(pid, _ticks(pid), time.monotonic())

    def look(self, count: int, now: float) -> None:
        """Bundle the timers of those that were idle since the last look, and unbundle those of the others."""
        for seen in self._seen.values():
            ticks = _ticks(seen.pid)
            passed = now - seen.at
            if passed < _LOOK_SECONDS / 2:
                continue
            share = (ticks - seen.ticks) / os.sysconf("SC_CLK_TCK") / passed
            seen.ticks, seen.at = ticks, now
            idle = count > self._crowded and share < (_BUSY_ABOVE if seen.bundled else _IDLE_BELOW)
            if idle != seen.bundled:
                seen.bundled = idle
                _set_slack(seen.pid, IDLE_SLACK_NANOSECONDS if idle else USUAL_SLACK_NANOSECONDS)


def _sentry(processes: Iterable[int]) -> int | None:
    """The process with gVisor's kernel."""
    for pid in processes:
        with contextlib.suppress(OSError):
            if (_PROC / str(pid) / "cmdline").read_bytes().startswith(b"runsc-sandbox\0"):
                return pid
    return None


def _ticks(pid: int) -> int:
    """Processor time of all its threads; 0 when it is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _set_slack(pid: int, nanoseconds: int) -> None:
    """For every thread but the second, Go's monitor, which wakes seldom and lends processors that a system call
    holds."""
    with contextlib.suppress(OSError):
        threads = sorted(int(entry.name) for entry in (_PROC / str(pid) / "task").iterdir())
        for thread in threads[:1] + threads[2:]:
            with contextlib.suppress(OSError):
                (_PROC / str(thread) / "timerslack_ns").write_text(str(nanoseconds))
