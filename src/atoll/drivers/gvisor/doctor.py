"""Examines whether this machine can run sandboxes, and says how to mend what is missing.

`atoll doctor` shows the findings; nothing is changed: what a check makes (a namespace, a mount, a sandbox) it unmakes.
Each check is small, has a time limit and never raises.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path

from atoll.domain.egress import EgressPolicy
from atoll.domain.errors import RuntimeFailure
from atoll.drivers.gvisor import addresses
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.images.default_image import default_image
from atoll.drivers.gvisor.nftables import ProxyPorts, ruleset
from atoll.drivers.gvisor.probe import probe_runsc
from atoll.drivers.process import ProgramError, ProgramMissing, run

SETUP = "sh deploy/setup-machine.sh"
NFT_MODULES = "modprobe -a nft_socket nft_redir nft_masq nft_fib_inet"
OLDEST_LINUX = (5, 10)
LITTLE_DISK = 10 << 30
NO_DISK = 3 << 30
_CHECK_SECONDS = 15.0
_PROGRAMS = {
    "skopeo": "fetches images from registries",
    "umoci": "unpacks images",
    "mmdebstrap": "builds the default image",
}
_CONTROLLERS = ("memory", "cpu", "pids")


class Status(StrEnum):
    """How a finding stands."""

    OK = "ok"
    """Nothing to do."""
    WARNING = "warning"
    """Sandboxes run, but something will be missed."""
    MISSING = "missing"
    """Sandboxes cannot run until it is mended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None
    """A command that mends it; None when there is none."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to look. The defaults are the machine's own; tests give others."""

    images: ImageStore
    agent: Path
    """The agent's binary."""
    runsc: Path = Path("runsc")
    python: Path = Path(sys.executable)
    """What the egress proxy runs with."""
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


async def examine(machine: Machine) -> list[Finding]:
    """Make every check and return the findings in a fixed order. Takes about a second."""
    checks: list[Awaitable[Finding]] = [
        _linux(),
        _root(),
        _runsc(machine),
        _control_groups(machine),
        _name_spaces(),
        _program("nft", "separates the networks of sandboxes", ["nft", "-c", "add table inet atoll_doctor"]),
        _forwarding(machine),
        _domain_control(machine),
        _private_mount(),
        *(_program(name, purpose, [name, "--version"]) for name, purpose in _PROGRAMS.items()),
        _agent(machine),
        _disk(machine),
        _default_image(machine),
    ]
    return list(await asyncio.gather(*checks))


async def _linux() -> Finding:
    release = os.uname().release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and (int(numbers[1]), int(numbers[2])) >= OLDEST_LINUX:
        return Finding("linux", Status.OK, f"Linux {release}")
    oldest = ".".join(map(str, OLDEST_LINUX))
    return Finding(
        "linux", Status.WARNING, f"Linux {release} is older than {oldest}, which nothing here is tested with"
    )


async def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", Status.OK, "runs as root")
    return Finding("root", Status.MISSING, "namespaces and control groups need root", "sudo atoll doctor")


async def _runsc(machine: Machine) -> Finding:
    try:
        traits = await probe_runsc(machine.runsc)
    except RuntimeFailure as failure:
        return Finding("runsc", Status.MISSING, failure.message, SETUP)
    workaround = "; needs /proc/sys/net hidden, which the driver does" if traits.hide_proc_sys_net else ""
    return Finding("runsc", Status.OK, f"{traits.version} boots a sandbox ({traits.platform}){workaround}")


async def _control_groups(machine: Machine) -> Finding:
    try:
        there = set((machine.cgroup / "cgroup.controllers").read_text().split())
        version = "2"
    except OSError:
        there = {name for name in _CONTROLLERS if (machine.cgroup / name / "cgroup.procs").exists()}
        version = "1"
    lacking = [name for name in _CONTROLLERS if name not in there]
    if lacking:
        detail = f"version {version} without the controllers {', '.join(lacking)}"
        return Finding("control groups", Status.MISSING, detail)
    return Finding("control groups", Status.OK, f"version {version} with {', '.join(_CONTROLLERS)}")


async def _name_spaces() -> Finding:
    name = f"atoll-doctor-{os.getpid()}"
    link = ["ip", "-n", name, "link", "add", "outside", "type", "veth", "peer", "name", "inside"]

    async def make() -> str:
        await run(["ip", "netns", "add", name], timeout=_CHECK_SECONDS)
        try:
            await run(link, timeout=_CHECK_SECONDS)
        finally:
            await run(["ip", "netns", "del", name], timeout=_CHECK_SECONDS)
        return "network namespaces with veth pairs can be made"

    return await _tried("network", make)


