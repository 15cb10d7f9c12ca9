"""The egress proxy of one data directory: its sockets, its process, and the policies that it reads.

`python -m atoll.egress` runs beside the server, since what it parses comes from hostile sandboxes. It is started with
the first sandbox that has a list of domains and outlives the server as the sandboxes do; the next server takes it over.
Both hold the listening sockets, so while one of the two lives nobody can have their ports; when both have died, the
mark on the sockets is what the packet rules miss (`nftables`). Called by `network`; the policies are files, so nothing
is lost with either process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import structlog

import atoll.domain.reserved_ranges
import atoll.egress
from atoll.domain.egress import EgressPolicy
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.nftables import ProxyPorts

_BACKLOG = 512
_AGAIN_SECONDS = 0.5
_UP_SECONDS = 20.0
_LOOK_SECONDS = 0.02
_GREETING_SECONDS = 5.0
_GREETING_BYTES = 4_096
_START_SECONDS = 10.0
_SOCKETS = ("tls", "http", "dns-tcp", "dns-udp")
_log = structlog.get_logger(__name__)


class EgressProxy:
    """The process, and where it listens."""

    def __init__(
        self,
        folder: Path,
        policies: Path,
        *,
        mark: int,
        name_servers: Sequence[str] = (),
        allowed: Sequence[str] = (),
    ) -> None:
        """`folder`: one that only root can enter, for the control socket and the log; `policies`: a folder of ours;
        `mark`: of the sockets, not 0; `allowed`: private networks that the operator opens to every sandbox."""
        self._control = folder / "egress.sock"
        self._log_file = folder / "egress.log"
        self._policies = policies
        self._mark = mark
        options = [["--name-server", server] for server in name_servers] + [["--allow", each] for each in allowed]
        self._options = [word for option in options for word in option]
        self._sockets: list[socket.socket] = []
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
        """Have it run: take over the one that runs, or start one. Twice is once."""
        if self.ports is None:
            try:
                link = await self._take_over()
                if not self._sockets:
                    self._sockets = _bound(self._mark)
            except OSError as error:
                raise RuntimeFailure("the egress proxy cannot listen", code=ErrorCode.NAMESPACE_DENIED) from error
            tls, http, dns, _ = (each.getsockname()[1] for each in self._sockets)
            self.ports = ProxyPorts(tls=tls, http=http, dns=dns, mark=self._mark)
            self._task = asyncio.create_task(self._keep_running(link))
        return self.ports

    async def leave(self) -> None:
        """Have nothing to do with it any more: it goes on by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for each in self._sockets:
            each.close()
        self._sockets, self.ports = [], None

    async def end(self) -> None:
        """End the process, whoever started it, and free the ports. Fine when there is none."""
        await self.leave()
        await self._kill()
        self._control.unlink(missing_ok=True)

    def remove_policies(self) -> None:
        """Take the folder away; only when no sandbox is left."""
        shutil.rmtree(self._policies, ignore_errors=True)

    async def _take_over(self) -> socket.socket | None:
        """A connection to the one that runs. One of another version, or that does not answer, is ended; its sockets, if
        it gave them, wait for the next."""
        greeted = await asyncio.to_thread(_greeting, self._control)
        if greeted is not None:
            link, version, sockets = greeted
            if [each.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) for each in sockets] == [self._mark] * len(_SOCKETS):
                self._sockets = sockets
                if version == self._version():
                    return link
            else:
                _close(sockets)
            link.close()
            _log.info("the egress proxy is of another version and is replaced")
        await self._kill()
        return None

    async def _keep_running(self, link: socket.socket | None) -> None:
        while True:
            if link is None:
                link = await self._launch()
            if link is not None:
                with link, contextlib.suppress(OSError):
                    while await asyncio.get_running_loop().sock_recv(link, 64):
                        pass
                link = None
            _log.error("the egress proxy ended and is started again", log=str(self._log_file))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _launch(self) -> socket.socket | None:
        """Start a process and return the connection to it; None when it does not come up."""
        spawning = asyncio.create_task(asyncio.to_thread(self._spawn))
        try:
            await asyncio.shield(spawning)
            async with asyncio.timeout(_UP_SECONDS):
                while True:
                    greeted = await asyncio.to_thread(_greeting, self._control)
                    if greeted is not None:
                        link, _, sockets = greeted
                        _close(sockets)  # ours
                        link.settimeout(0)
                        return link
                    await asyncio.sleep(_LOOK_SECONDS)
        except (OSError, subprocess.SubprocessError, TimeoutError) as error:
            _log.error("the egress proxy does not come up", error=repr(error))
        except asyncio.CancelledError:
            # A thread goes on: nobody may look for processes before it has started its own.
            await asyncio.gather(spawning, return_exceptions=True)
            raise
        await self._kill()
        return None

    def _spawn(self) -> None:
        # By a program between, which ends at once: the process is nobody's child and does not go with this one.
        self._control.unlink(missing_ok=True)
        with self._log_file.open("wb") as log:
            subprocess.run(  # noqa: S603 - nothing in it comes from a sandbox
                ["setsid", "--fork", *self._argv()],  # noqa: S607 - found in the PATH of the server
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=_environment(),
                pass_fds=[each.fileno() for each in self._sockets],
                check=True,
                timeout=_START_SECONDS,
            )

    def _argv(self) -> list[str]:
        # -P: not out of the folder that somebody happened to start the server in, as it begins as root.
        argv = [sys.executable, "-P", "-m", "atoll.egress", "--policies", str(self._policies)]
        argv += ["--control", str(self._control), "--version", self._version()]
        for option, each in zip(_SOCKETS, self._sockets, strict=True):
            argv += [f"--{option}", str(each.fileno())]
        return argv + self._options

    def _version(self) -> str:
        """Another text for every other code and setting: an upgrade may leave the version number as it is."""
        told = hashlib.sha256(json.dumps([sys.version, self._options]).encode())
        sources = Path(atoll.egress.__path__[0]).glob("*.py")
        for source in (*sorted(sources), Path(str(atoll.domain.reserved_ranges.__file__))):
            told.update(source.read_bytes())
        return told.hexdigest()[:16]

    async def _kill(self) -> None:
        """It has nothing to lose, so there is no gentler end. Also one that has not come up yet."""
        async with asyncio.timeout(_START_SECONDS):
            while pids := await asyncio.to_thread(_processes, self._policies):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(_LOOK_SECONDS)


