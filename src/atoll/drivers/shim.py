"""The host side of the agent: starts a shim, tells whether it lives, reads how its sandbox ended, and has it kill the
sandbox.

Called by the gVisor and the fake driver. A shim is known by its folder: `--dir FOLDER` on its command line. Its
number alone proves nothing, as numbers are given out again. It speaks no protocol but the KILL frame
(docs/agent-protocol.md); the rest is `atoll.agent`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from atoll.drivers import process

_START_SECONDS = 10.0
_KILL = struct.pack(">IBI", 5, 0x05, 1)
_ENDING = re.compile(r"code=(-?\d+) signal=(\d+) oom=([01]) killed=([01])\s*\Z")
_LOG_BYTES = 16_384
_LOOK_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sandbox ended, as its shim saw it."""

    code: int
    signal: int
    """0 unless a signal ended runsc."""
    oom: bool
    """The machine's memory limit was reached."""
    killed: bool
    """The control plane asked for it."""


async def start(argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
    """Start a shim and return when its socket listens. Raises `process.ProgramError`."""
    await process.run(argv, timeout=_START_SECONDS, env=environment)


def alive(folder: Path) -> int | None:
    """The process of the shim of this folder, None when it does not live."""
    try:
        pid = int((folder / "shim.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    of_this_folder = any(pair == (b"--dir", os.fsencode(folder)) for pair in pairwise(words))
    return pid if of_this_folder and state not in "ZX" else None


def ending(folder: Path) -> Ending | None:
    """How the sandbox ended; None while it lives, or when the shim was killed before it could write."""
    try:
        text = (folder / "exit").read_text()
    except OSError:
        return None
    match = _ENDING.match(text)
    if match is None:
        return Ending(code=-1, signal=0, oom=False, killed=False)
    return Ending(int(match[1]), int(match[2]), match[3] == "1", match[4] == "1")


def log_tail(folder: Path) -> str:
    """The end of what the runtime wrote on standard error; for classification and the operator, never for a client."""
    try:
        with (folder / "runsc.log").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


async def kill(folder: Path, *, seconds: float) -> bool:
    """Ask the shim to kill its sandbox; True when it says that no process is left."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _open(folder)
            try:
                writer.write(_KILL)
                await writer.drain()
                # Whatever the agent still says comes first; the shim ends, and with it the connection, after its
                # answer.
                while await reader.read(65_536):
                    pass
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return True


async def _open(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    # The path of a socket ends at 107 bytes; through the descriptor of its folder it is always short.
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/agent.sock")
    finally:
        os.close(descriptor)


async def kill_process(folder: Path, *, seconds: float) -> None:
    """Kill the shim itself, when it does not do as it is told."""
    pid = alive(folder)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await gone(folder, seconds=seconds)


async def gone(folder: Path, *, seconds: float) -> bool:
    """Wait until the shim of this folder has ended; False when it lives on after `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            # There is nothing to wait on: the shim is no child of ours.
            while alive(folder) is not None:  # noqa: ASYNC110 - see above
                await asyncio.sleep(_LOOK_SECONDS)
            return True
    return False
