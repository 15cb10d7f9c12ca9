"""The interface of a driver: everything the control plane asks of whatever makes sandboxes.

Workers and ops call it; drivers implement it and pass `atoll.drivers.contract`. A driver keeps no truth in memory:
after a restart of the control plane it finds its instances again by looking. Every call is idempotent by `instance_id`,
which the caller makes before the work, and has a time limit of its own. Failures are `RuntimeFailure` with a code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from atoll.agent.streams import AgentStream
from atoll.domain.command import AgentStats, CommandOutput, CommandResult, CommandState, PtySize, Started
from atoll.domain.egress import EgressPolicy


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder of this machine inside the sandbox, with everything mounted in it, writable.

    Whoever asks for it keeps the folder for as long as the instance lives.
    """

    source: str
    target: str
    counts_as_disk: bool
    """Whether what is in there counts toward the temporary disk of the sandbox (SA-411)."""
    cache: str | None = None
    """A folder of this machine for what was written and is not stored elsewhere yet; it counts in any case (SA-409)."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What to run. Frozen before the work and the same at every retry."""

    instance_id: str
    image_digest: str
    """`repo/image@sha256:<64 hex>`"""
    command: tuple[str, ...] | None
    """Entrypoint argv; None runs the image's own entrypoint."""
    working_dir: str | None
    """Default directory of commands; None is `/workspace`."""
    zclouds: int
    """1 zCloud = 0.5 vCPU + 512 MiB."""
    pid_limit: int | None
    ephemeral_disk_mb: int | None
    mounts: tuple[HostMount, ...] = ()
    """Outer folders first."""
    egress: EgressPolicy | None = None
    """All that it may reach; None is everything but infrastructure."""


class Observed(StrEnum):
    """What a driver sees of an instance."""

    ABSENT = "absent"
    """Nothing of it exists: no process, namespace, cgroup, mount or file."""
    STARTING = "starting"
    """Being made; it may not answer yet."""
    RUNNING = "running"
    """Its processes live."""
    EXITED = "exited"
    """It ended by itself or was killed; remains are to be cleaned up."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one instance."""

    instance_id: str
    observed: Observed
    detail: str | None = None
    """Why it ended, in words fit for a status reason: `evicted: temporary disk limit`, `entrypoint exited with 1`, …"""


class AgentConnection(Protocol):
    """One multiplexed connection to the agent of one instance. Safe for concurrent use on one event loop.

    Every method raises `RuntimeFailure(AGENT_UNREACHABLE)` when the connection is or gets lost, and the agent's own
    refusals with their codes (EXECUTION_NOT_FOUND, EXECUTION_EXITED, TOO_MANY_EXECUTIONS, INVALID_REQUEST).
    """

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        ...

    async def wait_closed(self) -> None:
        """Return once the connection is over."""
        ...

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
        """Start a command; the same id again starts nothing."""
        ...

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
        """Run a command to its end and return its captured output (the first `capture_bytes` of each stream)."""
        ...

    async def read(
        self, execution_id: UUID, *, from_seq: int = 0, max_bytes: int = 1_048_576, wait_seconds: float = 0
    ) -> CommandOutput:
        """Events from `from_seq` on, and the state. Waits for new output while there is none and the command runs."""
        ...

    async def watch(self, execution_id: UUID) -> CommandState:
        """Return when the command has ended."""
        ...

    async def write_stdin(self, execution_id: UUID, data: bytes, *, eof: bool = False) -> None:
        """Write to standard input; returns when the bytes are in the pipe."""
        ...

    async def signal(self, execution_id: UUID, signal_number: int, *, cancel: bool = True) -> None:
        """Signal the whole tree of a command."""
        ...

    async def resize(self, execution_id: UUID, size: PtySize) -> None:
        """Change the size of the terminal."""
        ...

    async def forget(self, execution_id: UUID) -> None:
        """Free an exited command; unknown ids are fine."""
        ...

    async def list_commands(self) -> list[CommandState]:
        """Every command the agent knows, running or exited."""
        ...

    async def stats(self) -> AgentStats:
        """Uptime, memory and counts."""
        ...

    async def stop_commands(self, grace_seconds: float = 2.0) -> None:
        """End every command with the reason `agent_shutdown`."""
        ...

    async def open_files(self, arguments: Sequence[bytes]) -> AgentStream:
        """A stream to a worker that does one operation on files (`atoll.agent.files`); at most 120 streams at once."""
        ...

    async def dial(self, port: int) -> AgentStream:
        """A TCP connection to a port of the sandbox's loopback; a refused one has ended, with the errno as its code."""
        ...

    async def end_streams(self) -> None:
        """End every stream with the code 254, and return once none writes any more; commands go on."""
        ...

    async def hold(self, *, limit_seconds: float) -> None:
        """End every stream and stop every process, for `limit_seconds` at most or until another client connects."""
        ...

    async def release(self) -> None:
        """Let go on what is held; fine when nothing is."""
        ...

    def on_exit(self, callback: Callable[[CommandState], Awaitable[None] | None]) -> None:
        """Call back for the end of every started command, once per end on this connection."""
        ...

    async def close(self) -> None:
        """End the connection; commands go on."""
        ...


class Driver(Protocol):
    """Makes, finds and unmakes instances."""

    @property
    def name(self) -> str:
        """`gvisor`, `fake`, …"""
        ...

    async def start(self) -> None:
        """Prepare the machine (rules, pools); called once by the control plane before anything else."""
        ...

    async def stop(self) -> None:
        """Release what only this process needs; instances go on."""
        ...

    async def prepare_image(self, image_digest: str) -> None:
        """Have the image on the machine; pulls it when it is missing. Raises INVALID_REQUEST when there is none."""
        ...

    async def create(self, spec: InstanceSpec) -> None:
        """Make the instance and return when its agent answers and its entrypoint stays up. Twice is once.

        After a failure nothing of the instance is left running; `cleanup` removes the rest.
        """
        ...

    async def connect(self, instance_id: str) -> AgentConnection:
        """A new connection to the agent; an earlier one ends. Raises SANDBOX_NOT_FOUND when there is no instance."""
        ...

    async def destroy(self, instance_id: str) -> None:
        """Kill it: when this returns no process of it lives. Fine when there is none."""
        ...

    async def cleanup(self, instance_id: str) -> None:
        """Remove namespaces, cgroups, mounts and files of an instance that is dead. Fine when there are none."""
        ...

    async def observe(self, instance_id: str) -> Observation:
        """Look at one instance."""
        ...

    async def list_instances(self) -> list[Observation]:
        """Everything this driver finds on the machine, also what the control plane does not know."""
        ...

    async def collect_images(self, in_use: set[str]) -> list[str]:
        """Delete cached images whose digests are neither in `in_use` nor recently used; returns those deleted."""
        ...