async def _forwarding(machine: Machine) -> Finding:
    file = machine.proc / "sys/net/ipv4/ip_forward"
    try:
        on = file.read_text().strip() == "1"
    except OSError:
        return Finding("forwarding", Status.MISSING, "this Linux has no IPv4 forwarding")
    if on:
        return Finding("forwarding", Status.OK, "IPv4 forwarding is on")
    if os.access(file, os.W_OK):
        return Finding("forwarding", Status.OK, "IPv4 forwarding is off; the driver turns it on when it starts")
    detail = "IPv4 forwarding is off and cannot be turned on from here"
    return Finding("forwarding", Status.WARNING, detail, "sysctl -w net.ipv4.ip_forward=1")


async def _domain_control(machine: Machine) -> Finding:
    """Whatever a list of domains takes: without it only sandboxes that have one cannot run, so it is a warning."""
    name = "domain control"
    try:
        await run([str(machine.python), "-P", "-m", "atoll.egress", "--help"], timeout=_CHECK_SECONDS)
    except ProgramError as error:
        detail = f"the egress proxy does not start, so sandboxes with a list of domains cannot run: {error}"
        return Finding(name, Status.WARNING, detail, "pip install --force-reinstall .")
    try:
        await run(["setsid", "--fork", "true"], timeout=_CHECK_SECONDS)
        await run(["nft", "--version"], timeout=_CHECK_SECONDS)
        # In a namespace that ends with the program: the rules are in force there for a moment, and nowhere else.
        rules = _rules_with_every_feature().encode()
        await run(["unshare", "--net", "--", "nft", "-f", "-"], input=rules, timeout=_CHECK_SECONDS)
    except ProgramMissing as error:
        return Finding(name, Status.WARNING, f"sandboxes with a list of domains cannot run: {error}", SETUP)
    except ProgramError as error:
        detail = f"this Linux refuses the packet rules, so sandboxes with a list of domains cannot run: {error}"
        return Finding(name, Status.WARNING, detail, NFT_MODULES)
    try:
        with socket.socket() as marked:
            marked.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)
    except OSError:
        detail = "sockets cannot be marked, so sandboxes with a list of domains cannot run"
        return Finding(name, Status.WARNING, detail, "sudo atoll doctor")
    return Finding(name, Status.OK, "lists of domains can be held to: packet rules, marked sockets, the egress proxy")


def _rules_with_every_feature() -> str:
    plan = addresses.plan("000000", IPv4Network("10.231.0.0/16"), [])
    policy = EgressPolicy(("203.0.113.8/32",), ("example.com",))
    ports = ProxyPorts(tls=1, http=2, dns=3, mark=1)
    return ruleset("atoll_doctor", "atdoctor", plan, restricted={"atdoctor0": policy}, proxy=ports)


async def _private_mount() -> Finding:
    async def mount() -> str:
        await run(["unshare", "--mount", "--", "mount", "-t", "tmpfs", "none", "/mnt"], timeout=_CHECK_SECONDS)
        return "private mount namespaces and tmpfs work"

    return await _tried("mounts", mount)


async def _program(name: str, purpose: str, argv: list[str]) -> Finding:
    async def call() -> str:
        completed = await run(argv, timeout=_CHECK_SECONDS)
        words = completed.stdout.decode("utf-8", "replace").split("\n", 1)[0].strip()
        return f"{words or name}: {purpose}"

    return await _tried(name, call)


async def _agent(machine: Machine) -> Finding:
    if not os.access(machine.agent, os.X_OK):
        return Finding("agent", Status.MISSING, "the agent's program was not built", "pip install --force-reinstall .")
    try:
        await run([str(machine.agent), "--version"], timeout=_CHECK_SECONDS, check=False)
    except ProgramError:
        return Finding(
            "agent", Status.MISSING, "the agent's program is not for this machine", "pip install --force-reinstall ."
        )
    return Finding("agent", Status.OK, f"{machine.agent.stat().st_size / 1024:.0f} KiB, static")


async def _disk(machine: Machine) -> Finding:
    place = machine.images.root
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / (1 << 30):.1f} GiB free for images and sandboxes"
    if free < NO_DISK:
        return Finding("disk", Status.MISSING, detail)
    return Finding("disk", Status.WARNING if free < LITTLE_DISK else Status.OK, detail)


async def _default_image(machine: Machine) -> Finding:
    digest = default_image(machine.images)
    if digest is None:
        return Finding("default image", Status.WARNING, "not built yet (a minute or two)", "atoll image build")
    return Finding("default image", Status.OK, digest)


async def _tried(name: str, attempt: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(name, Status.OK, await attempt())
    except ProgramError as error:
        return Finding(name, Status.MISSING, str(error), SETUP)
