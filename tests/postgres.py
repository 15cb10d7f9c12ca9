"""A PostgreSQL server for one test run: Debian's programs, a folder of its own, gone with the run however that ends."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_START_SECONDS = 30
_USER = "atoll"


class PostgresServer:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.template: str | None = None

    def url(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh database, by its URL; dropped afterwards whoever still uses it."""
        name = f"test_{uuid.uuid4().hex}"
        self.run(f'CREATE DATABASE "{name}"')
        try:
            yield self.url(name)
        finally:
            self.run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def run(self, statement: str) -> None:
        """Run a statement outside any transaction."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Start a server on loopback, and end it with its files."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="atoll-pg-"))
    server: subprocess.Popen[bytes] | None = None
    try:
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
        data = folder / "data"
        initdb = [str(programs / "initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(_unprivileged(initdb), check=True, capture_output=True, cwd=folder, timeout=_START_SECONDS)
        port = _free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "200",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                _unprivileged([str(programs / "postgres"), "-D", str(data), *words]), cwd=folder, stdout=log, stderr=log
            )
        running = PostgresServer(port)
        _wait_until_it_answers(running, server, folder / "log")
        yield running
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # at once, nothing of it is needed
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if not found:
        raise RuntimeError("PostgreSQL is missing: apt-get install postgresql")
    return found[-1]


def _unprivileged(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root. It dies with the test run, also with one that is killed."""
    if os.getuid() != 0:
        return ["setpriv", "--pdeathsig", "QUIT", *command]
    identity = ["--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    return ["setpriv", *identity, "--pdeathsig", "QUIT", *command]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_it_answers(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.run("SELECT 1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
