"""The real program, agent and shim, in a process namespace of its own on this machine; no gVisor.

ATOLL_AGENT_BINARY chooses another build: `make -C src/atoll/agent/csrc asan` makes the one with sanitizers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.agent.file_work import root as root

from atoll.agent.binary import AgentBinaryMissingError, agent_binary
from atoll.agent.connection import AgentClient

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "ATOLL_SECRET": "1", "SANDBOX_AGENT_TOKEN": "2", "KEPT": "3"}


@pytest.fixture(scope="session")
def binary() -> Path:
    try:
        return agent_binary()
    except AgentBinaryMissingError:
        subprocess.run(["make", "-s", "-C", "src/atoll/agent/csrc", "agent"], check=True)
        return agent_binary()


class Sandbox:
    """One shim and what it keeps."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary = binary
        self.folder = folder
        self.socket = folder / "agent.sock"

    def start(
        self,
        *,
        entrypoint: tuple[str, ...] = ("sleep", "infinity"),
        nproc: int = 4096,
        shim_options: tuple[str, ...] = (),
        command: tuple[str, ...] | None = None,
        workdir: str = "/tmp",
    ) -> Sandbox:
        inside = command or (
            *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", str(self.binary), "agent"),
            *("--uid", "1001", "--gid", "1001", "--nproc", str(nproc), "--workdir", workdir, "--", *entrypoint),
        )
        argv = [str(self.binary), "shim", "--dir", str(self.folder), *shim_options, "--", *inside]
        sanitizers = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        subprocess.run(argv, check=True, env=ENVIRONMENT | sanitizers, timeout=20)
        return self

    @property
    def shim_pid(self) -> int:
        return int((self.folder / "shim.pid").read_text())

    def descendants(self) -> list[int]:
        """Processes below the shim, as the host numbers them."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                parents[int(stat.parent.name)] = int(fields[1])
        found = [self.shim_pid]
        for pid in found:
            found.extend(child for child, parent in parents.items() if parent == pid)
        return found[1:]

    def agent_pid(self) -> int:
        """The agent's own process, as the host numbers it."""
        for pid in self.descendants():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[:2] == [str(self.binary).encode(), b"agent"]:
                return pid
        raise AssertionError("there is no agent")

    def agent_memory(self) -> int:
        """Its resident bytes."""
        return int(Path(f"/proc/{self.agent_pid()}/statm").read_text().split()[1]) * 4096

    def agent_files(self) -> int:
        """Its open descriptors."""
        return len(list(Path(f"/proc/{self.agent_pid()}/fd").iterdir()))

    @property
    def sanitized(self) -> bool:
        """Whether memory cannot be measured: the sanitizers keep what was freed."""
        return "asan" in self.binary.name

    def raw(self) -> RawClient:
        return RawClient(self.socket)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AgentClient]:
        client = await AgentClient.connect(self.socket, timeout=10)
        try:
            yield client
        finally:
            await client.close()

    def ending(self, *, limit: float = 10) -> dict[str, int]:
        until_true(lambda: (self.folder / "exit").exists(), limit=limit)
        return {name: int(value) for name, value in (w.split("=") for w in (self.folder / "exit").read_text().split())}

    def log(self) -> str:
        try:
            return (self.folder / "runsc.log").read_text()
        except OSError:
            return ""

    def close(self) -> None:
        """Ends all of it and fails on anything the sanitizers said."""
        pids: list[int] = []
        with contextlib.suppress(OSError, ValueError):
            if self.binary.name in Path(f"/proc/{self.shim_pid}/cmdline").read_bytes().decode():
                pids = self.descendants()
                os.kill(self.shim_pid, signal.SIGKILL)
        with contextlib.suppress(AssertionError):
            until_true(lambda: not any(map(alive, pids)), limit=5)
        left = [pid for pid in pids if alive(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        log = self.log()
        assert "Sanitizer" not in log and "runtime error" not in log, log
        assert not left, "the end of the shim must be the end of the sandbox"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until_true(condition: Callable[[], bool], *, limit: float = 10) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class RawClient:
    """A client that says whatever it likes."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self._buffer = b""

    def send(self, kind: int, request_id: int, payload: bytes = b"") -> None:
        self.socket.sendall(struct.pack(">IBI", len(payload) + 5, kind, request_id) + payload)

    def frame(self) -> tuple[int, int, bytes]:
        head = self._exactly(9)
        length, kind, request_id = struct.unpack(">IBI", head)
        return kind, request_id, self._exactly(length - 5)

    def answer(self, request_id: int) -> tuple[int, bytes]:
        while True:
            kind, answered, payload = self.frame()
            if answered == request_id:
                return kind, payload

    def hello(self) -> None:
        kind, request_id, _ = self.frame()
        assert (kind, request_id) == (0x81, 0), "every connection begins with HELLO"

    def closed(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the connection has ended")
            self._buffer += data
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data


@pytest.fixture
def sandbox(binary: Path) -> Iterator[Sandbox]:
    """Not started yet."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-agent-"))
    made = Sandbox(binary, folder)
    try:
        yield made
    finally:
        try:
            made.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def agent(sandbox: Sandbox) -> AsyncIterator[AgentClient]:
    """A client of a started sandbox."""
    sandbox.start()
    async with sandbox.client() as client:
        yield client
