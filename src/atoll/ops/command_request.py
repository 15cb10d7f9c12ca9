"""What a caller wants run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.domain.command import PtySize


@dataclass(frozen=True, slots=True, repr=False)
class CommandRequest:
    """What to run. Never stored, never logged, never shown."""

    argv: Sequence[str]
    cwd: str | None
    env: Mapping[str, str]
    timeout_seconds: float | None
    ai_subscription_id: str | None = None
    """Puts this credential of the caller into the environment."""
    stdin: bool = False
    """Whether its standard input stays open for what is sent later; it is empty otherwise."""
    pty: PtySize | None = None
    """Runs it on a terminal of this size."""