def _processes(policies: Path) -> list[int]:
    """The processes with this folder of policies."""
    words = b"\0".join([b"-m", b"atoll.egress", b"--policies", os.fsencode(policies), b""])
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command_line = Path(entry.path, "cmdline").read_bytes()  # empty of one that is only unreaped
                if words in command_line:
                    found.append(int(entry.name))
    return found


def _greeting(control: Path) -> tuple[socket.socket, str, list[socket.socket]] | None:
    """What the process behind a control socket says, with its sockets; None when there is none. Blocks."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets: list[socket.socket] = []
    try:
        link.settimeout(_GREETING_SECONDS)
        link.connect(str(control))
        said, descriptors, _, _ = socket.recv_fds(link, _GREETING_BYTES, len(_SOCKETS), socket.MSG_CMSG_CLOEXEC)
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        version = str(json.loads(said)["version"])
        link.settimeout(0)
    except (OSError, ValueError, KeyError, TypeError):
        _close([link, *sockets])
        return None
    return link, version, sockets


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _environment() -> dict[str, str]:
    """Nothing of the server's but where its modules are: its variables may hold secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8"}


def _bound(mark: int) -> list[socket.socket]:
    """In the order of `_SOCKETS`; DNS has one port for both."""
    made: list[socket.socket] = []
    try:
        made.extend(_socket(socket.SOCK_STREAM, mark) for _ in range(3))
        made.append(_socket(socket.SOCK_DGRAM, mark, made[2].getsockname()[1]))
    except OSError:
        _close(made)
        raise
    return made


def _socket(kind: socket.SocketKind, mark: int, port: int = 0) -> socket.socket:
    """On every address of the machine, since a packet is turned to that of the sandbox's own link; the packet rules
    keep everybody else off. IPv4 alone where the machine has no IPv6."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("", port))
        if kind == socket.SOCK_STREAM:
            made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
