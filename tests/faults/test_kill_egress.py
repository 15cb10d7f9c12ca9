"""Lists of domains hold when the server is killed, when the egress proxy is, and when both are; from warm pools too."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests import leaks
from tests.client import Client
from tests.contract.internet import PUBLIC, internet
from tests.contract.rigs import processes_naming
from tests.contract.web import NAME_SERVER, web
from tests.server import AtollServer, run_atoll, wait_until

pytestmark = pytest.mark.gvisor

_GET = r"""
import json, socket, sys
def get(host, name):
    try:
        link = socket.create_connection((host, 80), 5); link.settimeout(5)
        link.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        answer = b""
        while more := link.recv(4096): answer += more
        return int(answer.split()[1]) if answer else None
    except OSError: return None
print(json.dumps([get(*each) for each in json.loads(sys.argv[1])]))
"""
LISTED, UNLISTED, BY_ADDRESS = ("allowed.example",) * 2, (PUBLIC[0], "other.example"), ("other.example",) * 2
AS_LISTED = [200, 403, None]
CONTROL = {"enabled": False, "domainAllowlist": ["allowed.example"]}


@pytest.fixture
def served(idle_server: AtollServer, tmp_path: Path) -> Iterator[AtollServer]:
    """A server whose sandboxes have an internet of the test's own."""
    folder = tmp_path / "web"
    folder.mkdir()
    idle_server.set_environment(ATOLL_SANDBOX_DNS=NAME_SERVER)
    with internet(), web(folder):
        idle_server.start()
        yield idle_server
        idle_server.kill()


def answers(client: Client, sandbox_id: str) -> list[int | None]:
    """Of a listed name, of an unlisted one at an address that the program chose, and of one by its name."""
    asked = json.dumps([LISTED, UNLISTED, BY_ADDRESS])
    result = client.execute(sandbox_id, ["python3", "-c", _GET, asked])
    assert result.exit_code == 0, result.stderr
    found: list[int | None] = json.loads(result.stdout)
    return found


def proxies(server: AtollServer) -> list[int]:
    lines = processes_naming(str(leaks.layout_of(server.data_dir).egress_dir))
    return [int(line.split()[1].rstrip(":")) for line in lines if "atoll.egress" in line]


@pytest.mark.spec("SA-191")
def test_a_list_of_domains_holds_over_every_kill(served: AtollServer) -> None:
    client = served.client()
    template_id = client.make_template("listed", networkControl=CONTROL)
    sandbox_id = client.ready("listed", template_id=template_id)
    assert answers(client, sandbox_id) == AS_LISTED
    (before,) = proxies(served)

    meanwhile = client.start(
        sandbox_id,
        [
            "sh",
            "-c",
            'while ! [ -e /tmp/away ]; do sleep 0.1; done; sleep 1; exec python3 -c "$0" "$1"',
            _GET,
            json.dumps([LISTED, UNLISTED, BY_ADDRESS]),
        ],
    )
    client.execute(sandbox_id, ["touch", "/tmp/away"])
    served.kill()
    assert proxies(served) == [before], "it goes on without the server"
    served.start()
    client = served.client()
    said = client.follow(sandbox_id, meanwhile)
    assert json.loads(bytes(said.stdout)) == AS_LISTED, "while the server was away"
    assert answers(client, sandbox_id) == AS_LISTED
    assert proxies(served) == [before], "the next server takes it over"

    os.kill(before, signal.SIGKILL)
    assert answers(client, sandbox_id) == AS_LISTED
    (second,) = proxies(served)
    assert second != before

    served.kill()
    os.kill(second, signal.SIGKILL)
    served.start()
    client = served.client()
    assert answers(client, sandbox_id) == AS_LISTED

    assert served.stop() == 0
    assert len(proxies(served)) == 1
    run_atoll("teardown", "--data-dir", str(served.data_dir), "--yes")
    assert proxies(served) == []


@pytest.mark.spec("SA-041", "SA-057", "SA-191", "SA-197")
def test_a_sandbox_out_of_a_warm_pool_has_the_list_of_its_revision(served: AtollServer) -> None:
    client = served.client()
    pool = {"desired": 1, "min": 0, "max": 1}
    template_id = client.make_template("warm and listed", networkControl=CONTROL, warmPool=pool)
    wait_until(partial(_waiting, served, 1), seconds=60, what="a warm sandbox")
    created = client.create("warm", template_id=template_id)
    sandbox = client.settled(created["sandboxId"])
    assert sandbox["isWarmAllocation"] is True
    assert answers(client, sandbox["sandboxId"]) == AS_LISTED
    other = client.make_template("warm and open", warmPool=pool)
    wait_until(partial(_waiting, served, 2), seconds=60, what="warm sandboxes of both")
    open_one = client.settled(client.create("open", template_id=other)["sandboxId"])
    assert open_one["isWarmAllocation"] is True
    assert answers(client, open_one["sandboxId"]) == [200, 200, 200], "without a list there is no restriction"


def _waiting(server: AtollServer, count: int) -> bool:
    with closing(sqlite3.connect(f"file:{server.data_dir / 'atoll.db'}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT count(*) FROM warm_instances WHERE state = 'WAITING'").fetchone()[0]
    return int(found) >= count
