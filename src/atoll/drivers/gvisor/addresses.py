"""Which addresses sandboxes get. Pure.

A slot is a number of one namespace, reused after its end; four addresses belong to it in each IP version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_BLOCK_PREFIX = 20
"""A thousand sandboxes."""
_ADDRESSES_A_SLOT = 4


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


def plan(mark: str, within: IPv4Network, in_use: Iterable[IPv4Network]) -> AddressPlan:
    """The ranges for a mark: a /20 of `within` that the machine does not use, looked for from a place the mark decides.

    So several servers on one machine can have the same setting. A range of a /20 or smaller is taken whole. Raises
    `ValueError` when the range is smaller than a /24 or nothing in it is free.
    """
    if within.prefixlen > 24:
        raise ValueError(f"{within} is smaller than a /24")
    digest = hashlib.sha256(mark.encode()).digest()
    range6 = IPv6Network((bytes([0xFD]) + digest[:5] + bytes(10), 48))
    taken = list(in_use)
    blocks = list(within.subnets(new_prefix=max(within.prefixlen, _BLOCK_PREFIX)))
    start = digest[5] % len(blocks)
    for block in blocks[start:] + blocks[:start]:
        if not any(block.overlaps(network) for network in taken):
            return AddressPlan(block, range6)
    raise ValueError(f"nothing in {within} is free")
