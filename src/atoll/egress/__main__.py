"""`python -m atoll.egress`: serves the sockets that it was started with, until it is killed.

It outlives the server that started it, as sandboxes do, and another server finds it through its control socket
(`control`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import encodings.idna  # noqa: F401 - asyncio loads it when it first connects, which is too late
import json
import os
import resource
import socket
from pathlib import Path

import dns.rdata
import uvloop

from atoll.egress import control
from atoll.egress.admission import Admission
from atoll.egress.name_server import TCP_CONNECTIONS_A_PEER, NameServer, datagrams
from atoll.egress.policies import Policies
from atoll.egress.proxy import CONNECTIONS_A_PEER, Proxy
from atoll.egress.resolve import AT_ONCE, Resolver

_NOBODY = 65_534
_SPARE_DESCRIPTORS = 128
_FEWEST_CONNECTIONS = 32
_LOG_BYTES = 1 << 20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m atoll.egress", description=__doc__)
    parser.add_argument("--policies", type=Path, required=True, help='one file an address: {"domains": [...]}')
    parser.add_argument("--control", type=Path, required=True, metavar="SOCKET", help="where a server finds it again")
    parser.add_argument("--version", required=True, metavar="TEXT", help="what it tells a server that it is")
    for name in ("tls", "http", "dns-tcp", "dns-udp"):
        parser.add_argument(f"--{name}", type=int, required=True, metavar="FD", help="a bound socket, inherited")
    parser.add_argument("--name-server", action="append", default=[], metavar="IP[#PORT]")
    parser.add_argument("--allow", action="append", default=[], metavar="CIDR", help="a private network to let through")
    return parser.parse_args()


def _limit_itself() -> int:
    """As many descriptors as may be, and a log that hostile input cannot fill the disk with; says how many."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LOG_BYTES, _LOG_BYTES))
    os.chdir("/")
    return most


def _drop_privileges() -> None:
    """Be nobody: what is parsed here comes from hostile sandboxes. Modules are loaded before, since they may lie where
    nobody can read them."""
    dns.rdata.load_all_types()  # type: ignore[no-untyped-call]  # of dnspython
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


async def _serve(given: argparse.Namespace) -> None:
    owner, policies, resolver = os.geteuid(), Policies(given.policies), Resolver(given.name_server, given.allow)
    listener = control.listen(given.control)
    # A connection takes two descriptors, a query over TCP one, and so does each question to a name server.
    connections = max(_FEWEST_CONNECTIONS, (_limit_itself() - AT_ONCE - _SPARE_DESCRIPTORS) // 3)
    _drop_privileges()
    proxy = Proxy(policies, resolver, Admission(a_peer=CONNECTIONS_A_PEER, in_all=connections))
    names = NameServer(policies, resolver, Admission(a_peer=TCP_CONNECTIONS_A_PEER, in_all=connections))
    descriptors = [given.tls, given.http, given.dns_tcp, given.dns_udp]
    async with contextlib.AsyncExitStack() as stack:
        served = (proxy.serve_tls, proxy.serve_http, names.serve_stream)
        for descriptor, serve in zip(descriptors, served, strict=False):
            stack.callback((await asyncio.start_server(serve, sock=socket.socket(fileno=descriptor))).close)
        await stack.enter_async_context(datagrams(names, socket.socket(fileno=given.dns_udp)))
        await control.greet(listener, json.dumps({"version": given.version}).encode(), descriptors, owner=owner)


if __name__ == "__main__":
    uvloop.run(_serve(_arguments()))
