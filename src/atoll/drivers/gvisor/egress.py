"""The egress proxy of one data directory: its sockets, its process, and the policies that it reads.

`python -m atoll.egress` runs beside the server, since what it parses comes from hostile sandboxes. It is started with
the first sandbox that has a list of domains, started again when it dies, and ends with the server: until the next one
is up such sandboxes reach nothing by name. Called by `network`; the policies are files, so nothing is lost with either
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import structlog

from atoll.domain.egress import EgressPolicy
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.nftables import ProxyPorts

_BACKLOG = 512
_AGAIN_SECONDS = 1.0
_STOP_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class EgressProxy:
    """The process, and where it listens."""

    def __init__(self, policies: Path, *, name_servers: Sequence[str] = (), allowed: Sequence[str] = ()) -> None:
        """`policies`: a folder of ours; `allowed`: private networks that the operator opens to every sandbox."""
        self._policies = policies
        self._name_servers = name_servers
        self._allowed = allowed
        self._sockets: dict[str, socket.socket] = {}
        self._task: asyncio.Task[None] | None = None
        self.ports: ProxyPorts | None = None

    def replace_policies(self, policies: Mapping[IPv4Address | IPv6Address, EgressPolicy]) -> None:
        """Know exactly these, by the sandbox's address. Blocks."""
        self._policies.mkdir(parents=True, exist_ok=True)
        self._policies.chmod(0o755)  # for a process without privileges, in a folder that only root can enter
        wanted = {f"{address}.json": policy for address, policy in policies.items() if policy.domains}
        for file in self._policies.iterdir():
            if file.name not in wanted:
                file.unlink(missing_ok=True)
        for name, policy in wanted.items():
            partial = self._policies / f".{name}"
            partial.write_text(json.dumps({"domains": policy.domains}))
            partial.chmod(0o644)
            partial.replace(self._policies / name)

    async def start(self) -> ProxyPorts:
        """Have it run. Twice is once."""
        if self.ports is None:
            try:
                self._bind()
            except OSError as error:
                raise RuntimeFailure("the egress proxy cannot listen", code=ErrorCode.NAMESPACE_DENIED) from error
            self._task = asyncio.create_task(self._keep_running())
        assert self.ports is not None  # noqa: S101 - _bind() set it
        return self.ports

    async def stop(self) -> None:
        """End the process and free the ports."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for each in self._sockets.values():
            each.close()
        self._sockets, self.ports = {}, None

    def remove_policies(self) -> None:
        """Take the folder away; only when no sandbox is left."""
        shutil.rmtree(self._policies, ignore_errors=True)

    def _bind(self) -> None:
        dns = _socket(socket.SOCK_STREAM)
        port = dns.getsockname()[1]
        self._sockets = {
            "tls": _socket(socket.SOCK_STREAM),
            "http": _socket(socket.SOCK_STREAM),
            "dns-tcp": dns,
            "dns-udp": _socket(socket.SOCK_DGRAM, port),
        }
        self.ports = ProxyPorts(
            tls=self._sockets["tls"].getsockname()[1], http=self._sockets["http"].getsockname()[1], dns=port
        )

    async def _keep_running(self) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *self._argv(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                env=_environment(),
                pass_fds=[each.fileno() for each in self._sockets.values()],
            )
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                await _end(process)
                raise
            _log.error("the egress proxy ended and is started again", status=status)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _argv(self) -> list[str]:
        argv = [sys.executable, "-m", "atoll.egress", "--policies", str(self._policies)]
        for option, each in self._sockets.items():
            argv += [f"--{option}", str(each.fileno())]
        for server in self._name_servers:
            argv += ["--name-server", server]
        for network in self._allowed:
            argv += ["--allow", network]
        return argv


def _environment() -> dict[str, str]:
    """Nothing of the server's but where its modules are: its variables may hold secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8"}


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _socket(kind: socket.SocketKind, port: int = 0) -> socket.socket:
    """On every address of the machine, since a packet is turned to that of the sandbox's own link; the packet rules
    keep everybody else off. IPv4 alone where the machine has no IPv6."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    made = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("", port))
        if kind == socket.SOCK_STREAM:
            made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
