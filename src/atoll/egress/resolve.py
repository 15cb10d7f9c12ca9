"""Finds the addresses of names that sandboxes may reach, and leaves out those of infrastructure (SA-197).

A name server's answer is not trusted: a listed name that leads into the machine's own networks leads nowhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from atoll.domain.reserved_ranges import DENIED_IPV4, DENIED_IPV6

Address = IPv4Address | IPv6Address

_LIMIT_SECONDS = 5.0
_CACHED_NAMES = 4_096
AT_ONCE = 1_024
"""Questions, each with a descriptor or two."""
_DENIED = tuple(ip_network(each) for each in (*DENIED_IPV4, *DENIED_IPV6))


class Resolver:
    """One resolver for all sandboxes, with a bounded cache by the answers' own times to live."""

    def __init__(self, name_servers: Sequence[str], allowed: Sequence[str] = ()) -> None:
        """`name_servers`: `IP` or `IP#PORT`; none are the machine's own. `allowed`: private networks that the operator
        opened."""
        self._resolver = dns.asyncresolver.Resolver(configure=not name_servers)
        if name_servers:
            split = [server.partition("#") for server in name_servers]
            self._resolver.nameservers = [address for address, _, _ in split]
            self._resolver.nameserver_ports = {address: int(port) for address, _, port in split if port}
        self._resolver.cache = dns.resolver.LRUCache(_CACHED_NAMES)
        self._allowed = tuple(ip_network(each) for each in allowed)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._known: dict[tuple[str, str], tuple[float, list[Address]]] = {}
        """Until when an answer holds, and what it was: a hundred times as fast as asking the library's cache."""

    async def addresses(self, name: str, kind: str) -> list[Address]:
        """The addresses of a kind (`A`, `AAAA`) that may be reached; none when there are none or nobody says so."""
        holds_until, known = self._known.get((name, kind), (0.0, []))
        if time.time() < holds_until:
            return known
        try:
            async with asyncio.timeout(_LIMIT_SECONDS), self._slots:
                found = await self._resolver.resolve(
                    f"{name}.", dns.rdatatype.from_text(kind), lifetime=_LIMIT_SECONDS, raise_on_no_answer=False
                )
        except (dns.exception.DNSException, OSError):
            return []
        listed = [ip_address(record.address) for record in found.rrset or ()]
        reached = [address for address in listed if self._may_be_reached(address)]
        if len(self._known) >= _CACHED_NAMES:
            self._known.clear()
        self._known[name, kind] = (found.expiration, reached)
        return reached

    async def all_addresses(self, name: str) -> list[Address]:
        """Of both kinds, IPv4 first."""
        four, six = await asyncio.gather(self.addresses(name, "A"), self.addresses(name, "AAAA"))
        return [*four, *six]

    def _may_be_reached(self, address: Address) -> bool:
        if any(address in network for network in self._allowed if network.version == address.version):
            return True
        return not any(address in network for network in _DENIED if network.version == address.version)
