"""A control plane that lives through a whole property: restarted, its clock moved on, its driver held and broken.

The state machines of hypothesis are synchronous. `run` lets the event loop go on for as long as one call takes, so
between two steps the whole control plane stands still.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from tests.plane import AGENT, IMAGE, Api, Clock, Plane, expect, running_plane, until

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.fake import FakeDriver
from atoll.ops import command_admission
from atoll.storage.mounts import VolumeMounts
from atoll.system import random_id

T = TypeVar("T")

IDLE_SECONDS = 300
RETAINED_SECONDS = 700
LIFETIME_SECONDS = 3_500
"""Half a step of the clock away from any sum of its steps, so that the seconds a test takes decide nothing."""
CLOCK_STEP_SECONDS = 200
_HELD_RESUME_SECONDS = 0.2
_RESUME_SECONDS = command_admission.RESUME_WAIT_SECONDS


class World:
    """The fake driver with the real agent, a database, and one life of a control plane after the other."""

    def __init__(self, database_url: str | None) -> None:
        self.clock = Clock()
        self._runner = asyncio.Runner()
        self._folder = Path(tempfile.mkdtemp(prefix="atoll-", dir="/tmp"))  # short: socket paths end at 107 bytes
        self._database_url = database_url
        self.driver = FakeDriver(self._folder / "i", agent=AGENT)
        self._gate = self.driver.faults.hold("create")
        self._gate.set()
        self._life = AsyncExitStack()
        self.plane: Plane
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the control plane go on until this is done."""
        return self._runner.run(work)

    def close(self) -> None:
        """End everything and leave nothing."""
        try:
            self.hold(held=False)
            self.run(self._life.aclose())
            self.run(self._remove())
        finally:
            self._runner.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def new_account(self, ceiling: int) -> Api:
        """An account with nothing in it but a template of short limits, and a ceiling of its own."""
        return self.run(self._new_account(ceiling))

    def hold(self, *, held: bool) -> None:
        """Let no instance be made until it is released, nor a request wait long for one."""
        command_admission.RESUME_WAIT_SECONDS = _HELD_RESUME_SECONDS if held else _RESUME_SECONDS
        if held:
            self._gate.clear()
        else:
            self._gate.set()

    def fail_next_create(self) -> None:
        """The next instance cannot be made."""
        self.driver.faults.fail_next("create", RuntimeFailure("scripted", code=ErrorCode.UNKNOWN))

    def restart(self) -> None:
        """The control plane ends and another one goes on; the sandboxes never notice."""
        self.run(self._life.aclose())
        self.run(self._open())

    def caller(self, api: Api) -> Api:
        """The same caller, of the control plane that runs now."""
        return Api(self.plane.client, api.token, api.ids, self.plane.shapes)

    def empty(self, api: Api) -> None:
        """End every sandbox of an account and wait until nothing of them is left."""
        self.hold(held=False)
        self.run(self._empty(self.caller(api)))

    async def _open(self) -> None:
        self.plane = await self._life.enter_async_context(
            running_plane(
                self._folder / "d", self.driver, self._database_url, clock=self.clock, snapshot_timeout_seconds=60
            )
        )

    async def _new_account(self, ceiling: int) -> Api:
        api = await self.plane.add_account(random_id())
        limits = {
            "idleTimeoutSeconds": IDLE_SECONDS,
            "suspendedRetentionSeconds": RETAINED_SECONDS,
            "hardLifetimeSeconds": LIFETIME_SECONDS,
        }
        revision = {"templateId": api.ids.template, "imageDigest": IMAGE, **limits}
        expect(await api.post("/sandbox-template/revision", **revision), 201)
        await self.plane.sql(
            "UPDATE accounts SET active_sandbox_limit = :n WHERE id = :id", n=ceiling, id=api.ids.account
        )
        return api

    async def _empty(self, api: Api) -> None:
        async def ended() -> bool:
            found = expect(await api.get("/sandboxes", limit=100), 200)["sandboxes"]
            living = [sandbox["sandboxId"] for sandbox in found if sandbox["status"] != "TERMINATED"]
            for sandbox_id in living:  # 409 for one that is just becoming READY: it is asked again
                await api.post("/sandbox/terminate", sandboxId=sandbox_id)
            return not living

        await until(ended)

        async def gone() -> bool:
            return not await self.driver.list_instances()

        await until(gone)

    async def _remove(self) -> None:
        for instance in await self.driver.list_instances():
            await self.driver.cleanup(instance.instance_id)
        mounts = VolumeMounts((self._folder / "d" / "mounts").absolute(), self._folder / "d" / "mount-cache")
        for instance_id in mounts.instances():
            await mounts.detach(instance_id)
