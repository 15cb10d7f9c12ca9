"""What the lists of `networkControl` come to when a sandbox is allocated."""

import pytest

from atoll.domain.egress import EgressPolicy, egress_policy
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.template import NetworkControl


def policy(*addresses: str, domains: tuple[str, ...] = (), enabled: bool = True) -> EgressPolicy | None:
    return egress_policy(NetworkControl(enabled, addresses, domains))


@pytest.mark.spec("SA-198", "SA-199")
def test_nothing_and_empty_lists_are_default_egress() -> None:
    assert egress_policy(None) is None
    assert policy(enabled=False) is None
    assert policy("203.0.113.8", enabled=False) is None


@pytest.mark.spec("SA-191", "SA-192")
def test_each_list_is_a_trigger_of_its_own() -> None:
    assert policy("203.0.113.8", " 2001:db8::/32 ", "") == EgressPolicy(("203.0.113.8/32", "2001:db8::/32"), ())
    assert policy("203.0.113.8", domains=("GitHub.com.",), enabled=False) == EgressPolicy((), ("github.com",))
    assert policy("203.0.113.8", domains=("*.Bücher.example", "a.b", "a.b")) == EgressPolicy(
        ("203.0.113.8/32",), ("*.xn--bcher-kva.example", "a.b")
    )


@pytest.mark.spec("SA-195")
@pytest.mark.parametrize("entry", ["203.0.113", "203.0.113.8/24", "1.2.3.4/33", "github.com", "::g", "1.2.3.4-5"])
def test_an_address_that_is_none_is_named(entry: str) -> None:
    with pytest.raises(RuntimeFailure, match="addressAllowlist") as caught:
        policy(entry)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert not caught.value.code.retryable
    assert entry in caught.value.message


@pytest.mark.spec("SA-195")
@pytest.mark.parametrize(
    "entry",
    ["https://github.com", "a b", "*", "a.*.com", "*.*.com", "1.2.3.4", "[::1]", "-a.com", "a" * 64 + ".com", ".com"],
)
def test_a_domain_that_is_none_is_named(entry: str) -> None:
    with pytest.raises(RuntimeFailure, match="domainAllowlist") as caught:
        policy(domains=(entry,))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.spec("SA-196")
@pytest.mark.parametrize(
    "entry",
    [
        "10.0.0.1",
        "10.0.0.0/9",
        "127.0.0.1",
        "169.254.169.254",
        "192.168.1.0/24",
        "100.64.3.0/24",
        "::1",
        "fd00::/8",
        "fe80::1",
    ],
)
def test_an_address_of_the_infrastructure_is_refused(entry: str) -> None:
    with pytest.raises(RuntimeFailure, match="reserved"):
        policy(entry)


@pytest.mark.spec("SA-196")
@pytest.mark.parametrize("entry", ["localhost", "metadata.google.internal", "db.svc", "*.local", "printer.lan"])
def test_a_name_of_the_infrastructure_is_refused(entry: str) -> None:
    with pytest.raises(RuntimeFailure, match="reserved"):
        policy(domains=(entry,))


def test_a_network_that_only_contains_infrastructure_is_taken_for_the_rules_keep_that_out() -> None:
    assert policy("0.0.0.0/0") == EgressPolicy(("0.0.0.0/0",), ())
