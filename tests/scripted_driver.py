"""A driver in memory for tests whose subject is a worker: it does what it is told, fails where it is told, counts.

Its instances outlive the worker and its connections, as real ones outlive the control plane. Everywhere else tests use
the fake driver, which runs the real agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.samples import NOW

from atoll.domain.command import AgentStats, CommandOutput, CommandResult, CommandState, EndReason, PtySize, Started
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import AgentConnection, InstanceSpec, Observation, Observed
from atoll.drivers.connections import AgentConnections
from atoll.ops.services import Services
from atoll.sealing import Sealer
from atoll.settings import Settings
from atoll.storage.volumes import VolumeData
from atoll.store.database import Database
from atoll.system import random_id


def failure(code: ErrorCode = ErrorCode.SANDBOX_NOT_READY, message: str = "scripted") -> RuntimeFailure:
    """A failure as drivers raise them."""
    return RuntimeFailure(message, code=code)


@dataclass
class Instance:
    """One machine of the scripted world."""

    spec: InstanceSpec
    alive: bool = True
    answers: bool = True
    commands: dict[str, CommandState] = field(default_factory=dict)
    ran: list[tuple[str, ...]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    connection: ScriptedConnection | None = None


def command_state(execution_id: str, *, running: bool = True, exit_code: int = 0) -> CommandState:
    """What an agent says of a command."""
    return CommandState(
        execution_id=UUID(execution_id),
        running=running,
        exit_code=None if running else exit_code,
        reason=None,
        started_at=NOW,
        exited_at=None if running else NOW,
        stdout_bytes=0,
        stderr_bytes=0,
        output_truncated=False,
    )


class ScriptedConnection:
    """An agent of the scripted world."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._closed = asyncio.Event()
        self._on_exit: list[Callable[[CommandState], Awaitable[None] | None]] = []

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def lose(self) -> None:
        """The connection breaks."""
        self._closed.set()

    def _check(self) -> None:
        if self.closed or not self._instance.alive:
            raise failure(ErrorCode.AGENT_UNREACHABLE)

    async def start(
        self,
        execution_id: UUID,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        stdin: bool = False,
        pty: PtySize | None = None,
    ) -> Started:
        self._check()
        existing = str(execution_id) in self._instance.commands
        self._instance.commands.setdefault(str(execution_id), command_state(str(execution_id)))
        return Started(5, NOW, existing)

    async def run(
        self,
        execution_id: UUID,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float,
        capture_bytes: int = 1_048_576,
    ) -> CommandResult:
        self._check()
        state = command_state(str(execution_id), running=False)
        self._instance.commands[str(execution_id)] = state
        self._instance.ran.append(tuple(argv))
        return CommandResult(state, b"", b"", False, False)

    async def read(
        self, execution_id: UUID, *, from_seq: int = 0, max_bytes: int = 1_048_576, wait_seconds: float = 0
    ) -> CommandOutput:
        self._check()
        state = self._instance.commands[str(execution_id)]
        return CommandOutput(state, (), from_seq, complete=not state.running)

    async def watch(self, execution_id: UUID) -> CommandState:
        while True:
            self._check()
            state = self._instance.commands.get(str(execution_id))
            if state is None:
                raise RuntimeFailure("no such execution", code=ErrorCode.EXECUTION_NOT_FOUND)
            if not state.running:
                return state
            await asyncio.sleep(0.005)

    async def end(self, execution_id: str, exit_code: int = 0) -> None:
        """A command ends by itself."""
        state = command_state(execution_id, running=False, exit_code=exit_code)
        self._instance.commands[execution_id] = state
        for callback in self._on_exit:
            told = callback(state)
            if told is not None:
                await told

    async def write_stdin(self, execution_id: UUID, data: bytes, *, eof: bool = False) -> None:
        self._check()

    async def signal(self, execution_id: UUID, signal_number: int, *, cancel: bool = True) -> None:
        self._check()

    async def resize(self, execution_id: UUID, size: PtySize) -> None:
        self._check()

    async def forget(self, execution_id: UUID) -> None:
        self._check()
        self._instance.commands.pop(str(execution_id), None)

    async def list_commands(self) -> list[CommandState]:
        self._check()
        return list(self._instance.commands.values())

    async def stats(self) -> AgentStats:
        self._check()
        return AgentStats(1, 1, 1, 0)

    async def stop_commands(self, grace_seconds: float = 2.0) -> None:
        self._check()
        for execution_id, state in list(self._instance.commands.items()):
            if state.running:
                await self.end(execution_id)
                stopped = replace(self._instance.commands[execution_id], reason=EndReason.AGENT_SHUTDOWN)
                self._instance.commands[execution_id] = stopped

    def on_exit(self, callback: Callable[[CommandState], Awaitable[None] | None]) -> None:
        self._on_exit.append(callback)

    async def close(self) -> None:
        self._closed.set()


