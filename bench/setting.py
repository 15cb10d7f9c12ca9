"""Where a run of the bench happens: its folder, the image, the programs it compiles, and the servers it starts.

Made by `bench.__main__`, handed to every measure. All that it starts ends with it.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import leaks
from tests.server import AtollServer

from atoll.drivers.gvisor.images import Image

_COMPILE_SECONDS = 60.0
_CSRC = Path(__file__).with_name("csrc")
_SETTLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    work: Path
    """An empty folder that is deleted at the end."""
    image: Image
    """The default image, unpacked: what peers and Atoll run alike."""
    quick: bool
    hide_proc_sys_net: bool
    """Whether this runsc needs an empty /proc/sys/net on this kernel."""
    say: Callable[[str], None]

    def rounds(self, full: int, quick: int) -> int:
        """How often to measure."""
        return quick if self.quick else full

    @contextmanager
    def server(self, name: str, **settings: str) -> Iterator[AtollServer]:
        """A server with a data directory of its own; nothing of it is left afterwards."""
        environment = {f"ATOLL_{key.upper()}": value for key, value in settings.items()}
        server = AtollServer(self.work / name, environment=environment)
        server.access()
        with server:
            yield server


def compile_program(name: str, work: Path) -> Path:
    """Compile one static program of `csrc`."""
    program = work / name
    argv = ["gcc", "-O2", "-static", "-o", str(program), str(_CSRC / f"{name}.c")]
    subprocess.run(argv, check=True, timeout=_COMPILE_SECONDS)
    return program


def wait_until_gone(data_dir: Path) -> None:
    """Wait until no instance is left, so that its removal does not disturb the next round."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while leaks.instances(data_dir) and time.monotonic() < deadline:
        time.sleep(0.01)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that the call took."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def time_to_first_byte(argv: list[str], *, seconds: float = 30.0) -> float:
    """Milliseconds from the start of a program that runs `first_byte` to that byte; the program is ended afterwards."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        byte = process.stdout.read(1)
        took = (time.perf_counter() - began) * 1000
        if byte != b"x":
            _, errors = process.communicate(timeout=seconds)
            raise RuntimeError(f"{argv[0]} did not run the program: {errors.decode(errors='replace')[-500:]}")
    finally:
        end(process, seconds=seconds)
    return took


def end(process: subprocess.Popen[bytes], *, seconds: float) -> None:
    """Close its standard input, which ends `first_byte`, and kill it when that does not."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(seconds)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
