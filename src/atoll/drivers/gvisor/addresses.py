"""Which addresses sandboxes get and which they may never reach. Pure.

A slot is a number of one namespace, reused after its end; four addresses belong to it in each IP version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_CANDIDATES = IPv4Network("10.192.0.0/12")
_CANDIDATE_PREFIX = 18
_ADDRESSES_A_SLOT = 4

DENIED_IPV4 = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""Private, carrier-grade NAT, loopback, link-local with the metadata service, protocol, benchmark, multicast and
reserved ranges.

203.0.113.0/24 is left out on purpose: nothing lives there, and the tests use it as their internet."""

DENIED_IPV6 = (
    "::/8",
    "100::/64",
    "2001::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
"""`::/8` holds the unspecified and the loopback address and every way to write an IPv4 address (mapped, compatible,
NAT64); Teredo and 6to4 carry IPv4 addresses too; the rest is unique-local, link-local, site-local and multicast."""


@dataclass(frozen=True, slots=True)
class SlotAddresses:
    """Both ends of one link. The gateway is the machine's end."""

    gateway4: IPv4Address
    sandbox4: IPv4Address
    gateway6: IPv6Address
    sandbox6: IPv6Address


@dataclass(frozen=True, slots=True)
class AddressPlan:
    """The ranges of one data directory."""

    range4: IPv4Network
    range6: IPv6Network

    @property
    def slots(self) -> int:
        """How many namespaces there can be at once."""
        return self.range4.num_addresses // _ADDRESSES_A_SLOT

    def slot(self, number: int) -> SlotAddresses:
        """The addresses of a slot; /30 in IPv4, /126 in IPv6."""
        if not 0 <= number < self.slots:
            raise ValueError(number)
        offset = number * _ADDRESSES_A_SLOT
        first4, first6 = self.range4.network_address + offset, self.range6.network_address + offset
        return SlotAddresses(first4 + 1, first4 + 2, first6 + 1, first6 + 2)


def plan(mark: str, range4: IPv4Network | None, in_use: Iterable[IPv4Network]) -> AddressPlan:
    """The ranges for a mark: the given IPv4 range, or the first one free on the machine, looked for from a place the
    mark decides.

    Raises `ValueError` when the given range is smaller than /24 or none is free.
    """
    digest = hashlib.sha256(mark.encode()).digest()
    range6 = IPv6Network((bytes([0xFD]) + digest[:5] + bytes(10), 48))
    if range4 is not None:
        if range4.prefixlen > 24:
            raise ValueError(f"{range4} is smaller than a /24")
        return AddressPlan(range4, range6)
    taken = list(in_use)
    candidates = list(_CANDIDATES.subnets(new_prefix=_CANDIDATE_PREFIX))
    start = digest[5] % len(candidates)
    for candidate in candidates[start:] + candidates[:start]:
        if not any(candidate.overlaps(network) for network in taken):
            return AddressPlan(candidate, range6)
    raise ValueError(f"no free range in {_CANDIDATES}")
