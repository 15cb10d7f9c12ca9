"""SIGKILL of the server at every moment of a create and of a terminate: started again, it knows what to do.

The moments are swept by time, not named: a kill so many milliseconds after the request hits whatever step is under way,
on this machine and at its present speed. What must hold does not depend on which it was.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time

import pytest
from tests import leaks
from tests.client import ApiError, Client, Json, ServerGone
from tests.server import AtollServer, ServerFailed

pytestmark = [pytest.mark.gvisor, pytest.mark.timeout(900)]

CREATE_MOMENTS = (0, 3, 6, 10, 15, 20, 30, 40, 55, 70, 90, 110, 135, 165, 200)
TERMINATE_MOMENTS = (0, 2, 5, 10, 15, 25, 40, 60, 80, 100)
"""Milliseconds."""
KILLED_DURING = (ServerGone, ApiError, TimeoutError)
SETTLED = {"READY", "BUSY", "FAILED", "TERMINATED"}


def kill_after(server: AtollServer, milliseconds: int, request: object) -> None:
    """Send a request and kill the server so long after it left."""
    assert callable(request)

    def send() -> None:
        with contextlib.suppress(*KILLED_DURING):
            request()

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(milliseconds / 1000)  # the moment is the subject
    server.kill()
    sender.join(30)
    assert not sender.is_alive()


def assert_machine_equals_record(server: AtollServer) -> None:
    """Every instance on the machine belongs to a sandbox that is to have one, and the other way round."""
    with contextlib.closing(sqlite3.connect(f"file:{server.data_dir / 'atoll.db'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT instance_id FROM sandboxes WHERE status IN ('READY', 'BUSY')").fetchall()
    assert leaks.instances(server.data_dir) == sorted(row[0] for row in rows)


@pytest.mark.spec("SA-124", "SA-403")
def test_a_kill_at_any_moment_of_a_create_leaves_one_working_sandbox(server: AtollServer) -> None:
    server.client()
    before = leaks.snapshot(server.data_dir)
    for moment in CREATE_MOMENTS:
        key = f"create-{moment}"
        client = server.client()
        kill_after(server, moment, lambda client=client, key=key: client.create(key))
        server.start()
        client = server.client()
        _recover(client, before=_by_status(client))
        sandbox_id = client.ready(key)
        assert client.execute(sandbox_id, ["echo", key]).stdout == f"{key}\n".encode(), moment
        assert [sandbox["sandboxId"] for sandbox in client.list("READY", "BUSY", "FAILED")] == [sandbox_id], moment
        assert_machine_equals_record(server)
        client.terminate(sandbox_id)
        leaks.wait_until_nothing_left(server.data_dir, before)
    assert len(client.list()) == len(CREATE_MOMENTS)


def test_a_kill_at_any_moment_of_a_terminate_leaves_it_running_or_gone(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    for moment in TERMINATE_MOMENTS:
        client = server.client()
        sandbox_id = client.ready(f"terminate-{moment}")
        client.start(sandbox_id, ["sleep", "1000"])
        kill_after(server, moment, lambda client=client, sandbox_id=sandbox_id: client.terminate(sandbox_id))
        server.start()
        client = server.client()
        sandbox = client.until(sandbox_id, "BUSY", "TERMINATED")
        if sandbox["status"] == "BUSY":
            assert client.execute(sandbox_id, ["true"]).exit_code == 0, moment
            client.terminate(sandbox_id)
        assert client.get(sandbox_id)["terminationReason"] == "USER_REQUESTED"
        leaks.wait_until_nothing_left(server.data_dir, before)


def test_a_kill_at_any_moment_of_starting_and_executing_loses_no_command(server: AtollServer) -> None:
    client = server.client()
    sandbox_id = client.ready("commands")
    for moment in (0, 2, 4, 7, 11, 16, 25, 40):
        key = f"start-{moment}"
        argv = ["sh", "-c", f"echo {key} >> /tmp/started; echo out {key}; sleep 1; exit 9"]
        client = server.client()
        kill_after(
            server,
            moment,
            lambda client=client, key=key, argv=argv: client.start(sandbox_id, argv, idempotencyKey=key),
        )
        server.start()
        client = server.client()
        execution_id = client.start(sandbox_id, argv, idempotencyKey=key)
        output = client.follow(sandbox_id, execution_id)
        assert (bytes(output.stdout), output.exit_code) == (f"out {key}\n".encode(), 9)
        started = client.execute(sandbox_id, ["cat", "/tmp/started"]).stdout.decode().split()
        assert started.count(key) == 1, f"{key} ran {started.count(key)} times"
        client.until(sandbox_id, "READY")


def test_a_server_that_is_killed_again_and_again_while_it_starts_comes_up(server: AtollServer) -> None:
    client = server.client()
    sandbox_id = client.ready("again")
    execution_id = client.start(sandbox_id, ["sh", "-c", "sleep 8; echo done"])
    for seconds in (0.2, 0.8, 1.2, 1.6):
        server.kill()
        starting = threading.Thread(target=lambda: _start_and_expect_its_end(server))
        starting.start()
        time.sleep(seconds)  # the moment is the subject
        server.kill()
        starting.join(60)
    server.start()
    output = server.client().follow(sandbox_id, execution_id)
    assert bytes(output.stdout) == b"done\n"


def test_a_kill_while_pools_fill_leaves_no_instance_that_nobody_knows(idle_server: AtollServer) -> None:
    server = idle_server
    server.set_environment(ATOLL_WARM_POOL_SIZE="3")
    for seconds in (0.05, 0.15, 0.3, 0.6):
        server.start()
        time.sleep(seconds)  # the moment is the subject
        server.kill()
    server.start()
    with contextlib.closing(sqlite3.connect(f"file:{server.data_dir / 'atoll.db'}?mode=ro", uri=True)) as database:
        deadline = time.monotonic() + 90
        while True:
            rows = database.execute("SELECT id, state FROM warm_instances").fetchall()
            waiting = sorted(row[0] for row in rows if row[1] == "WAITING")
            if len(waiting) == len(rows) == 3 and leaks.instances(server.data_dir) == waiting:
                break
            assert time.monotonic() < deadline, (rows, leaks.instances(server.data_dir))
            time.sleep(0.1)


def _start_and_expect_its_end(server: AtollServer) -> None:
    with contextlib.suppress(ServerFailed):
        server.start()


def _by_status(client: Client) -> dict[str, str]:
    return {sandbox["sandboxId"]: sandbox["status"] for sandbox in client.list()}


def _recover(client: Client, *, before: dict[str, str]) -> None:
    """Whatever was under way settles by itself, without a call that asks for it."""
    deadline = time.monotonic() + 30
    while True:
        unsettled: list[Json] = [sandbox for sandbox in client.list() if sandbox["status"] not in SETTLED]
        if not unsettled:
            return
        assert time.monotonic() < deadline, (before, unsettled)
        time.sleep(0.05)
