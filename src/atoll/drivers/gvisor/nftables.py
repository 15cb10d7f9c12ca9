"""The packet rules around all sandboxes of one data directory, as text for `nft -f`. Pure.

The rules name interfaces by prefix, not one by one: they stand before the first sandbox starts, no start or end changes
them, and an interface of ours is never without them. Called by `network`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from atoll.drivers.gvisor.addresses import DENIED_IPV4, DENIED_IPV6, AddressPlan


def ruleset(table: str, interface_prefix: str, plan: AddressPlan, allowed_private: Sequence[str] = ()) -> str:
    """One transaction that makes or replaces the table.

    `fib … missing` drops a packet whose source address does not belong behind the interface it came from, so no
    sandbox can speak for another. Everything addressed to the machine itself ends in `host`, on whichever address of
    it.
    """
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
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname {sandboxes} goto from_sandbox
    oifname {sandboxes} goto to_sandbox
  }}
  chain from_sandbox {{
    fib saddr . iif oif missing drop
    oifname {sandboxes} drop
{allowed4}{allowed6}\
    ip daddr @denied4 drop
    ip6 daddr @denied6 drop
    ct state invalid drop
    accept
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
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} ip6 hoplimit 255 accept
    drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {plan.range4} oifname != {sandboxes} masquerade
    ip6 saddr {plan.range6} oifname != {sandboxes} masquerade
  }}
}}
"""
