"""Commands outlive their server: stopped or killed, and started again, nothing of them is lost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests import leaks
from tests.client import Client, Output, ServerGone
from tests.server import AtollServer, wait_until

pytestmark = pytest.mark.gvisor

LINES = 300
TICKER = [
    "sh",
    "-c",
    f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; echo error $i >&2; sleep 0.02; done; exit 5",
]
ENDS_MEANWHILE = ["sh", "-c", "sleep 1; echo I ended alone; exit 3"]


def end(server: AtollServer, how: str) -> None:
    if how == "SIGKILL":
        server.kill()
    else:
        assert server.stop() == 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
@pytest.mark.spec("SA-241", "SA-255", "SA-276")
def test_commands_go_on_while_the_server_is_away(server: AtollServer, how: str) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    sandbox_id = client.ready("restart")
    ticker = client.start(sandbox_id, TICKER)
    meanwhile = client.start(sandbox_id, ENDS_MEANWHILE)
    silent = client.start(sandbox_id, ["sleep", "1000"])
    output = Output()
    while len(output.stdout.splitlines()) < 5:
        output.take(client.read(sandbox_id, ticker, from_seq=output.next_seq, wait_seconds=5))

    end(server, how)
    time.sleep(1.5)  # the one that ends meanwhile needs this long, and its end is the subject
    server.start()

    client = server.client()
    client.follow(sandbox_id, ticker, output)
    assert output.stdout.decode() == "".join(f"line {number}\n" for number in range(1, LINES + 1))
    assert output.stderr.decode() == "".join(f"error {number}\n" for number in range(1, LINES + 1))
    assert output.sequence == list(range(len(output.sequence)))
    assert (output.exit_code, output.dropped_bytes) == (5, 0)

    alone = client.follow(sandbox_id, meanwhile)
    assert (bytes(alone.stdout), alone.exit_code) == (b"I ended alone\n", 3)

    assert client.read(sandbox_id, silent)["state"] == "running"
    client.kill(sandbox_id, silent, "SIGKILL")
    killed = client.follow(sandbox_id, silent)
    assert (killed.exit_code, killed.reason) == (137, "canceled")

    client.until(sandbox_id, "READY")
    client.terminate(sandbox_id)
    leaks.wait_until_nothing_left(server.data_dir, before)


def test_a_server_that_stops_leaves_no_namespace_that_nobody_uses(server: AtollServer) -> None:
    client = server.client()
    sandbox_id = client.ready("stop")
    assert server.stop() == 0
    left = leaks.snapshot(server.data_dir)
    assert len(left.namespaces) == 1
    assert left.processes
    server.start()
    assert server.client().execute(sandbox_id, ["echo", "still here"]).stdout == b"still here\n"


def test_three_kills_in_a_row_lose_no_byte(server: AtollServer) -> None:
    sandbox_id = server.client().ready("thrice")
    script = "for n in range(600): print(f'{n:06d}' * 64, flush=True); time.sleep(0.01)"
    execution_id = server.client().start(sandbox_id, ["python3", "-c", f"import time\n{script}"])
    output = Output()

    def more(client: Client, seen: int) -> bool:
        output.take(client.read(sandbox_id, execution_id, from_seq=output.next_seq, wait_seconds=2))
        return len(output.stdout) > seen or output.complete

    for _ in range(3):
        wait_until(partial(more, server.client(), len(output.stdout)), seconds=20, what="more output")
        server.restart()
    server.client().follow(sandbox_id, execution_id, output)
    assert output.stdout.decode() == "".join(f"{number:06d}" * 64 + "\n" for number in range(600))
    assert output.exit_code == 0


def test_what_was_executed_when_the_server_was_killed_is_settled_afterwards(server: AtollServer) -> None:
    client = server.client()
    sandbox_id = client.ready("executing")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(client.execute, sandbox_id, ["sleep", "8"])
        with server.client() as other:
            other.until(sandbox_id, "BUSY")
        server.restart()
        with pytest.raises(ServerGone):
            pending.result(30)
    client = server.client()
    assert client.get(sandbox_id)["status"] == "BUSY"
    # A minute when the kill came between the record and the agent: what was never sent is withdrawn after that.
    client.until(sandbox_id, "READY", seconds=100)
    assert client.execute(sandbox_id, ["true"]).exit_code == 0
