"""The bodies, queries and answers of the gateway's processes and status."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import Answer
from atoll.domain.sandbox import SandboxStatus


class StatusAnswer(Answer):
    """How a sandbox is doing; what the agent counts is absent while the sandbox does not run."""

    success: Success
    status: SandboxStatus
    uptime_seconds: Annotated[float | None, Field(description="Since the sandbox booted, or was resumed.")] = None
    memory_bytes: Annotated[int | None, Field(description="In use by the processes of the sandbox.")] = None
    processes: Annotated[int | None, Field(description="How many there are, of everything in the sandbox.")] = None
    running_commands: Annotated[int | None, Field(description="Commands and terminals that run.")] = None
