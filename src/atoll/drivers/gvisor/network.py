"""Network namespaces for sandboxes: a small pool of ready ones, the packet rules, and the removal of leaked ones.

gVisor takes the addresses off the interface when it starts, so a namespace serves one start and is then thrown away.
Called by the driver. The truth is the machine: a namespace is in use when the `network.json` of an instance names it,
everything else with our prefix is the pool's, and is removed at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path

import structlog

from atoll.domain.egress import EgressPolicy
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers import process
from atoll.drivers.gvisor import addresses
from atoll.drivers.gvisor.addresses import AddressPlan
from atoll.drivers.gvisor.egress import EgressProxy
from atoll.drivers.gvisor.layout import Layout
from atoll.drivers.gvisor.nftables import ruleset

_NETNS_DIR = Path("/run/netns")
_NET_CLASS = Path("/sys/class/net")
_PROC_NET = Path("/proc/sys/net")
_IP_SECONDS = 30.0
_BATCH = 4
_LOOK_SECONDS = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One ready network namespace."""

    slot: int
    name: str
    interface: str

    @property
    def path(self) -> Path:
        """What the OCI configuration joins."""
        return _NETNS_DIR / self.name


class Network:
    """The rules and the pool of one driver."""

    def __init__(
        self,
        layout: Layout,
        *,
        pool_size: int,
        address_range: IPv4Network,
        allowed_private: Sequence[str] = (),
        name_servers: Sequence[str] = (),
    ) -> None:
        self._layout = layout
        self._proxy = EgressProxy(
            layout.run_dir,
            layout.egress_dir,
            mark=int(layout.mark, 16) or 1,
            name_servers=name_servers,
            allowed=allowed_private,
        )
        self._in_use: Callable[[], set[int]] = set
        self._restricted: dict[int, EgressPolicy] = {}
        """The policies in force, by slot; what is in the folders of the instances is the truth."""
        self._loading = asyncio.Lock()
        self._pool_size = pool_size
        self._address_range = address_range
        self._allowed_private = allowed_private
        self._ready: list[Namespace] = []
        self._being_made: set[int] = set()
        self._next_slot = 0
        self._plan: AddressPlan | None = None
        self._ipv6 = False
        self._want = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, in_use: Callable[[], set[int]], restricted: Mapping[int, EgressPolicy]) -> None:
        """Put the rules in force, then let the machine forward, then remove what an earlier process left, then fill
        the pool. `restricted`: the policies of the sandboxes that there are, by slot."""
        self._ipv6 = _ipv6_is_there()
        self._plan = await self._choose_plan()
        self._restricted, self._in_use = dict(restricted), in_use
        if not any(policy.domains for policy in restricted.values()):
            await self._proxy.end()  # of a server that was killed after the last sandbox that needed it
        async with self._loading:
            await self._load_rules()
        _let_the_machine_forward(ipv6=self._ipv6)
        await self.remove(slot for slot in self.existing() if slot not in in_use())
        self._tasks = [asyncio.create_task(self._keep_full()), asyncio.create_task(self._keep_order())]

    async def stop(self) -> None:
        """Stop filling and throw the unused namespaces away. Rules, used namespaces and, if a sandbox
        needs it, the egress proxy stay: sandboxes go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        in_use = self._in_use()
        if any(policy.domains for slot, policy in self._restricted.items() if slot in in_use):
            await self._proxy.leave()
        else:
            serving = self._proxy.ports is not None
            await self._proxy.end()
            if serving:
                # Nothing may be turned to ports that are free now.
                async with self._loading:
                    await self._load_rules(by_name=False)
        unused, self._ready = self._ready, []
        await self.remove(namespace.slot for namespace in unused)

    async def take(self) -> Namespace:
        """A ready namespace, or a new one when the pool is empty. Raises NAMESPACE_DENIED when there can be none."""
        namespace = self._ready.pop(0) if self._ready else (await self._make(1))[0]
        if 2 * len(self._ready) <= self._pool_size:
            self._want.set()
        return namespace

    async def restrict(self, slot: int, policy: EgressPolicy | None) -> None:
        """Put the policy of the next sandbox of a slot in force, before it starts."""
        async with self._loading:
            before = self._restricted.get(slot)
            if before == policy:
                return
            self._note(slot, policy)
            try:
                await self._load_rules()
            except BaseException:
                self._note(slot, before)  # what is not in force must not count as such at the next look
                raise

    def _note(self, slot: int, policy: EgressPolicy | None) -> None:
        if policy is None:
            self._restricted.pop(slot, None)
        else:
            self._restricted[slot] = policy

    def give_back(self, namespace: Namespace) -> None:
        """Return one that was taken and not written down anywhere."""
        self._ready.append(namespace)

    def existing(self) -> set[int]:
        """The slots for which the machine has a namespace."""
        return _numbers(self._layout.namespace_prefix, _NETNS_DIR)

    async def remove(self, slots: Iterable[int]) -> None:
        """Remove namespaces. Fine when they are gone.

        The kernel takes the interface with the namespace, a moment later and many at once; deleting it by name costs
        40 ms each under the lock that every start needs, and is left for interfaces that lost their namespace
        (`_sweep`).
        """
        namespaces = [self._namespace(slot) for slot in slots]
        lines = [f"netns del {namespace.name}\n" for namespace in namespaces if namespace.path.exists()]
        if not lines:
            return
        # -force: go on after a line that failed because its object went away by itself.
        await process.run(
            ["ip", "-force", "-batch", "-"], input="".join(lines).encode(), timeout=_IP_SECONDS, check=False
        )
        if any(namespace.path.exists() for namespace in namespaces):
            raise RuntimeFailure("a network namespace could not be removed", code=ErrorCode.NAMESPACE_DENIED)

    def interfaces(self) -> set[int]:
        """The slots for which the machine has an interface."""
        return _numbers(self._layout.interface_prefix, _NET_CLASS)

    async def remove_all(self) -> None:
        """Take everything off the machine; only when no sandbox is left and no server runs."""
        await self.remove(self.existing())
        for slot in self.interfaces():
            await process.run(["ip", "link", "del", self._namespace(slot).interface], timeout=_IP_SECONDS, check=False)
        await self.remove_rules()

    async def remove_rules(self) -> None:
        """Take the rules and the proxy off the machine; only when no sandbox is left (tests, uninstalling)."""
        await process.run(["nft", "delete", "table", "inet", self._layout.table], timeout=_IP_SECONDS, check=False)
        await self._proxy.end()
        self._proxy.remove_policies()

    def _namespace(self, slot: int) -> Namespace:
        return Namespace(slot, f"{self._layout.namespace_prefix}{slot}", f"{self._layout.interface_prefix}{slot}")

    async def _choose_plan(self) -> AddressPlan:
        # Kept in a file: interfaces of sandboxes that outlived the server have addresses of the range chosen then.
        kept = self._layout.run_dir / "address-range"
        with contextlib.suppress(OSError, ValueError):
            block = IPv4Network(kept.read_text().strip())
            if block.subnet_of(self._address_range):
                return addresses.plan(self._layout.mark, block, [])
        listed = await process.run(["ip", "-j", "-4", "route", "show", "table", "all"], timeout=_IP_SECONDS)
        taken = [
            IPv4Network(route["dst"], strict=False)
            for route in json.loads(listed.stdout or b"[]")
            if route.get("dst", "default") != "default"
            and not route.get("dev", "").startswith(self._layout.interface_prefix)
        ]
        plan = addresses.plan(self._layout.mark, self._address_range, taken)
        kept.write_text(f"{plan.range4}\n")
        return plan

    async def _load_rules(self, *, by_name: bool = True) -> None:
        assert self._plan is not None  # noqa: S101 - start() chose it
        plan, policies = self._plan, self._restricted
        by_address: dict[IPv4Address | IPv6Address, EgressPolicy] = {}
        for slot, policy in policies.items():
            ends = plan.slot(slot)
            by_address |= {ends.sandbox4: policy, ends.sandbox6: policy}
        await asyncio.to_thread(self._proxy.replace_policies, by_address)
        by_name = by_name and any(policy.domains for policy in policies.values())
        text = ruleset(
            self._layout.table,
            self._layout.interface_prefix,
            plan,
            self._allowed_private,
            restricted={self._namespace(slot).interface: policy for slot, policy in policies.items()},
            proxy=await self._proxy.start() if by_name else self._proxy.ports,
        )
        try:
            await process.run(["nft", "-f", "-"], input=text.encode(), timeout=_IP_SECONDS)
        except process.ProgramError as error:
            _log.error("packet rules refused", error=str(error))
            raise RuntimeFailure(
                "the network rules could not be put in force; `atoll doctor` says what is missing",
                code=ErrorCode.NAMESPACE_DENIED,
            ) from error

    async def _keep_order(self) -> None:
        orphans: set[int] = set()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(process.ProgramError, RuntimeFailure):
                await self._check_rules()
                orphans = await self._sweep(orphans)

    async def _sweep(self, seen_before: set[int]) -> set[int]:
        """Delete interfaces that were without a namespace at two looks, so not those that the kernel is just taking
        away."""
        orphans = self.interfaces() - self.existing() - self._being_made
        for slot in orphans & seen_before:
            link = self._namespace(slot).interface
            await process.run(["ip", "link", "del", link], timeout=_IP_SECONDS, check=False)
        return orphans - seen_before

    async def _check_rules(self) -> None:
        # `systemctl restart nftables` and the like flush every table, ours too.
        tables = await process.run(["nft", "list", "tables", "inet"], timeout=_IP_SECONDS)
        if f"table inet {self._layout.table}".encode() not in tables.stdout.splitlines():
            _log.warning("packet rules were gone and are put back", table=self._layout.table)
            async with self._loading:
                await self._load_rules()

    async def _keep_full(self) -> None:
        # Filled again when half empty, several at once: each by itself would compete with the boot that took the last.
        while True:
            self._want.clear()
            try:
                while (missing := self._pool_size - len(self._ready)) > 0:
                    self._ready += await self._make(min(missing, _BATCH))
            except (RuntimeFailure, process.ProgramError) as error:
                _log.warning("network namespaces cannot be made", error=str(error))
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            await self._want.wait()

    def _free_slots(self, count: int) -> list[int]:
        assert self._plan is not None  # noqa: S101 - start() chose it
        taken = self.existing() | self.interfaces() | self._being_made
        free: list[int] = []
        for step in range(self._plan.slots):
            slot = (self._next_slot + step) % self._plan.slots
            if slot not in taken:
                free.append(slot)
                if len(free) == count:
                    # Going round, so that late packets of a finished sandbox do not reach the next one.
                    self._next_slot = (slot + 1) % self._plan.slots
                    return free
        raise RuntimeFailure("no network address is free for another sandbox", code=ErrorCode.NAMESPACE_DENIED)

    async def _make(self, count: int) -> list[Namespace]:
        namespaces = [self._namespace(slot) for slot in self._free_slots(count)]
        slots = {namespace.slot for namespace in namespaces}
        self._being_made |= slots
        try:
            outside = "".join(self._outside(namespace) for namespace in namespaces)
            await process.run(["ip", "-batch", "-"], input=outside.encode(), timeout=_IP_SECONDS)
            for namespace in namespaces:
                _harden(namespace.interface, ipv6=self._ipv6)
                inside = self._inside(namespace).encode()
                await process.run(["ip", "-n", namespace.name, "-batch", "-"], input=inside, timeout=_IP_SECONDS)
        except BaseException as error:
            await asyncio.shield(self._remove_quietly(slots))
            if isinstance(error, process.ProgramError):
                _log.warning("network namespace refused", error=str(error))
                raise RuntimeFailure(
                    "the machine refused a network namespace; `atoll doctor` says what is missing",
                    code=ErrorCode.NAMESPACE_DENIED,
                ) from error
            raise
        finally:
            self._being_made -= slots
        return namespaces

    async def _remove_quietly(self, slots: Iterable[int]) -> None:
        with contextlib.suppress(RuntimeFailure, process.ProgramError):
            await self.remove(slots)

    def _outside(self, namespace: Namespace) -> str:
        assert self._plan is not None  # noqa: S101 - start() chose it
        ends, link = self._plan.slot(namespace.slot), namespace.interface
        lines = [
            f"netns add {namespace.name}",
            f"link add {link} type veth peer name eth0 netns {namespace.name}",
            f"link set {link} addrgenmode none",
            f"addr add {ends.gateway4}/30 dev {link}",
        ]
        if self._ipv6:
            lines.append(f"addr add {ends.gateway6}/126 dev {link} nodad")
        return "\n".join([*lines, f"link set {link} up", ""])

    def _inside(self, namespace: Namespace) -> str:
        assert self._plan is not None  # noqa: S101 - start() chose it
        ends = self._plan.slot(namespace.slot)
        lines = ["link set lo up", "link set eth0 addrgenmode none", f"addr add {ends.sandbox4}/30 dev eth0"]
        if self._ipv6:
            lines.append(f"addr add {ends.sandbox6}/126 dev eth0 nodad")
        lines += ["link set eth0 up", f"route add default via {ends.gateway4}"]
        if self._ipv6:
            lines.append(f"route add default via {ends.gateway6}")
        return "\n".join([*lines, ""])


def _numbers(prefix: str, folder: Path) -> set[int]:
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return set()
    return {int(name[len(prefix) :]) for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit()}


def _ipv6_is_there() -> bool:
    try:
        return (_PROC_NET / "ipv6/conf/all/disable_ipv6").read_text().strip() == "0"
    except OSError:
        return False


def _let_the_machine_forward(*, ipv6: bool) -> None:
    _set(_PROC_NET / "ipv4/ip_forward", "1")
    if not ipv6:
        return
    # A machine that forwards ignores router advertisements unless told otherwise, and would lose its own default route.
    for accept in (_PROC_NET / "ipv6/conf").glob("*/accept_ra"):
        with contextlib.suppress(OSError):
            if accept.read_text().strip() == "1":
                accept.write_text("2")
    _set(_PROC_NET / "ipv6/conf/all/forwarding", "1")


def _set(path: Path, value: str) -> None:
    try:
        if path.read_text().strip() != value:
            path.write_text(value)
    except OSError as error:
        raise RuntimeFailure(
            "the machine does not let its packets be forwarded; `atoll doctor` says what is missing",
            code=ErrorCode.NAMESPACE_DENIED,
        ) from error


def _harden(interface: str, *, ipv6: bool) -> None:
    """No advertisement or redirect from a sandbox is believed."""
    values = {
        "ipv4": {"accept_redirects": "0", "send_redirects": "0"},
        "ipv6": {"accept_ra": "0", "accept_redirects": "0"},
    }
    for version, settings in values.items():
        if version == "ipv6" and not ipv6:
            continue
        for name, value in settings.items():
            with contextlib.suppress(OSError):
                (_PROC_NET / version / "conf" / interface / name).write_text(value)
