"""What a list of domains adds to a connection: through the proxy, beside a listed address, in an internet of the test's
own."""

from __future__ import annotations

import json

from tests.client import Client
from tests.contract.internet import PUBLIC, internet
from tests.contract.web import NAME_SERVER, web

from bench.figures import Result
from bench.setting import Setting

ADDED_MS = 2.0
_NAME = "allowed.example"
_CONNECT = """
import json, socket, sys, time
address, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
took = []
for _ in range(rounds):
    began = time.perf_counter()
    link = socket.create_connection((address, 80), 5)
    link.sendall(f"GET / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode())
    if not link.recv(1): sys.exit("no answer")
    took.append((time.perf_counter() - began) * 1000)
    link.close()
    time.sleep(0.01)
print(json.dumps(took))
"""


def egress(setting: Setting) -> Result:
    """A new connection and the first byte of its answer, by turns in two sandboxes."""
    result = Result("egress", "A connection to a web server, from inside a sandbox, to the first byte of its answer")
    listed: list[float] = []
    direct: list[float] = []
    folder = setting.work / "web"
    folder.mkdir()
    with (
        internet(),
        web(folder),
        setting.server("egress", sandbox_dns=NAME_SERVER) as server,
        server.client() as client,
    ):
        by_name = _sandbox(client, "by name", {"enabled": False, "domainAllowlist": [_NAME]})
        by_address = _sandbox(client, "by address", {"enabled": True, "addressAllowlist": [PUBLIC[0]]})
        for _ in range(setting.rounds(10, 2)):
            direct += _connect(client, by_address)
            listed += _connect(client, by_name)
    ours = result.samples("by a listed domain, through the proxy", "ms", listed)
    peer = result.samples("by a listed address, directly", "ms", direct)
    added = ours.p50 - peer.p50
    result.target(f"a list of domains adds ≤ {ADDED_MS:g} ms to a connection", f"{added:.2f} ms", met=added <= ADDED_MS)
    return result


def _sandbox(client: Client, name: str, control: dict[str, object]) -> str:
    return client.ready(name, template_id=client.make_template(name, networkControl=control))


def _connect(client: Client, sandbox_id: str) -> list[float]:
    done = client.execute(sandbox_id, ["python3", "-c", _CONNECT, PUBLIC[0], _NAME, "20"])
    if done.exit_code:
        raise RuntimeError(f"no connection: {done.stderr.decode(errors='replace')[-300:]}")
    took: list[float] = json.loads(done.stdout)
    return took
