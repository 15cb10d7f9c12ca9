"""What counts as a host of the public internet: names that may be one, and addresses that are one.

Pure. `atoll.domain.webhook` refuses URLs by it, `atoll.outbound` refuses addresses by it before every connection. What
is not known to be public is not.
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_HOST_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_INTERNAL_ENDINGS = frozenset(
    {"localhost", "localdomain", "local", "internal", "svc", "intranet", "lan", "corp", "home", "private", "onion"}
)
"""Last labels that never name a host of the internet: those of the specification, and what networks use alike."""
_INTERNAL_SUFFIXES = (".home.arpa",)

_NOT_PUBLIC_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network; Linux takes it for this machine
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT, and one cloud's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # one cloud's host agent, on an address that looks public
            "169.254.0.0/16",  # link-local, cloud metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is handed out. Outside are loopback, ULA, link-local, multicast, and IPv4 in disguise (mapped, NAT64)."""
_NOT_PUBLIC_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo carries IPv4 addresses
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4 carries IPv4 addresses
            "3fff::/20",  # documentation
        ),
    )
)


def is_public_address(address: Address) -> bool:
    """Whether a connection to the address leaves for the internet (SA-295, SA-321)."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def is_host_name(host: str) -> bool:
    """Whether it is a DNS name in lower case, internationalised ones in their `xn--` form, without a final dot."""
    return len(host) <= MAX_HOST_LENGTH and all(_LABEL.fullmatch(label) for label in host.split("."))


def is_address_literal(host: str) -> bool:
    """Whether some program takes it for an IP address (SA-293): dotted, decimal, octal, hexadecimal, shortened, IPv6.

    No top-level domain is a number, so a host whose last label is one is an address or nothing.
    """
    return host.startswith("[") or ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def is_internal_name(host: str) -> bool:
    """Whether a name is one of an internal network (SA-294). One without a dot always is."""
    return "." not in host or host.rpartition(".")[2] in _INTERNAL_ENDINGS or host.endswith(_INTERNAL_SUFFIXES)
