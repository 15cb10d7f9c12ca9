"""A driver around a driver that logs and measures every call, so that the drivers themselves stay small.

`compose` wraps the chosen driver in it. It changes nothing: the same answers, the same errors. No command line,
environment or output passes through here, only ids, codes and durations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from atoll.domain.errors import RuntimeFailure
from atoll.drivers.base import AgentConnection, Driver, InstanceSpec, Observation

Recorder = Callable[[str, float, str], None]
"""Told the call's name, its seconds, and `ok`, the failure's code, or `error`."""


def _ignore(call: str, seconds: float, outcome: str) -> None:
    """Record nothing."""


class ObservedDriver:
    """Implements `Driver` by another one."""

    def __init__(
        self, inner: Driver, *, record: Recorder = _ignore, seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._record = record
        self._seconds = seconds
        self._log = structlog.get_logger(__name__).bind(driver=inner.name)

    @property
    def name(self) -> str:
        """The inner driver's name."""
        return self._inner.name

    async def start(self) -> None:
        """Observed."""
        with self._observed("start"):
            await self._inner.start()

    async def stop(self) -> None:
        """Observed."""
        with self._observed("stop"):
            await self._inner.stop()

    async def prepare_image(self, image_digest: str) -> None:
        """Observed."""
        with self._observed("prepare_image", image_digest=image_digest):
            await self._inner.prepare_image(image_digest)

    async def create(self, spec: InstanceSpec) -> None:
        """Observed."""
        with self._observed("create", instance_id=spec.instance_id, zclouds=spec.zclouds):
            await self._inner.create(spec)

    async def connect(self, instance_id: str) -> AgentConnection:
        """Observed; what goes over the connection is not."""
        with self._observed("connect", instance_id=instance_id):
            return await self._inner.connect(instance_id)

    async def destroy(self, instance_id: str) -> None:
        """Observed."""
        with self._observed("destroy", instance_id=instance_id):
            await self._inner.destroy(instance_id)

    async def cleanup(self, instance_id: str) -> None:
        """Observed."""
        with self._observed("cleanup", instance_id=instance_id):
            await self._inner.cleanup(instance_id)

    async def observe(self, instance_id: str) -> Observation:
        """Observed."""
        with self._observed("observe", instance_id=instance_id):
            return await self._inner.observe(instance_id)

    async def list_instances(self) -> list[Observation]:
        """Observed."""
        with self._observed("list_instances"):
            return await self._inner.list_instances()

    async def collect_images(self, in_use: set[str]) -> list[str]:
        """Observed."""
        with self._observed("collect_images", in_use=len(in_use)):
            return await self._inner.collect_images(in_use)

    @contextmanager
    def _observed(self, call: str, **facts: str | int) -> Iterator[None]:
        begun = self._seconds()
        outcome = "error"
        try:
            yield
            outcome = "ok"
        except RuntimeFailure as failure:
            outcome = failure.code.value
            raise
        finally:
            seconds = self._seconds() - begun
            self._record(call, seconds, outcome)
            tell = self._log.debug if outcome == "ok" else self._log.warning
            tell("driver call", call=call, outcome=outcome, milliseconds=round(seconds * 1_000, 1), **facts)
