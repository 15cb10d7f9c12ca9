"""The bodies, queries and answers of the gateway's processes and status."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import MAX_SEQUENCE, Answer, Body, Moment, Query, QueryBoolean, QueryInteger, WaitSeconds
from atoll.api.sandbox.requests import CommandFields
from atoll.domain.command import IDEMPOTENCY_KEY_MAX_LENGTH, START_MAX_TIMEOUT_SECONDS, EndReason
from atoll.domain.execution import ExecutionType
from atoll.domain.sandbox import SandboxStatus

Lines = Annotated[int, Field(ge=1, le=4_096)]


class ResizeBody(Body):
    """The size of a terminal."""

    model_config = ConfigDict(json_schema_extra={"example": {"rows": 40, "cols": 120}})

    rows: Lines
    cols: Lines


class SignalBody(Body):
    """A signal to send."""

    model_config = ConfigDict(json_schema_extra={"example": {"signal": "SIGINT"}})

    signal: Annotated[str, Field(min_length=1, max_length=20, description="By its name; it reaches children too.")] = (
        "SIGTERM"
    )


class ProcessBody(CommandFields):
    """A process to start."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"command": ["bash"], "pty": {"rows": 40, "cols": 120}, "idempotencyKey": "terminal-1"}
        }
    )

    stdin: Annotated[
        bool | None, Field(description="Keep standard input open for what is sent; a terminal always does.")
    ] = None
    pty: Annotated[
        ResizeBody | None, Field(description="Run it on a terminal of this size; needs the scope pty too.")
    ] = None
    timeout_seconds: Annotated[
        int | None,
        Field(
            ge=1, le=START_MAX_TIMEOUT_SECONDS, description="Deadline; without it the sandbox's lifetime is the bound."
        ),
    ] = None
    idempotency_key: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=IDEMPOTENCY_KEY_MAX_LENGTH,
            pattern=r"^[^\x00]*$",
            description="Starting again with the same key answers with the same execution.",
        ),
    ] = None


class ProcessQuery(Query):
    """From where to read a process, and how long to wait for output."""

    from_seq: Annotated[
        QueryInteger,
        Field(alias="from", ge=0, le=MAX_SEQUENCE, description="The first event wanted; nextSeq of the last answer."),
    ] = 0
    wait_seconds: Annotated[WaitSeconds, Field(description="How long to wait for new output.")] = 0


class StreamQuery(Query):
    """From where to stream a process."""

    from_seq: Annotated[
        QueryInteger,
        Field(alias="from", ge=0, le=MAX_SEQUENCE, description="The first event wanted: one more than the last taken."),
    ] = 0


class StdinQuery(Query):
    """What follows the body."""

    eof: Annotated[QueryBoolean, Field(description="Whether the body is the last of the input.")] = False


class Process(Answer):
    """A process, without its output."""

    execution_id: str
    type: Annotated[ExecutionType, Field(description="PTY on a terminal, EXEC with pipes.")]
    state: Literal["running", "exited"]
    process_id: int | None = None
    started_at: Moment | None = None
    exited_at: Moment | None = None
    exit_code: int | None = None
    reason: Annotated[EndReason | None, Field(description="Why it did not exit on its own.")] = None
    stdout_bytes: int
    stderr_bytes: int
    output_truncated: bool


class ProcessesAnswer(Answer):
    """What runs, then what has ended, each newest first."""

    success: Success
    processes: list[Process]


class StdinAnswer(Answer):
    """The input was written."""

    success: Success
    written_bytes: Annotated[int, Field(description="How much of the body is in the pipe: all of it.")]


class SignalAnswer(Answer):
    """The signal that was sent."""

    success: Success
    execution_id: str
    signal: str


class DoneAnswer(Answer):
    """It was done."""

    success: Success


class StatusAnswer(Answer):
    """How a sandbox is doing; what the agent counts is absent while the sandbox does not run."""

    success: Success
    status: SandboxStatus
    uptime_seconds: Annotated[float | None, Field(description="Since the sandbox booted, or was resumed.")] = None
    memory_bytes: Annotated[int | None, Field(description="In use by the processes of the sandbox.")] = None
    processes: Annotated[int | None, Field(description="How many there are, of everything in the sandbox.")] = None
    running_commands: Annotated[int | None, Field(description="Commands and terminals that run.")] = None
