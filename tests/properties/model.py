"""What a sandbox and its commands are to be like after each call, in as few words as possible.

Written from the specification alone: it shares no code with the product. Pure; `now` is in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.properties.world import IDLE_SECONDS, LIFETIME_SECONDS, RETAINED_SECONDS

RUNS = {"READY", "BUSY"}
ON_THE_WAY = {"STARTING", "RESUMING"}
RELEASED = {"SUSPENDED", "TERMINATED"}
"""These hold no capacity (SA-414, SA-416)."""
RACED = {"canceled", "agent_shutdown"}
EITHER = "either of them"
"""Why a command ended that was killed while its sandbox was paused or ended."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no success: its status, and its code where it has one."""

    status: int
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A command that says something and ends, at once or when it is told to."""

    name: str
    exit_code: int
    waits: bool

    @property
    def argv(self) -> list[str]:
        """Its first line says that it can be told."""
        if not self.waits:
            return ["sh", "-c", f"echo {self.name}; echo error >&2; exit {self.exit_code}"]
        pipe = f"/tmp/{self.name}"
        return ["sh", "-c", f"mkfifo {pipe}; echo {self.name}; cat {pipe}; exit {self.exit_code}"]


@dataclass(slots=True)
class Command:
    """One started command."""

    execution_id: str
    script: Script
    key: str | None
    life: int
    """Which compute of its sandbox it runs in."""
    stdout: bytes
    stderr: bytes = b""
    running: bool = True
    exit_code: int | None = None
    """None while it runs, and where a sandbox's end decides it."""
    reason: str | None = None
    told: tuple[object, ...] | None = None
    """Its end as it was answered first; it never changes."""

    def end(self, exit_code: int | None, reason: str | None = None) -> None:
        """It ends, if it runs."""
        if self.running:
            self.running, self.exit_code, self.reason = False, exit_code, reason


@dataclass(slots=True)
class Box:
    """One sandbox."""

    sandbox_id: str
    key: str
    mode: str
    status: str
    created_at: int
    active_at: int
    life: int = 0
    suspended_at: int = 0
    ended_by: str | None = None
    allocations: int = 0
    """How often its billing has begun anew: a start, a pause, a resume (SA-384)."""
    commands: list[Command] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """What was written where its mode keeps it."""
    generation: int = -1
    """The latest that was seen."""

    @property
    def file(self) -> str:
        """Where its lines go."""
        return "persist/lines" if self.mode == "DIRECTORY" else "lines"

    @property
    def running_commands(self) -> list[Command]:
        """Those that have not ended."""
        return [command for command in self.commands if command.running]

    def become_ready(self, now: int) -> None:
        """Its agent answers."""
        self.active_at = now
        self.settle()

    def settle(self) -> None:
        """READY or BUSY, by what runs (SA-363)."""
        self.status = "BUSY" if self.running_commands else "READY"

    def end_life(self, status: str, exit_code: int | None, reason: str) -> None:
        """Its compute is gone."""
        for command in self.running_commands:
            command.end(exit_code, reason)
        self.status = status
        self.life += 1

    def terminate(self, reason: str) -> None:
        """It ends for good."""
        if self.status == "TERMINATED":
            return
        self.ended_by = reason
        self.end_life("TERMINATED", None, "agent_shutdown")

    def due(self, now: int) -> str | None:
        """Why time ends it (SA-370, SA-371)."""
        if self.status == "TERMINATED":
            return None
        if now - self.created_at >= LIFETIME_SECONDS:
            return "HARD_LIFETIME"
        if self.status == "READY" and now - self.active_at >= IDLE_SECONDS:
            return "IDLE_TIMEOUT"
        if self.status == "SUSPENDED" and now - self.suspended_at >= RETAINED_SECONDS:
            return "SUSPENDED_RETENTION"
        return None

    def refuses_work(self) -> Refusal | None:
        """Why it takes no command now (SA-214, SA-218 … SA-221); a paused one is resumed first."""
        if self.status in ON_THE_WAY:
            return Refusal(409, "SANDBOX_NOT_READY")
        if self.status == "FAILED" or (self.status == "TERMINATED" and self.ended_by != "HARD_LIFETIME"):
            return Refusal(404, "SANDBOX_NOT_FOUND")
        return Refusal(409, "SANDBOX_EXPIRED") if self.status == "TERMINATED" else None


@dataclass(slots=True)
class Model:
    """One account."""

    ceiling: int
    boxes: dict[str, Box] = field(default_factory=dict)
    """By idempotency key."""
    held: bool = False
    """Whether no instance is made for the moment."""
    now: int = 0

    @property
    def holding(self) -> int:
        """How many sandboxes hold capacity."""
        return sum(box.status not in RELEASED for box in self.boxes.values())

    @property
    def full(self) -> bool:
        """Whether there is no capacity left."""
        return self.holding >= self.ceiling

    def provision(self, box: Box, waiting: str, *, fails: bool) -> None:
        """Compute is asked for: it comes, it is waited for, or it cannot be made."""
        box.allocations += 1
        if self.held:
            box.status = waiting
        elif fails:
            box.status = "FAILED"
        else:
            box.become_ready(self.now)

    def release(self) -> None:
        """What was waited for comes."""
        self.held = False
        for box in self.boxes.values():
            if box.status in ON_THE_WAY:
                box.become_ready(self.now)

    def pass_seconds(self, seconds: int) -> None:
        """Time goes by, and ends what is due."""
        self.now += seconds
        for box in self.boxes.values():
            reason = box.due(self.now)
            if reason is not None:
                box.terminate(reason)
