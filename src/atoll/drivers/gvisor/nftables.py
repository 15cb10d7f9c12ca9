"""The packet rules around all sandboxes of one data directory, as text for `nft -f`. Pure.

The rules name interfaces by prefix, not one by one: they stand before the first sandbox starts, no start or end changes
them, and an interface of ours is never without them. Only restricted sandboxes are named, in sets. Called by `network`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import collapse_addresses, ip_network

from atoll.domain.egress import EgressPolicy
from atoll.domain.reserved_ranges import DENIED_IPV4, DENIED_IPV6
from atoll.drivers.gvisor.addresses import AddressPlan


@dataclass(frozen=True, slots=True)
class ProxyPorts:
    """Where the egress proxy listens on the machine."""

    tls: int
    http: int
    dns: int
    """UDP and TCP."""
    mark: int
    """Of its sockets. Setting one takes CAP_NET_ADMIN or CAP_NET_RAW, so no ordinary program's has it."""


def ruleset(
    table: str,
    interface_prefix: str,
    plan: AddressPlan,
    allowed_private: Sequence[str] = (),
    *,
    restricted: Mapping[str, EgressPolicy] | None = None,
    proxy: ProxyPorts | None = None,
) -> str:
    """One transaction that makes or replaces the table.

    `fib … missing` drops a packet whose source address does not belong behind the interface it came from, so no
    sandbox can speak for another. Everything addressed to the machine itself ends in `host`, on whichever address of
    it.

    `restricted` are the policies by interface: such a sandbox reaches its addresses, and while there is a `proxy` its
    web connections and names are turned to it. Everything else of it is dropped (SA-189 … SA-193).
    """
    policies = restricted or {}
    allowed = [ip_network(network) for network in allowed_private]
    allowed4 = "".join(f"    ip daddr {network} accept\n" for network in allowed if network.version == 4)
    allowed6 = "".join(f"    ip6 daddr {network} accept\n" for network in allowed if network.version == 6)
    sandboxes = f'"{interface_prefix}*"'
    return f"""\
table inet {table} {{}}
delete table inet {table}
table inet {table} {{
  set denied4 {{
    type ipv4_addr
    flags interval
    elements = {{ {", ".join(DENIED_IPV4)} }}
  }}
  set denied6 {{
    type ipv6_addr
    flags interval
    elements = {{ {", ".join(DENIED_IPV6)} }}
  }}
  set restricted {{
    type ifname
{_elements(f'"{name}"' for name in policies)}\
  }}
  set by_domain {{
    type ifname
{_elements(f'"{name}"' for name, policy in policies.items() if policy.domains)}\
  }}
  set allowed4 {{
    type ifname . ipv4_addr
    flags interval
    auto-merge
{_elements(_allowed(policies, 4))}\
  }}
  set allowed6 {{
    type ifname . ipv6_addr
    flags interval
    auto-merge
{_elements(_allowed(policies, 6))}\
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname {sandboxes} goto from_sandbox
    oifname {sandboxes} goto to_sandbox
  }}
  chain from_sandbox {{
    fib saddr . iif oif missing drop
    oifname {sandboxes} drop
    iifname @restricted goto from_restricted
{allowed4}{allowed6}\
    ip daddr @denied4 drop
    ip6 daddr @denied6 drop
    ct state invalid drop
    accept
  }}
  chain from_restricted {{
    ip daddr @denied4 drop
    ip6 daddr @denied6 drop
    ct state invalid drop
    iifname . ip daddr @allowed4 accept
    iifname . ip6 daddr @allowed6 accept
    drop
  }}
  chain to_sandbox {{
    ct state established,related accept
    drop
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname {sandboxes} goto host
  }}
  chain host {{
    fib saddr . iif oif missing drop
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} ip6 hoplimit 255 accept
{_to_proxy(proxy)}\
    drop
  }}
{_redirects(proxy)}\
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {plan.range4} oifname != {sandboxes} masquerade
    ip6 saddr {plan.range6} oifname != {sandboxes} masquerade
  }}
}}
"""


def _elements(elements: Iterable[str]) -> str:
    listed = ", ".join(elements)
    return f"    elements = {{ {listed} }}\n" if listed else ""


def _allowed(policies: Mapping[str, EgressPolicy], version: int) -> Iterator[str]:
    for name, policy in policies.items():
        for network in collapse_addresses(
            [each for each in map(ip_network, policy.addresses) if each.version == version]  # type: ignore[type-var]  # of one version
        ):
            yield f'"{name}" . {network}'


def _to_proxy(proxy: ProxyPorts | None) -> str:
    """What may come in: connections that were turned to the proxy, which look as if they were addressed to it.

    A connection begins only at a socket with the proxy's mark: when the proxy and the server have both been killed, the
    ports are free, and whoever takes them must not get what sandboxes send. What goes on is not looked up, as the
    socket is not made yet when the last packet of the handshake comes.
    """
    if proxy is None:
        return ""
    ports = f"{proxy.tls}, {proxy.http}, {proxy.dns}"
    return (
        f"    iifname @by_domain tcp dport {{ {ports} }} tcp flags & (syn | ack) != syn accept\n"
        f"    iifname @by_domain tcp dport {{ {ports} }} socket mark {proxy.mark} accept\n"
        f"    iifname @by_domain udp dport {proxy.dns} socket mark {proxy.mark} accept\n"
    )


def _redirects(proxy: ProxyPorts | None) -> str:
    """Where to is left to the proxy, which goes by the name: 80, 443, DNS, and 3128 for programs that speak to proxies.

    Nobody else on the network reaches it.
    """
    if proxy is None:
        return ""
    ports = f"{proxy.tls}, {proxy.http}, {proxy.dns}"
    return f"""\
  chain others {{
    type filter hook input priority filter; policy accept;
    iifname != @by_domain tcp dport {{ {ports} }} socket mark {proxy.mark} drop
    iifname != @by_domain udp dport {proxy.dns} socket mark {proxy.mark} drop
  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname @by_domain goto to_proxy
  }}
  chain to_proxy {{
    iifname . ip daddr @allowed4 return
    iifname . ip6 daddr @allowed6 return
    tcp dport 443 redirect to :{proxy.tls}
    tcp dport {{ 80, 3128 }} redirect to :{proxy.http}
    meta l4proto {{ tcp, udp }} th dport 53 redirect to :{proxy.dns}
  }}
"""
