"""Turns what the machine and runsc say into a failure with a stable code and a sentence for a person. Pure.

The sentence never holds runsc's words or a path of the machine (SA-385); those go to the log. Called by the driver.
"""

from __future__ import annotations

import errno
import re

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.process import ProgramError, ProgramTimeout
from atoll.drivers.shim import Ending

NO_DISK = "the machine has no disk space left for another sandbox"
NO_MEMORY = "the machine has no memory left for another sandbox"
EVICTED = "evicted: temporary disk limit"
"""SA-410."""
_DOCTOR = "`atoll doctor` says what is missing"
_EXHAUSTED = {
    errno.ENOSPC: NO_DISK,
    errno.EDQUOT: NO_DISK,
    errno.ENOMEM: NO_MEMORY,
    errno.EAGAIN: "the machine is at its limit",
}

_RUNSC_FAILED = re.compile(
    r"^(running|creating|starting|waiting on) (the )?(container|sandbox)"
    r"|FATAL ERROR|^panic:|exec format error|: exec: ",
    re.M,
)
_NO_DISK = re.compile(r"no space left on device|disk quota exceeded", re.I)
_NO_MEMORY = re.compile(r"cannot allocate memory|out of memory", re.I)
_NAMESPACE = re.compile(r"network namespace|netns|setting up network|creating interfaces|joining ns", re.I)


class NamespaceRejected(RuntimeFailure):
    """runsc ended because of the network namespace that it was given; another one may do."""

    def __init__(self) -> None:
        super().__init__("the runtime rejected the network namespace", code=ErrorCode.NAMESPACE_DENIED)


def boot_failure(ending: Ending | None, log: str, *, answered: bool = False) -> RuntimeFailure:
    """Why a sandbox ended before it was ready. `answered`: its agent had spoken, so runsc had done its part."""
    if not answered and (failure := _from_log(log)) is not None:
        return failure
    if ending is None or (ending.signal and not ending.killed):
        return RuntimeFailure("the sandbox was killed from outside while it started", code=ErrorCode.SANDBOX_NOT_FOUND)
    if ending.oom:
        return RuntimeFailure("the sandbox ran out of memory while it started", code=ErrorCode.INVALID_REQUEST)
    if ending.killed:
        return RuntimeFailure("the sandbox was terminated while it started", code=ErrorCode.SANDBOX_NOT_FOUND)
    return RuntimeFailure(
        f"the entrypoint exited with {ending.code} before the sandbox was ready", code=ErrorCode.INVALID_REQUEST
    )


def _from_log(log: str) -> RuntimeFailure | None:
    if not _RUNSC_FAILED.search(log):
        return None
    if _NO_DISK.search(log):
        return RuntimeFailure(NO_DISK, code=ErrorCode.SANDBOX_NOT_READY)
    if _NO_MEMORY.search(log):
        return RuntimeFailure(NO_MEMORY, code=ErrorCode.SANDBOX_NOT_READY)
    if _NAMESPACE.search(log):
        return NamespaceRejected()
    return RuntimeFailure(f"the sandbox runtime could not start the sandbox; {_DOCTOR}", code=ErrorCode.UNKNOWN)


def boot_timeout(seconds: float) -> RuntimeFailure:
    """The agent did not answer, or the entrypoint did not settle, in time."""
    return RuntimeFailure(f"the sandbox did not become ready within {seconds:g} s", code=ErrorCode.AGENT_UNREACHABLE)


def program_failure(error: ProgramError) -> RuntimeFailure:
    """A program of the machine (the shim, ip, nft) that could not do its work."""
    text = str(error)
    if _NO_DISK.search(text):
        return RuntimeFailure(NO_DISK, code=ErrorCode.SANDBOX_NOT_READY)
    if isinstance(error, ProgramTimeout):
        return RuntimeFailure("the machine is too slow to start a sandbox for now", code=ErrorCode.SANDBOX_NOT_READY)
    return RuntimeFailure(f"the machine could not start the sandbox; {_DOCTOR}", code=ErrorCode.UNKNOWN)


def system_failure(error: OSError) -> RuntimeFailure:
    """A file or folder of the machine that could not be made."""
    if error.errno in _EXHAUSTED:
        return RuntimeFailure(_EXHAUSTED[error.errno], code=ErrorCode.SANDBOX_NOT_READY)
    return RuntimeFailure(f"the machine could not prepare the sandbox; {_DOCTOR}", code=ErrorCode.UNKNOWN)


def ended_detail(ending: Ending | None, *, was_ready: bool) -> str:
    """Why a sandbox is over, for a status reason."""
    if ending is None:
        return "killed from outside" if was_ready else "its start was interrupted"
    if ending.killed:
        return "killed"
    if ending.oom:
        return "out of memory"
    if ending.signal:
        return "killed from outside"
    return f"entrypoint exited with {ending.code}"
