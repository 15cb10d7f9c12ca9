"""What a restricted sandbox may reach: the lists of a revision's `networkControl`, checked and in one form. Pure.

Checked when a sandbox is allocated, since a revision is immutable and may be older than a check (SA-195, SA-196,
SA-200). The driver enforces it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.public_host import is_address_literal, is_host_name, is_internal_name
from atoll.domain.reserved_ranges import DENIED_IPV4, DENIED_IPV6
from atoll.domain.template import NetworkControl

_RESERVED = tuple(ip_network(each) for each in (*DENIED_IPV4, *DENIED_IPV6))
_WILDCARD = re.compile(r"\*\.(?P<name>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """All that a sandbox may reach. Neither list narrows the other (SA-193)."""

    addresses: tuple[str, ...]
    """Networks in canonical form, reached directly on every port."""
    domains: tuple[str, ...]
    """Lower-case names, and `*.name` for everything below one; reached through the egress proxy on 80 and 443."""


def egress_policy(control: NetworkControl | None) -> EgressPolicy | None:
    """The policy of a revision; None is default egress (SA-198, SA-199).

    Raises INVALID_REQUEST, not retryable, naming the entry that is malformed (SA-195) or reserved (SA-196).
    """
    if control is None or not control.restricts:
        return None
    addresses = tuple(_address(entry) for entry in _entries(control.address_allowlist)) if control.enabled else ()
    return EgressPolicy(addresses, tuple(_domain(entry) for entry in _entries(control.domain_allowlist)))


def _entries(listed: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(entry.strip() for entry in listed if entry.strip()))


def _address(entry: str) -> str:
    try:
        network = ip_network(entry)
    except ValueError:
        raise _refused("addressAllowlist", entry, "is no IP address or CIDR network") from None
    # A network that only contains such a range is fine: the range in it stays unreachable (SA-197).
    if any(network.version == one.version and network.subnet_of(one) for one in _RESERVED):  # type: ignore[arg-type]  # of one version
        raise _refused("addressAllowlist", entry, "is in a reserved infrastructure range")
    return str(network)


def _domain(entry: str) -> str:
    wildcard = _WILDCARD.fullmatch(entry)
    try:
        name = (wildcard["name"] if wildcard else entry).rstrip(".").lower().encode("idna").decode()
    except UnicodeError:
        raise _refused("domainAllowlist", entry, "is no domain name") from None
    if is_address_literal(name) or not is_host_name(name):
        raise _refused("domainAllowlist", entry, "is no domain name")
    if is_internal_name(name):
        raise _refused("domainAllowlist", entry, "names reserved infrastructure")
    return f"*.{name}" if wildcard else name


def _refused(field: str, entry: str, problem: str) -> RuntimeFailure:
    shown = entry[:100].encode("ascii", "backslashreplace").decode()
    return RuntimeFailure(f"networkControl.{field}: {shown} {problem}.", code=ErrorCode.INVALID_REQUEST)
