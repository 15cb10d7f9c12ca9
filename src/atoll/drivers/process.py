"""Runs one program of the machine to its end: time limit, bounded output, nothing left behind.

Drivers and the image store call it for runsc, ip, nft, skopeo, umoci and the like. There is no shell. The program gets
a session of its own; on the time limit and on cancellation the whole group is killed. It must not be used for programs
that outlive the call, and callers must never put a secret into `argv`, which every process of the machine can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Kept of each stream; what a program writes beyond it is read and dropped."""
_REAP_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
_MAX_LINE_BYTES = 4_096
_MESSAGE_BYTES = 2_000
_NOT_EXECUTABLE = frozenset({errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC})


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended. `returncode` is negative for a signal; each stream holds its first 8 MiB."""

    returncode: int
    stdout: bytes
    stderr: bytes


class ProgramError(Exception):
    """A program did not do its work. The text is for logs of the operator, never for a client."""

    def __init__(self, program: str, text: str) -> None:
        super().__init__(f"{program}: {text}")
        self.program = program


class ProgramMissing(ProgramError):  # noqa: N818 - reads as what happened
    """There is no such program, or it may not be executed."""


class ProgramTimeout(ProgramError):  # noqa: N818 - reads as what happened
    """It was killed, with its process group, because its time was over."""

    def __init__(self, program: str, seconds: float) -> None:
        super().__init__(program, f"killed after {seconds:g} s")
        self.seconds = seconds


class ProgramFailed(ProgramError):  # noqa: N818 - reads as what happened
    """It ended with another status than 0. `completed` has all of it, for a classifier to read."""

    def __init__(self, program: str, completed: Completed) -> None:
        tail = completed.stderr[-_MESSAGE_BYTES:].decode("utf-8", "replace").strip()
        super().__init__(program, f"status {completed.returncode}: {tail}")
        self.completed = completed


def tied(argv: Sequence[str]) -> list[str]:
    """The command line of `argv` such that Linux kills the program when this process dies, also by SIGKILL.

    For work that a successor of this process would start again in the same place. Raises `ProgramMissing` at once,
    since the wrapper would hide it.
    """
    found = shutil.which(argv[0])
    if found is None:
        raise ProgramMissing(Path(argv[0]).name, "cannot be executed (not found)")
    return ["setpriv", "--pdeathsig", "KILL", "--", found, *argv[1:]]


async def run(
    argv: Sequence[str],
    *,
    timeout: float,
    input: bytes | None = None,  # noqa: A002 - the name subprocess uses
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    on_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run `argv` for at most `timeout` seconds and return its status and output.

    `env` replaces the environment (None inherits it); standard input is `/dev/null` without `input`. `on_line` is told
    each line of standard error as it comes, for progress. Raises `ProgramMissing`, `ProgramTimeout`, and with `check`
    `ProgramFailed` for a status other than 0. A child that the program leaves holding its output does not hold up the
    call: one second after the program's end it is killed too, unless it has made a session of its own.
    """
    program = Path(argv[0]).name
    loop = asyncio.get_running_loop()
    try:
        transport, child = await loop.subprocess_exec(
            lambda: _Child(on_line),
            *argv,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        if error.errno not in _NOT_EXECUTABLE:
            raise
        raise ProgramMissing(program, f"cannot be executed ({error.strerror})") from error
    try:
        if input is not None:
            # A cast, not a check: uvloop's transports are of classes of their own.
            stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
            stdin.write(input)
            stdin.close()
        async with asyncio.timeout(timeout):
            await child.exited.wait()
    except TimeoutError:
        raise ProgramTimeout(program, timeout) from None
    finally:
        # Also for cancellation: a program that its caller no longer waits for must not go on.
        await _end(transport, child)
    returncode = transport.get_returncode()
    assert returncode is not None  # noqa: S101 - it has exited
    completed = Completed(returncode, bytes(child.output[1]), bytes(child.output[2]))
    if check and returncode != 0:
        raise ProgramFailed(program, completed)
    return completed


async def _end(transport: asyncio.SubprocessTransport, child: _Child) -> None:
    """Leave no member of the group alive, read what is left in the pipes, and close them."""
    if child.exited.is_set():
        await _within(child.drained, _DRAIN_SECONDS)
    if not (child.exited.is_set() and child.drained.is_set()):
        # The group's number cannot have been given to another: its leader is unreaped, or a member holds a pipe.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        await _within(child.exited, _REAP_SECONDS)
    transport.close()


async def _within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class _Child(asyncio.SubprocessProtocol):
    """Collects both streams up to the bound and knows the two ends: of the process, and of its pipes.

    asyncio's own `Process.wait` may wait for the pipes too, which a grandchild can hold open for ever.
    """

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self.output: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self._open = {1, 2}
        self._on_line = on_line
        self._line = bytearray()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)  # noqa: S101 - the pipes are binary
        kept = self.output[fd]
        kept += data[: MAX_OUTPUT_BYTES - len(kept)]
        if fd == 2 and self._on_line is not None:
            *lines, rest = (bytes(self._line) + data).split(b"\n")
            self._line = bytearray(rest[-_MAX_LINE_BYTES:])
            for line in lines:
                self._on_line(line.decode("utf-8", "replace"))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
