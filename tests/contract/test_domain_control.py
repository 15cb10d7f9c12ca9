"""A list of domains on real gVisor: names, web and TLS through the proxy, and no way around it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.rigs import GvisorRig, gvisor_rig, processes_naming
from tests.contract.web import NAME_SERVER, Asked, web
from tests.images import default_image_store

from atoll.domain.egress import EgressPolicy
from atoll.drivers import process
from atoll.drivers.base import AgentConnection
from atoll.drivers.contract import created, make_spec, run, until
from atoll.drivers.contract_isolation import Internet, reach
from atoll.drivers.gvisor.egress import EgressProxy
from atoll.drivers.gvisor.probe import RunscTraits

pytestmark = pytest.mark.gvisor

DOMAINS = ("allowed.example", "*.wild.example", "inner.example")
_PROBE = r"""
import json, socket, ssl, struct, sys
def get(host, port, name, sni=None, header=None):
    try:
        link = socket.create_connection((host, port), 4)
        link.settimeout(4)
        if sni is not None:
            context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
            link = context.wrap_socket(link, server_hostname=sni or None)
        link.sendall(f"GET / HTTP/1.1\r\nHost: {header or name}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while more := link.recv(4096): answer += more
        status, _, body = answer.decode().partition("\r\n\r\n")
        return f"{status.split()[1]} {body}".strip() if answer else "closed"
    except OSError as error:
        return type(error).__name__
def tunnel(target, sni):
    try:
        link = socket.create_connection(("198.51.100.1", 3128), 4); link.settimeout(4)
        link.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = link.recv(4096).decode()
        if " 200" not in head.split("\r\n")[0]: return head.split()[1]
        context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
        link = context.wrap_socket(link, server_hostname=sni)
        link.sendall(f"GET / HTTP/1.1\r\nHost: {sni}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while more := link.recv(4096): answer += more
        return answer.decode().rpartition("\r\n")[2]
    except (OSError, IndexError) as error:
        return type(error).__name__
def pipeline(host, name, second):
    link = socket.create_connection((host, 80), 4); link.settimeout(4)
    heads = [f"GET / HTTP/1.1\r\nHost: {one}\r\n\r\n" for one in (name, second)]
    link.sendall("".join(heads).encode())
    answer = b""
    try:
        while more := link.recv(4096): answer += more
    except OSError: pass
    return answer.decode()
def ask(server, name, kind):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    link = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM); link.settimeout(3)
    try:
        link.sendto(query, (server, 53)); answer = link.recv(4096)
        return [answer[3] & 15, struct.unpack(">H", answer[6:8])[0]]
    except OSError as error:
        return type(error).__name__
calls = {"get": get, "tunnel": tunnel, "pipeline": pipeline, "ask": ask}
print(json.dumps([calls[what](*given) for what, *given in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def queries(internet: Internet, tmp_path: Path) -> Iterator[Asked]:
    with web(tmp_path) as asked:
        yield asked


@pytest.fixture
async def rig(image_digest: str, traits: RunscTraits, runsc: Path, queries: Asked) -> AsyncIterator[GvisorRig]:
    store = default_image_store()
    async with gvisor_rig(store, image_digest, traits, runsc=runsc, name_servers=(NAME_SERVER,)) as made:
        yield made


async def probe(agent: AgentConnection, *calls: tuple[object, ...]) -> list[object]:
    result = await run(agent, "python3", "-c", _PROBE, json.dumps(calls), timeout_seconds=60)
    assert result.state.exit_code == 0, result.stderr.decode()
    answers: list[object] = json.loads(result.stdout)
    return answers


def https(name: str, *, sni: str | None = None, host: str | None = None) -> tuple[object, ...]:
    return "get", host or name, 443, name, sni or name


@pytest.mark.spec("SA-191")
async def test_listed_names_are_reached_and_no_other(rig: GvisorRig, internet: Internet, queries: Asked) -> None:
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    answers = await probe(
        agent,
        https("allowed.example"),
        ("get", "allowed.example", 80, "allowed.example"),
        https("deep.er.wild.example"),
        https("wild.example"),
        https("other.example"),
        ("get", "other.example", 80, "other.example"),
    )
    assert answers[:3] == ["200 tls allowed.example", "200 plain allowed.example", "200 tls deep.er.wild.example"]
    assert set(answers[3:]) == {"gaierror"}
    assert "other.example" not in queries(), "a name that is not listed is asked of nobody"


@pytest.mark.spec("SA-191")
async def test_there_is_no_way_around_the_proxy(rig: GvisorRig, internet: Internet, queries: Asked) -> None:
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    four, six = internet.public
    answers = await probe(
        agent,
        https("other.example", host=four),
        https("other.example", host=six),
        ("get", four, 443, "allowed.example", ""),
        ("get", four, 80, "other.example"),
        ("get", "allowed.example", 80, "allowed.example", None, "other.example"),
        ("tunnel", "allowed.example:443", "allowed.example"),
        ("tunnel", "allowed.example:443", "other.example"),
        ("tunnel", "other.example:443", "allowed.example"),
        ("tunnel", f"{four}:443", "allowed.example"),
        ("tunnel", "allowed.example:22", "allowed.example"),
        ("pipeline", four, "allowed.example", "other.example"),
        ("ask", four, "secret.other.example", 16),
        ("ask", "198.51.100.1", "secret.other.example", 1),
        ("ask", six, "secret.other.example", 1),
        ("ask", four, "allowed.example", 1),
    )
    for refused in answers[:3]:
        assert refused not in {"200 tls other.example", "200 tls allowed.example"}
    assert str(answers[3]).startswith("403") and str(answers[4]).startswith("403")
    assert answers[5] == "tls allowed.example"
    for refused in answers[6:10]:
        assert "tls" not in str(refused)
    assert "plain allowed.example" in str(answers[10]) and "other.example" not in str(answers[10])
    assert [answers[11][0], answers[12][0], answers[13][0]] == [5, 5, 5]  # type: ignore[index]  # REFUSED
    assert answers[14] == [0, 1]
    assert "secret" not in queries()
    assert set((await reach(agent, internet.public + internet.inner + internet.host, internet.port)).values()) == {None}


@pytest.mark.spec("SA-197")
async def test_a_listed_name_of_a_private_address_leads_nowhere(
    rig: GvisorRig, internet: Internet, queries: Asked
) -> None:
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    answers = await probe(
        agent,
        https("inner.example", host=internet.public[0]),
        ("get", internet.public[0], 80, "inner.example"),
    )
    assert "tls" not in str(answers[0]) and "plain" not in str(answers[1])


@pytest.mark.spec("SA-192", "SA-193")
async def test_neither_list_narrows_the_other(rig: GvisorRig, internet: Internet, queries: Asked) -> None:
    four, six = internet.public
    agent = await created(rig, egress=EgressPolicy((f"{six}/128",), ("allowed.example",)))
    assert await reach(agent, (four, six), internet.port) == {four: None, six: "hello"}
    answers = await probe(agent, https("allowed.example", host=four), https("unlisted.example", host=six))
    assert answers == ["200 tls allowed.example", "200 tls unlisted.example"]


async def test_the_proxy_is_nobody_and_knows_nothing_of_the_server(
    rig: GvisorRig, internet: Internet, queries: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_SOMETHING", "secret")
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    assert await probe(agent, https("allowed.example")) == ["200 tls allowed.example"]
    pid = proxy_of(rig)
    status = await process.run(["cat", f"/proc/{pid}/status"], timeout=10)
    fields = dict(each.split(":\t", 1) for each in status.stdout.decode().splitlines() if ":\t" in each)
    assert set(fields["Uid"].split() + fields["Gid"].split()) == {"65534"}
    assert (fields["CapEff"], fields["CapPrm"], fields["Groups"].strip()) == ("0" * 16, "0" * 16, "")
    environment = await process.run(["cat", f"/proc/{pid}/environ"], timeout=10)
    assert b"ATOLL_" not in environment.stdout


@pytest.mark.spec("SA-191")
async def test_a_proxy_that_is_killed_is_started_again_and_what_comes_meanwhile_waits(
    rig: GvisorRig, internet: Internet, queries: Asked
) -> None:
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    assert await probe(agent, https("allowed.example")) == ["200 tls allowed.example"]
    killed = proxy_of(rig)
    os.kill(killed, signal.SIGKILL)
    four = internet.public[0]
    answers = await probe(agent, https("allowed.example", host=four), ("get", four, 80, "other.example"))
    assert answers[0] == "200 tls allowed.example" and str(answers[1]).startswith("403")
    assert proxy_of(rig) != killed


@pytest.mark.spec("SA-191")
async def test_lists_of_domains_hold_while_the_control_plane_is_away_and_the_next_one_takes_the_proxy_over(
    rig: GvisorRig, internet: Internet, queries: Asked
) -> None:
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    assert await probe(agent, https("allowed.example")) == ["200 tls allowed.example"]
    before = proxy_of(rig)
    await rig.driver.stop()
    assert await _as_listed(agent)
    driver = await rig.restarted()
    try:
        again = await driver.connect("one")
        assert await _as_listed(again)
        assert proxy_of(rig) == before
        await driver.create(make_spec(rig, "other", egress=EgressPolicy((), ("other.example",))))
        other = await driver.connect("other")
        assert await probe(other, https("other.example")) == ["200 tls other.example"]
        os.kill(before, signal.SIGKILL)
        assert await _as_listed(again), "whoever took it over starts it again"
    finally:
        await driver.stop()


@pytest.mark.spec("SA-191")
async def test_a_proxy_of_an_earlier_version_is_replaced(
    rig: GvisorRig, internet: Internet, queries: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    assert await probe(agent, https("allowed.example")) == ["200 tls allowed.example"]
    before, ports = proxy_of(rig), rig.driver._network._proxy.ports
    await rig.driver.stop()
    monkeypatch.setattr(EgressProxy, "_version", lambda self: "another")
    driver = await rig.restarted()
    try:
        agent = await driver.connect("one")
        assert await _as_listed(agent)
        assert proxy_of(rig) != before
        assert driver._network._proxy.ports == ports, "nobody could have them in between"
    finally:
        await driver.stop()


@pytest.mark.spec("SA-191")
async def test_whoever_takes_the_ports_of_a_dead_proxy_gets_nothing_from_sandboxes(
    rig: GvisorRig, internet: Internet, queries: Asked
) -> None:
    four = internet.public[0]
    agent = await created(rig, egress=EgressPolicy((), DOMAINS))
    # By a datagram: a connection would keep the port from anybody for a minute after its end.
    assert await probe(agent, ("ask", four, "allowed.example", 1)) == [[0, 1]]
    ports = rig.driver._network._proxy.ports
    assert ports is not None
    await rig.driver.stop()
    killed = proxy_of(rig)
    os.kill(killed, signal.SIGKILL)
    await until(lambda: _is_gone(killed))
    with contextlib.ExitStack() as stack:
        thieves = [
            stack.enter_context(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True))
            for port in (ports.tls, ports.http, ports.dns)
        ]
        datagrams = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        datagrams.bind(("::", ports.dns))
        answers = await probe(
            agent,
            https("allowed.example", host=four),
            ("get", four, 80, "allowed.example"),
            ("ask", four, "allowed.example", 1),
        )
        assert answers == ["TimeoutError"] * 3
        for thief in (*thieves, datagrams):
            thief.settimeout(0)
            with pytest.raises(BlockingIOError):
                thief.recv(1) if thief is datagrams else thief.accept()
    driver = await rig.restarted()
    try:
        assert await _as_listed(await driver.connect("one"))
    finally:
        await driver.stop()


async def test_without_a_sandbox_that_needs_it_the_proxy_ends_with_the_control_plane(rig: GvisorRig) -> None:
    await created(rig, egress=EgressPolicy((), DOMAINS))
    await until(lambda: _one_of_it_runs(rig))
    await rig.driver.destroy("one")
    await rig.driver.cleanup("one")
    await rig.driver.stop()
    assert proxies_of(rig) == []


async def test_only_root_may_speak_to_the_proxy(rig: GvisorRig) -> None:
    await created(rig, egress=EgressPolicy((), DOMAINS))
    await until(lambda: _one_of_it_runs(rig))
    control = rig.layout.run_dir / "egress.sock"
    await until(lambda: _listens(control))
    assert stat.S_IMODE(rig.layout.run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(control.stat().st_mode) == 0o600


def proxies_of(rig: GvisorRig) -> list[int]:
    lines = [one for one in processes_naming(str(rig.layout.egress_dir)) if "atoll.egress" in one]
    return [int(line.split()[1].rstrip(":")) for line in lines]


def proxy_of(rig: GvisorRig) -> int:
    (pid,) = proxies_of(rig)
    return pid


async def _is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240, PTH110 - of no disk


async def _one_of_it_runs(rig: GvisorRig) -> bool:
    return len(proxies_of(rig)) == 1


async def _listens(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def _as_listed(agent: AgentConnection) -> bool:
    answers = await probe(agent, https("allowed.example"), ("get", "203.0.113.10", 80, "other.example"))
    return answers[0] == "200 tls allowed.example" and str(answers[1]).startswith("403")