class ScriptedDriver:
    """Implements `Driver` over a dict. `before` runs ahead of every call and may raise or wait."""

    name = "scripted"

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.calls: list[tuple[str, str]] = []
        self.created: list[str] = []
        self.before: Callable[[str, str], Awaitable[None]] | None = None
        self.images_in_use: set[str] | None = None

    async def _call(self, name: str, subject: str) -> None:
        self.calls.append((name, subject))
        if self.before is not None:
            await self.before(name, subject)

    def live(self) -> set[str]:
        """Instances whose processes live."""
        return {instance_id for instance_id, instance in self.instances.items() if instance.alive}

    def kill(self, instance_id: str) -> None:
        """An instance dies, from outside."""
        instance = self.instances[instance_id]
        instance.alive = False
        if instance.connection is not None:
            instance.connection.lose()

    def forget_connections(self) -> None:
        """The control plane is gone; instances are not."""
        for instance in self.instances.values():
            if instance.connection is not None:
                instance.connection.lose()
                instance.connection = None

    async def start(self) -> None:
        await self._call("start", "")

    async def stop(self) -> None:
        await self._call("stop", "")

    async def prepare_image(self, image_digest: str) -> None:
        await self._call("prepare_image", image_digest)

    async def create(self, spec: InstanceSpec) -> None:
        await self._call("create", spec.instance_id)
        if spec.instance_id not in self.instances:
            self.created.append(spec.instance_id)
            self.instances[spec.instance_id] = Instance(spec)

    async def connect(self, instance_id: str) -> AgentConnection:
        await self._call("connect", instance_id)
        instance = self.instances.get(instance_id)
        if instance is None or not instance.alive:
            raise failure(ErrorCode.SANDBOX_NOT_FOUND)
        if not instance.answers:
            raise failure(ErrorCode.AGENT_UNREACHABLE)
        instance.connection = ScriptedConnection(instance)
        return instance.connection

    async def destroy(self, instance_id: str) -> None:
        await self._call("destroy", instance_id)
        if instance_id in self.instances:
            self.kill(instance_id)

    async def cleanup(self, instance_id: str) -> None:
        await self._call("cleanup", instance_id)
        if instance_id in self.instances:
            assert not self.instances[instance_id].alive, "cleaned up while it lives"
            del self.instances[instance_id]

    async def observe(self, instance_id: str) -> Observation:
        await self._call("observe", instance_id)
        return self._observation(instance_id)

    def _observation(self, instance_id: str) -> Observation:
        instance = self.instances.get(instance_id)
        if instance is None:
            return Observation(instance_id, Observed.ABSENT)
        return Observation(instance_id, Observed.RUNNING if instance.alive else Observed.EXITED, "it was killed")

    async def list_instances(self) -> list[Observation]:
        await self._call("list_instances", "")
        return [self._observation(instance_id) for instance_id in self.instances]

    async def collect_images(self, in_use: set[str]) -> list[str]:
        await self._call("collect_images", "")
        self.images_in_use = in_use
        return []


def services_of(database: Database, driver: ScriptedDriver, data_dir: Path, **settings: Any) -> Services:
    """The services of one life of a control plane over the scripted world; what no worker here uses is None."""
    sealer = Sealer(b"s" * 32)
    values: dict[str, Any] = {
        "settings": Settings(data_dir=data_dir, **settings),
        "database": database,
        "driver": driver,
        "agents": AgentConnections(driver),
        "wakes": database.wakes,
        "clock": database.clock,
        "new_id": random_id,
        "fingerprint_key": b"k" * 32,
        "sealer": sealer,
        "volumes": VolumeData(data_dir, sealer),
    }
    wanted: dict[str, Any] = {field.name: values.get(field.name) for field in fields(Services)}
    return Services(**wanted)
