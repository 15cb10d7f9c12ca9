"""A command: one process tree in a sandbox, with its ending and its output events.

Shared by the agent's client, the drivers, ops and the API. Sequence numbers start at 0 with `init`; `exit` is last.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

MAX_COMMANDS_PER_SANDBOX = 256
"""Commands that may run at once in one sandbox (SA-398)."""
RING_BYTES = 4 * 1024 * 1024
"""Output kept per command (SA-268)."""
MAX_ANSWER_BYTES = 1024 * 1024
"""Output in one answer (SA-275)."""
EXECUTE_DEFAULT_TIMEOUT_SECONDS = 120
EXECUTE_MAX_TIMEOUT_SECONDS = 900
START_MAX_TIMEOUT_SECONDS = 604_800
IDEMPOTENCY_KEY_MAX_LENGTH = 200


class EndReason(StrEnum):
    """Why a command did not exit on its own (SA-229 … SA-235)."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    """Its deadline passed."""
    CANCELED = "canceled"
    """Somebody asked for its end."""
    KILLED = "killed"
    """Out of memory, or another kill that nobody asked for."""
    AGENT_SHUTDOWN = "agent_shutdown"
    """The sandbox was paused or terminated."""


@dataclass(frozen=True, slots=True)
class PtySize:
    """Rows and columns of a terminal, 1 to 4096 each."""

    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class Init:
    """The first event."""

    seq: int
    process_id: int


@dataclass(frozen=True, slots=True)
class Output:
    """A chunk of one stream, `stdout` or `stderr`."""

    seq: int
    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    """Output that was dropped before it could be read."""

    seq: int
    dropped_bytes: int
    dropped_events: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The last event."""

    seq: int
    exit_code: int
    reason: EndReason | None


CommandEvent = Init | Output | Truncated | Exit


@dataclass(frozen=True, slots=True)
class CommandState:
    """Where a command stands, without its output."""

    execution_id: UUID
    running: bool
    exit_code: int | None
    reason: EndReason | None
    started_at: datetime
    exited_at: datetime | None
    stdout_bytes: int
    stderr_bytes: int
    output_truncated: bool
    end_seq: int | None = None
    """How many events there are, the exit included; None while it runs, and where nobody said."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """One page of a command's events."""

    state: CommandState
    events: tuple[CommandEvent, ...]
    next_seq: int
    complete: bool


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that was run to its end."""

    state: CommandState
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool


@dataclass(frozen=True, slots=True)
class Started:
    """A command that runs."""

    process_id: int
    started_at: datetime
    existing: bool
    """True when the execution id was known already and nothing was started."""


@dataclass(frozen=True, slots=True)
class AgentStats:
    """What the agent counts inside the sandbox."""

    uptime_seconds: float
    memory_bytes: int
    processes: int
    running_commands: int
