"""An internet of our own: one namespace that plays public servers and everything that sandboxes must not reach.

The machine gets a link to it and a route to each of its addresses, so that silence in a sandbox means the rules and
not a missing route. Nothing leaves the machine. All of it is removed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from atoll.drivers.contract_isolation import Internet

PUBLIC = ("203.0.113.10", "2001:db8:113::10")
INNER = (
    "10.77.66.10",
    "172.16.77.10",
    "192.168.77.10",
    "100.64.77.10",
    "169.254.169.254",
    "198.18.77.10",
    "fd77:77::10",
    "64:ff9b::a4d:420a",
)
HOST = ("203.0.113.1", "2001:db8:113::1")
_TURN_SECONDS = 240.0
_SERVER = """
import socket, sys, threading
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
print("up", flush=True)
while True:
    link, _ = server.accept()
    link.sendall(b"hello"); link.close()
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@contextlib.contextmanager
def internet() -> Iterator[Internet]:
    """The internet, for one at a time on this machine: its addresses are always the same."""
    with _alone():
        yield from _made()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """An abstract socket is a lock that leaves no file, and that the kernel frees with its holder."""
    deadline = time.monotonic() + _TURN_SECONDS
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind("\0atoll-test-internet")
                break
            except OSError:
                assert time.monotonic() < deadline, "another test keeps the internet"
                time.sleep(0.05)
        yield


def _made() -> Iterator[Internet]:
    namespace = f"atoll-test-{os.getpid()}"
    link = f"ait{os.getpid()}"[:15]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    servers = []
    _ip("netns", "add", namespace)
    try:
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("addr", "add", f"{HOST[0]}/24", "dev", link)
        _ip("addr", "add", f"{HOST[1]}/64", "dev", link, "nodad")
        _ip("link", "set", link, "up")
        inside = ("-n", namespace)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "addr", "add", f"{PUBLIC[0]}/24", "dev", "eth0")
        _ip(*inside, "addr", "add", f"{PUBLIC[1]}/64", "dev", "eth0", "nodad")
        _ip(*inside, "link", "set", "eth0", "up")
        for address in INNER:
            bits = 128 if ":" in address else 32
            _ip(*inside, "addr", "add", f"{address}/{bits}", "dev", "lo")
            _ip("route", "add", f"{address}/{bits}", "via", PUBLIC[1 if ":" in address else 0], "dev", link)
        for prefix in (["ip", "netns", "exec", namespace], []):
            server = subprocess.Popen([*prefix, sys.executable, "-c", _SERVER, str(port)], stdout=subprocess.PIPE)
            servers.append(server)
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
        for address in PUBLIC + INNER + HOST:
            assert _answers(address, port), f"the test's own internet does not answer at {address}"
        yield Internet(port, PUBLIC, INNER, (*HOST, *_own_addresses()))
    finally:
        for server in servers:
            server.kill()
            server.wait(10)
            if server.stdout is not None:
                server.stdout.close()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", link)
        _ip("netns", "del", namespace)


def _answers(address: str, port: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1) as link:
            return link.recv(16) == b"hello"
        time.sleep(0.05)
    return False


def _own_addresses() -> list[str]:
    """Addresses of the machine's other interfaces."""
    listed = subprocess.run(["ip", "-o", "-4", "addr", "show", "scope", "global"], capture_output=True, timeout=10)
    return [line.split()[3].partition("/")[0] for line in listed.stdout.decode().splitlines()][:4]
