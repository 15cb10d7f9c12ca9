"""SIGKILL of the server at random moments of what takes long: a snapshot, a restore, a refill, a transfer, streams.

The moments come from a seed that is printed, and `ATOLL_KILL_SEED` repeats them. What must hold afterwards does not
depend on them: nothing lost, nothing twice, nothing stuck, nothing left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests import leaks
from tests.client import ApiError, Client, ServerGone
from tests.gateway_client import Received, stream
from tests.server import AtollServer, wait_until
from websockets.exceptions import WebSocketException

pytestmark = [pytest.mark.gvisor, pytest.mark.timeout(600)]

WORKSPACE_BYTES = 100_000_000
ROUNDS = 3
RECOVERY_SECONDS = 60.0
LINES = 1_200
PERL = f'$| = 1; for (1..{LINES}) {{ print "line $_\\n"; select undef, undef, undef, 0.01 }} exit 7'
"""Says a line every hundredth of a second, without a process for each."""
TICKER = f"perl -e '{PERL}'"


@pytest.fixture
def moments() -> random.Random:
    """Where the moments come from."""
    seed = int(os.environ.get("ATOLL_KILL_SEED", random.randrange(10**6)))
    print(f"ATOLL_KILL_SEED={seed}")
    return random.Random(seed)


def rows(server: AtollServer, query: str) -> list[tuple[Any, ...]]:
    """Look into the database of a server."""
    with contextlib.closing(sqlite3.connect(f"file:{server.data_dir / 'atoll.db'}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def in_background(call: Callable[[], object]) -> threading.Thread:
    """Make a call that the kill cuts off."""

    def run() -> None:
        with contextlib.suppress(ServerGone, ApiError, httpx.HTTPError, TimeoutError):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def kill_and_start(server: AtollServer, after: float, call: threading.Thread) -> Client:
    """Kill the server so many seconds from now; a client of the next one."""
    print(f"killed after {after:.3f} s")
    time.sleep(after)  # the moment is the subject
    server.kill()
    call.join(30)
    assert not call.is_alive()
    server.start()
    return server.client()


def full_workspace(client: Client) -> tuple[str, str]:
    """A sandbox with a workspace of 100 MB that no compression makes smaller, and the sum of it."""
    template_id = client.make_template("keeps", persistenceMode="SNAPSHOT", zClouds=2)
    sandbox_id = client.ready("keeps", template_id=template_id)
    script = f"head -c {WORKSPACE_BYTES} /dev/urandom > big; mkdir small; seq 300 | split -l 1 - small/"
    client.execute(sandbox_id, ["sh", "-c", script])
    return sandbox_id, sums(client, sandbox_id)


def sums(client: Client, sandbox_id: str) -> str:
    """What the workspace holds."""
    result = client.execute(sandbox_id, ["sh", "-c", "find . -type f | sort | xargs sha256sum | sha256sum"])
    assert result.exit_code == 0, result
    return result.stdout.decode()


def stored(server: AtollServer) -> list[str]:
    """Everything that lies where snapshots are kept, by name."""
    return sorted(path.name for path in (server.data_dir / "volumes").glob("*/snapshots/*"))


def assert_only_what_is_recorded(server: AtollServer) -> None:
    """Of snapshots: each archive is on record, each on record is there, and nothing half written lies beside them."""
    assert stored(server) == sorted(f"{row[0]}.tar.zst" for row in rows(server, "SELECT id FROM snapshots"))


@pytest.mark.spec("SA-074", "SA-168", "SA-364", "SA-367", "SA-403")
def test_kills_during_snapshot_and_restore_lose_nothing_and_leave_nothing(
    server: AtollServer, moments: random.Random
) -> None:
    client = server.client()
    before = leaks.snapshot(server.data_dir)
    sandbox_id, expected = full_workspace(client)
    subject = {"sandboxId": sandbox_id}
    began = time.monotonic()
    client.call("POST", "/sandbox/pause", subject)
    pause_seconds = time.monotonic() - began
    client.call("POST", "/sandbox/resume", subject)
    client.settled(sandbox_id)
    resume_seconds = time.monotonic() - began - pause_seconds
    for number in range(ROUNDS):
        pausing = in_background(partial(server.client().call, "POST", "/sandbox/pause", subject))
        client = kill_and_start(server, moments.uniform(0, pause_seconds), pausing)
        status = client.until(sandbox_id, "SUSPENDED", "READY", seconds=RECOVERY_SECONDS)["status"]
        if status == "READY":  # it had not begun
            assert client.call("POST", "/sandbox/pause", subject)["sandbox"]["status"] == "SUSPENDED"
        leaks.wait_until_nothing_left(server.data_dir, before)
        assert len(rows(server, "SELECT id FROM snapshots")) == number + 2, "one pause has left two snapshots, or none"
        assert_only_what_is_recorded(server)

        resuming = in_background(partial(server.client().call, "POST", "/sandbox/resume", subject))
        client = kill_and_start(server, moments.uniform(0, resume_seconds), resuming)
        client.until(sandbox_id, "SUSPENDED", "READY", seconds=RECOVERY_SECONDS)
        assert sums(client, sandbox_id) == expected
        assert "lastSnapshotError" not in client.get(sandbox_id)["persistence"]
        [[instance_id]] = rows(server, "SELECT instance_id FROM sandboxes")
        assert leaks.instances(server.data_dir) == [instance_id]
        workspaces = server.data_dir / "workspaces"
        wait_until(
            lambda workspaces=workspaces, instance_id=instance_id: (
                [it.name for it in workspaces.iterdir()] == [instance_id]
            ),
            seconds=20,
            what="one workspace is left",
        )
    client.terminate(sandbox_id)
    leaks.wait_until_nothing_left(server.data_dir, before)


@pytest.mark.spec("SA-403")
def test_kills_while_a_pool_is_refilled_give_no_instance_to_two_and_leave_none(
    idle_server: AtollServer, moments: random.Random
) -> None:
    server = idle_server
    server.set_environment(ATOLL_WARM_POOL_SIZE="2")
    server.start()
    client = server.client()
    made: list[str] = []

    def full() -> bool:
        states = [row[0] for row in rows(server, "SELECT state FROM warm_instances")]
        return states == ["WAITING", "WAITING"]

    for number in range(ROUNDS):
        wait_until(full, seconds=RECOVERY_SECONDS, what="the pool is full")
        # The refill begins 0.75 s after the claim.
        creating = in_background(partial(server.client().create, f"warm-{number}"))
        client = kill_and_start(server, moments.uniform(0, 1.2), creating)
        made.append(client.ready(f"warm-{number}"))
    wait_until(full, seconds=RECOVERY_SECONDS, what="the pool is full")
    taken = [row[0] for row in rows(server, "SELECT instance_id FROM sandboxes WHERE status = 'READY'")]
    waiting = [row[0] for row in rows(server, "SELECT id FROM warm_instances")]
    assert len(taken) == len(set(made)) == ROUNDS

    def only_those() -> bool:
        return leaks.instances(server.data_dir) == sorted(taken + waiting)

    wait_until(only_those, seconds=30, what="what nobody knows is gone")
    for number, sandbox_id in enumerate(made):
        assert client.execute(sandbox_id, ["sh", "-c", f"echo {number} >> mark; cat mark"]).stdout.split() == [
            str(number).encode()
        ]


class Gateway:
    """A session that outlives its server, on whatever address the server has by now."""

    def __init__(self, server: AtollServer, sandbox_id: str) -> None:
        scopes = ["exec", "pty", "file", "signal", "status"]
        session = server.client().call("POST", "/sandbox/session", {"sandboxId": sandbox_id, "scopes": scopes})
        self._server, self._path, self.token = server, urlsplit(session["endpoint"]).path, session["token"]

    @property
    def endpoint(self) -> str:
        """Where to call."""
        return self._server.url + self._path

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One call."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, self.endpoint + path, headers=headers, timeout=60, **options)


@pytest.mark.spec("SA-358", "SA-451")
def test_kills_during_an_upload_leave_the_old_file_or_the_new_one(server: AtollServer, moments: random.Random) -> None:
    client = server.client()
    template_id = client.make_template("large", zClouds=2)
    sandbox_id = client.ready("upload", template_id=template_id)
    gateway = Gateway(server, sandbox_id)
    bodies = [random.Random(number).randbytes(WORKSPACE_BYTES // 2) for number in range(2)]
    sums_of = [hashlib.sha256(body).hexdigest() for body in bodies]
    began = time.monotonic()
    gateway.call("PUT", "/files?path=folder/file", content=bodies[0]).raise_for_status()
    seconds = time.monotonic() - began
    there = 0
    for _ in range(ROUNDS):
        answers: list[int] = []
        new = 1 - there
        uploading = in_background(
            lambda new=new, answers=answers: answers.append(
                gateway.call("PUT", "/files?path=folder/file", content=bodies[new]).status_code
            )
        )
        client = kill_and_start(server, moments.uniform(0, seconds), uploading)
        alone = (
            "for i in $(seq 300); do [ $(ls -A folder | wc -l) = 1 ] && exit 0; sleep 0.05; done; ls -A folder; exit 1"
        )
        assert client.execute(sandbox_id, ["sh", "-c", alone]).exit_code == 0, "half a file is left"
        found = client.execute(sandbox_id, ["sha256sum", "folder/file"]).stdout.decode().split()[0]
        assert found in sums_of, "a file was torn"
        assert not answers or found == sums_of[new], "an upload that was confirmed is lost"
        there = sums_of.index(found)
        gateway.call("PUT", "/files?path=folder/file", content=bodies[new]).raise_for_status()
        assert client.execute(sandbox_id, ["sha256sum", "folder/file"]).stdout.decode().split()[0] == sums_of[new]
        there = new
    assert client.until(sandbox_id, "READY")["status"] == "READY"


async def _follow(gateway: Gateway, execution_id: str, received: Received) -> None:
    """Read to the end over any number of connections, as a client that keeps its place does."""
    deadline = time.monotonic() + 2 * RECOVERY_SECONDS
    while received.exit is None:
        assert time.monotonic() < deadline
        try:
            async with stream(gateway.endpoint, gateway.token, execution_id, received) as connected:
                while received.exit is None:
                    await connected.step()
        except (WebSocketException, OSError, TimeoutError, EOFError):
            await asyncio.sleep(0.05)


@pytest.mark.spec("SA-357", "SA-447", "SA-448")
async def test_kills_while_streams_and_a_terminal_are_open_lose_no_byte(
    server: AtollServer, moments: random.Random
) -> None:
    sandbox_id = server.client().ready("streams")
    gateway = Gateway(server, sandbox_id)
    bodies: list[dict[str, Any]] = [
        {"command": ["sh", "-c", TICKER]},
        {"command": ["sh", "-c", f"({TICKER}) >&2"]},
        {"command": ["sh", "-c", f"stty -opost; {TICKER}"], "pty": {"rows": 24, "cols": 80}},
    ]
    answers = [gateway.call("POST", "/processes", json=body).json() for body in bodies]
    ids = [answer["execution"]["executionId"] for answer in answers]
    all_received = [Received() for _ in ids]
    following = [asyncio.create_task(_follow(gateway, *it)) for it in zip(ids, all_received, strict=True)]
    for _ in range(ROUNDS):
        after = moments.uniform(0, 1.5)
        print(f"killed after {after:.3f} s")
        await asyncio.sleep(after)  # the moment is the subject
        await asyncio.to_thread(server.restart)
    await asyncio.gather(*following)
    expected = "".join(f"line {number}\n" for number in range(1, LINES + 1))
    for received in all_received:
        assert (received.stdout + received.stderr).decode() == expected
        assert received.sequence == list(range(len(received.sequence)))
        assert received.exit == {"exitCode": 7}
    await asyncio.to_thread(server.client().until, sandbox_id, "READY")
