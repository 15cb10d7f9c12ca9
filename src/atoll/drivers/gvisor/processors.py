"""Which processor a small sandbox runs on: one that may use at most one is kept on one at a time.

gVisor is many threads that wake each other, and on a virtual machine waking another processor costs a tenth of a
millisecond, ten times as much as the same one: starting a program takes half as long on one. New sandboxes go where
the fewest are; every few seconds the busiest processor may hand a sandbox to the idlest. Called by the driver. The
control groups hold the truth, so a restart changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from atoll.drivers.gvisor.cgroups import Cgroups

LOOK_SECONDS = 4.0
_WORTH_MOVING = 0.2
"""Processors of imbalance that a move must take away; less is not worth the cold caches."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Placed:
    """A sandbox that is kept on one processor."""

    processor: int
    load: float
    """Processors it used lately, 0 to 1."""


def least_used(processors: Collection[int], taken: Collection[int]) -> int:
    """The processor that the fewest are kept on."""
    counts = Counter(taken)
    return min(sorted(processors), key=lambda processor: counts[processor])


def better_place(placed: Mapping[str, Placed], processors: Collection[int]) -> tuple[str, int] | None:
    """The move of one sandbox that evens out the most, or None when none is worth it."""
    loads = dict.fromkeys(processors, 0.0)
    for sandbox in placed.values():
        loads[sandbox.processor] = loads.get(sandbox.processor, 0.0) + sandbox.load
    busiest, idlest = max(loads, key=lambda one: loads[one]), min(processors, key=lambda one: loads[one])
    gap = loads[busiest] - loads[idlest]
    gains = {
        instance_id: gap - abs(gap - 2 * sandbox.load)
        for instance_id, sandbox in placed.items()
        if sandbox.processor == busiest
    }
    best = max(gains, key=lambda instance_id: gains[instance_id], default=None)
    return (best, idlest) if best is not None and gains[best] > _WORTH_MOVING else None


class Processors:
    """Places sandboxes and evens out."""

    def __init__(
        self,
        cgroups: Cgroups,
        *,
        processors: Collection[int] | None = None,
        look_seconds: float = LOOK_SECONDS,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`processors` are those that this process may use, unless given."""
        self._cgroups = cgroups
        self._processors = sorted(os.sched_getaffinity(0) if processors is None else processors)
        self._look_seconds = look_seconds
        self._seconds = seconds
        self._spent: dict[str, tuple[float, float]] = {}
        """When a sandbox was looked at, and the processor seconds it had used by then."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin evening out."""
        if len(self._processors) > 1:
            self._task = asyncio.create_task(self._keep_balancing())

    async def stop(self) -> None:
        """Stop; sandboxes stay where they are."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def place(self, instance_id: str, cpus: float) -> None:
        """Keep a sandbox of at most one processor on one."""
        if cpus > 1 or len(self._processors) < 2 or self._cgroups.confined_to(instance_id) is not None:
            return
        taken = [self._cgroups.confined_to(other) for other in self._cgroups.instances()]
        self._cgroups.confine(instance_id, least_used(self._processors, [cpu for cpu in taken if cpu is not None]))

    def balance(self) -> None:
        """Make the one move that is worth most, if any is. Reads many small files: call it in a thread."""
        placed = {}
        for instance_id in self._cgroups.instances():
            processor = self._cgroups.confined_to(instance_id)
            if processor is not None:
                placed[instance_id] = Placed(processor, self._load(instance_id))
        for gone in self._spent.keys() - placed.keys():
            del self._spent[gone]
        move = better_place(placed, self._processors)
        if move is not None:
            self._cgroups.confine(*move)

    async def _keep_balancing(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await asyncio.to_thread(self.balance)
            except Exception:
                # One look that failed must not end the evening out.
                _log.exception("evening out the processors failed")

    def _load(self, instance_id: str) -> float:
        now = self._seconds()
        spent = sum(_processor_seconds(pid) for pid in self._cgroups.processes(instance_id))
        before = self._spent.get(instance_id)
        self._spent[instance_id] = now, spent
        if before is None or now <= before[0]:
            return 0.0
        # Less than before when a process has ended in between.
        return min(1.0, max(0.0, spent - before[1]) / (now - before[0]))


def _processor_seconds(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
    return 0.0
