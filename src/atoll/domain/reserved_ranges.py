"""Address ranges that no sandbox may ever reach, whatever its revision lists (SA-197). Pure.

The packet rules, the egress proxy and the checks of `networkControl` go by them.
"""

from __future__ import annotations

DENIED_IPV4 = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
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
"""Private, carrier-grade NAT, loopback, one cloud's host agent, link-local with the metadata service, protocol,
benchmark, multicast and reserved ranges.

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
