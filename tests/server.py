"""A real `atoll serve` as a child process: started, killed, stopped and started again on one data directory.

For the end-to-end and fault tests and the bench. It takes the images from the tests' cache, so no start builds one
twice. `close` leaves nothing of the data directory on the machine, whatever state a test left it in.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.client import Access, Client
from tests.images import cache_directory
from tests.leaks import sweep

ROOT = Path(__file__).parents[1]
START_SECONDS = 60.0
STOP_SECONDS = 20.0
BOOTSTRAP_SECONDS = 1_800.0
"""The first one on a machine builds the default image."""


class ServerFailed(Exception):  # noqa: N818 - says what happened
    """`atoll serve` ended before it served. Has what it printed."""


def atoll_argv(*arguments: str) -> list[str]:
    """The command line of an `atoll` command of this checkout."""
    return [sys.executable, "-m", "atoll.cli.main", *arguments]


def atoll_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without its own Atoll settings, and with the tests' images."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ATOLL_")}
    images = cache_directory() / "images"
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "ATOLL_IMAGE_DIR": str(images), **(extra or {})}


def run_atoll(*arguments: str, environment: Mapping[str, str] | None = None, seconds: float = 60.0) -> dict[str, Any]:
    """Run an `atoll` command with `--json` and return what it printed."""
    done = subprocess.run(
        atoll_argv(*arguments, "--json"),
        env=atoll_environment(environment),
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"atoll {arguments[0]}: {done.stdout.decode()} {done.stderr.decode()[-2000:]}")
    value: dict[str, Any] = json.loads(done.stdout)
    return value


class AtollServer:
    """One control plane and its data directory."""

    def __init__(
        self, data_dir: Path, *, environment: Mapping[str, str] | None = None, log_level: str = "warning"
    ) -> None:
        """`environment`: settings of this server, `ATOLL_…`. Pools are off unless it says otherwise."""
        self.data_dir = data_dir
        self.url = ""
        self.log_file = data_dir.with_name(f"{data_dir.name}.log")
        self._environment = {"ATOLL_WARM_POOL_SIZE": "0", **(environment or {})}
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._access: Access | None = None
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        """Start it, for a block that closes it."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def set_environment(self, **settings: str) -> None:
        """Change settings (`ATOLL_…`) for the next start."""
        self._environment |= settings

    @property
    def pid(self) -> int:
        """The process of the server."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, listen: str = "127.0.0.1:0", seconds: float = START_SECONDS) -> None:
        """Start it and return once it serves. Raises `ServerFailed`."""
        assert not self.running
        argv = atoll_argv("serve", "--data-dir", str(self.data_dir), "--listen", listen)
        argv += ["--log-level", self._log_level, "--json"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=atoll_environment(self._environment),
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = _first_line(self._process.stdout, seconds)
        try:
            self.url = str(json.loads(line)["url"])
        except (ValueError, KeyError):
            self.kill()
            log_tail = self.log_file.read_text(errors="replace")[-3_000:]
            raise ServerFailed(f"atoll serve printed {line!r} and logged:\n{log_tail}") from None

    def kill(self) -> None:
        """SIGKILL: as if the machine took it away."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it if it lives, and start it again."""
        self.kill()
        self.start()

    def access(self) -> Access:
        """The token and ids of the default account; made once."""
        if self._access is None:
            value = run_atoll(
                "bootstrap",
                "--data-dir",
                str(self.data_dir),
                environment=self._environment,
                seconds=BOOTSTRAP_SECONDS,
            )
            self._access = Access(
                value["token"], value["accountId"], value["appId"], value["templateId"], value["region"]
            )
        return self._access

    def client(self) -> Client:
        """A new client of the server as it runs now; closed with the server."""
        client = Client(self.url, self.access())
        self._clients.append(client)
        return client

    def close(self) -> None:
        """End the server and everything that it made on the machine."""
        for client in self._clients:
            client.close()
        self.kill()
        sweep(self.data_dir)

    def _end(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
            raise AssertionError(f"the server did not end {STOP_SECONDS:g} s after signal {number}") from None
        if process.stdout is not None:
            process.stdout.close()
        return status


def _first_line(stream: IO[bytes], seconds: float) -> str:
    """What the process prints first; less when it ends or takes too long."""
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(stream.fileno(), 4096) if readable else b""
        if not chunk:
            break
        line += chunk
    return line.decode("utf-8", "replace")


def wait_until(condition: Any, *, seconds: float, what: str, every: float = 0.05) -> Any:
    """Poll until the condition holds and return its value. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(every)
    return value


def run_program(argv: Sequence[str], *, seconds: float = 60.0, stdin: bytes | None = None) -> str:
    """Run a program of the machine to its end and return its output."""
    done = subprocess.run(argv, capture_output=True, input=stdin, timeout=seconds, check=True)
    return done.stdout.decode("utf-8", "replace")
