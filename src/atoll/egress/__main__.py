"""`python -m atoll.egress`: serves the sockets that it was started with until its standard input ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import encodings.idna  # noqa: F401 - asyncio loads it when it first connects, which is too late
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import dns.rdata

from atoll.egress.name_server import NameServer, datagrams
from atoll.egress.policies import Policies
from atoll.egress.proxy import Proxy
from atoll.egress.resolve import Resolver

_NOBODY = 65_534


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m atoll.egress", description=__doc__)
    parser.add_argument("--policies", type=Path, required=True, help='one file an address: {"domains": [...]}')
    for name in ("tls", "http", "dns-tcp", "dns-udp"):
        parser.add_argument(f"--{name}", type=int, required=True, metavar="FD", help="a bound socket, inherited")
    parser.add_argument("--name-server", action="append", default=[], metavar="IP[#PORT]")
    parser.add_argument("--allow", action="append", default=[], metavar="CIDR", help="a private network to let through")
    return parser.parse_args()


def _drop_privileges() -> None:
    """Be nobody: what is parsed here comes from hostile sandboxes. Modules are loaded before, since they may lie where
    nobody can read them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    dns.rdata.load_all_types()  # type: ignore[no-untyped-call]  # of dnspython
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


async def _serve(given: argparse.Namespace) -> None:
    policies, resolver = Policies(given.policies), Resolver(given.name_server, given.allow)
    proxy, names = Proxy(policies, resolver), NameServer(policies, resolver)
    _drop_privileges()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin.fileno(), ended.set)  # nothing is ever written there: it is readable once it has ended
    async with contextlib.AsyncExitStack() as stack:
        for descriptor, serve in (
            (given.tls, proxy.serve_tls),
            (given.http, proxy.serve_http),
            (given.dns_tcp, names.serve_stream),
        ):
            server = await asyncio.start_server(serve, sock=socket.socket(fileno=descriptor))
            stack.callback(server.close)
        await stack.enter_async_context(datagrams(names, socket.socket(fileno=given.dns_udp)))
        await ended.wait()
        os._exit(0)  # nothing here outlives its sockets, and taking hundreds of connections apart only makes noise


if __name__ == "__main__":
    asyncio.run(_serve(_arguments()))
