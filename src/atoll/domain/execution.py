"""The record of a command: that it was asked for, runs, and how it ended. What it was and said is never part of it.

`Command` is the agent's view (`atoll.domain.command`), `Execution` the control plane's. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from atoll.domain.command import EndReason, PtySize


class ExecutionKind(StrEnum):
    """How a command was asked for."""

    EXECUTE = "EXECUTE"
    """Run to its end within one request."""
    START = "START"
    """Started; it goes on by itself."""


class ExecutionState(StrEnum):
    """Where a command stands."""

    REQUESTED = "REQUESTED"
    """Recorded; the agent may not know it yet."""
    RUNNING = "RUNNING"
    """The agent has started it."""
    EXITED = "EXITED"
    """It has ended."""


class ExecutionType(StrEnum):
    """What kind of process a command is (SA-301)."""

    EXEC = "EXEC"
    """One with pipes."""
    PTY = "PTY"
    """One on a terminal."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One command of one sandbox."""

    id: str
    sandbox_id: str
    instance_id: str
    kind: ExecutionKind
    state: ExecutionState
    idempotency_key: str | None
    fingerprint: str | None
    caller_key: str
    process_id: int | None
    exit_code: int | None
    reason: EndReason | None
    stdout_bytes: int
    stderr_bytes: int
    output_truncated: bool
    requested_at: datetime
    started_at: datetime | None
    exited_at: datetime | None
    execution_type: ExecutionType = ExecutionType.EXEC
    end_seq: int | None = None
    """How many events it had; None where nobody saw its end."""


def fingerprint(
    key: bytes,
    argv: Sequence[str],
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout_seconds: float | None,
    ai_subscription_id: str | None = None,
    *,
    stdin: bool = False,
    pty: PtySize | None = None,
) -> str:
    """Identify a command without keeping it (SA-248, SA-399): a keyed hash, so that a stored one reveals nothing.

    A subscription counts by its id: its value may be rotated between two calls that mean the same. Whether there is a
    terminal counts, not its size: whoever starts again after a lost answer may have another window by then.
    """
    parts: list[object] = [list(argv), cwd, sorted((env or {}).items()), timeout_seconds, ai_subscription_id]
    if stdin or pty is not None:
        parts.append([stdin, pty is not None])
    return hmac.new(key, json.dumps(parts, ensure_ascii=True).encode(), hashlib.sha256).hexdigest()
