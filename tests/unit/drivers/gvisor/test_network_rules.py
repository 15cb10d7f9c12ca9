"""Address plan and packet rules, as data and as text; whether they hold is proven by the driver contract."""

from ipaddress import IPv4Network, ip_address, ip_network

import pytest

from atoll.domain import reserved_ranges
from atoll.drivers.gvisor import addresses
from atoll.drivers.gvisor.nftables import ruleset

RANGE = IPv4Network("10.231.0.0/16")
PLAN = addresses.plan("abc123", RANGE, [])


def denied(address: str) -> bool:
    ranges = reserved_ranges.DENIED_IPV4 if ip_address(address).version == 4 else reserved_ranges.DENIED_IPV6
    return any(ip_address(address) in ip_network(network) for network in ranges)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "127.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.127.255.255",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "64:ff9b::a00:1",
        "fd00::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2002:a00:1::1",
        "2001::1",
        "fd00:ec2::254",
    ],
)
def test_inner_addresses_are_denied(address: str) -> None:
    assert denied(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "203.0.113.7", "172.32.0.1", "100.128.0.1", "11.0.0.1", "2606:4700::1", "2001:db8::1"]
)
def test_the_internet_is_not(address: str) -> None:
    assert not denied(address)


def test_every_sandbox_address_is_denied_to_the_others() -> None:
    for number in (0, PLAN.slots - 1):
        slot = PLAN.slot(number)
        assert all(denied(str(end)) for end in (slot.gateway4, slot.sandbox4, slot.gateway6, slot.sandbox6))


def test_slots_do_not_overlap_and_stay_in_the_range() -> None:
    plan = addresses.plan("abc123", IPv4Network("10.9.8.0/24"), [])
    seen = {end for number in range(plan.slots) for end in (plan.slot(number).gateway4, plan.slot(number).sandbox4)}
    assert plan.slots == 64
    assert len(seen) == 128
    assert all(end in plan.range4 for end in seen)
    with pytest.raises(ValueError, match="64"):
        plan.slot(64)


def test_a_range_in_use_on_the_machine_is_not_chosen() -> None:
    other = addresses.plan("abc123", RANGE, [PLAN.range4])
    assert not other.range4.overlaps(PLAN.range4)
    with pytest.raises(ValueError, match="nothing"):
        addresses.plan("abc123", RANGE, [IPv4Network("10.0.0.0/8")])
    with pytest.raises(ValueError, match="smaller"):
        addresses.plan("abc123", IPv4Network("10.0.0.0/25"), [])


def test_two_data_directories_get_different_ipv6_ranges() -> None:
    assert addresses.plan("abc123", RANGE, []).range6 != addresses.plan("abc124", RANGE, []).range6


def test_an_allowed_network_is_accepted_before_the_denied_ranges() -> None:
    text = ruleset("atoll_abc123", "atabc123n", PLAN, ["10.1.2.3/32", "fd12::/64"])
    assert text.index("ip daddr 10.1.2.3/32 accept") < text.index("ip daddr @denied4 drop")
    assert text.index("ip6 daddr fd12::/64 accept") < text.index("ip6 daddr @denied6 drop")
    # Not even an allowed network opens the way to another sandbox or lets a source be forged.
    assert text.index("fib saddr") < text.index("10.1.2.3/32")
    assert text.index('oifname "atabc123n*" drop') < text.index("10.1.2.3/32")
