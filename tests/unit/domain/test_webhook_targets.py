"""Where a webhook may go and what signs it: every rule of the URL, by example and by search for ways around it."""

from __future__ import annotations

import base64
import ipaddress
import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.domain.errors import Invalid
from atoll.domain.public_host import is_public_address
from atoll.domain.webhook import parse_target, signing_key

SECRET = "whsec_" + "c" * 43 + "="
LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
TOP = st.sampled_from(["com", "org", "dev", "io", "example", "xn--p1ai"])
NAME = st.builds(lambda labels, top: ".".join([*labels, top]), st.lists(LABEL, min_size=1, max_size=4), TOP)


def words(text: str) -> list[str]:
    return text.split()


def encoded(size: int) -> str:
    return base64.b64encode(b"s" * size).decode()


def refusal(url: str, secret: str = SECRET) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse_target(url, secret)
    return caught.value


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://hooks.example.com", "hooks.example.com", "/"),
        ("https://hooks.example.com/", "hooks.example.com", "/"),
        ("https://hooks.example.com:443/a/b?c=d&e=%20", "hooks.example.com", "/a/b?c=d&e=%20"),
        ("https://hooks.example.com?token=1", "hooks.example.com", "/?token=1"),
        ("HTTPS://Hooks.Example.COM/Path", "hooks.example.com", "/Path"),
        ("https://hooks.example.com./x", "hooks.example.com", "/x"),
        ("https://xn--bcher-kva.example/x", "xn--bcher-kva.example", "/x"),
        ("https://1password.com/x", "1password.com", "/x"),
        ("https://0x7f.example.com/@not:credentials", "0x7f.example.com", "/@not:credentials"),
        ("https://local.example.com/localhost", "local.example.com", "/localhost"),
        ("https://svc.example.com/", "svc.example.com", "/"),
    ],
)
@pytest.mark.spec("SA-289", "SA-290")
def test_a_public_https_url_is_taken_as_it_is(url: str, host: str, path: str) -> None:
    target = parse_target(url, SECRET)
    assert (target.host, target.path, target.url) == (host, path, url)


@given(NAME, st.from_regex(r"(/[A-Za-z0-9._~%@:-]{0,20}){0,3}(\?[a-z=&]{0,20})?", fullmatch=True))
def test_any_public_name_is_taken(name: str, path: str) -> None:
    assert parse_target(f"https://{name}{path}", SECRET).host == name


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/x",
        "ftp://hooks.example.com",
        "hooks.example.com",
        "//hooks.example.com/x",
        "",
        "https:/x",
        "https:hooks.example.com",
        "javascript:alert(1)",
        "https",
        "wss://hooks.example.com",
        "https:///hooks.example.com",
        "file:///etc/passwd",
        "https+unix://hooks.example.com",
    ],
)
@pytest.mark.spec("SA-289")
def test_anything_but_https_is_refused(url: str) -> None:
    assert refusal(url).field == "executionWebhook.url"


@pytest.mark.parametrize(
    "port", ["80", "8443", "0", "444", "0443", "+443", "4430", "", "443a", " 443", "65979", "-1", "443:443"]
)
@pytest.mark.spec("SA-290")
def test_any_port_but_443_is_refused(port: str) -> None:
    assert refusal(f"https://hooks.example.com:{port}/x").field == "executionWebhook.url"


@pytest.mark.parametrize(
    "authority",
    words(
        """
        user@hooks.example.com user:password@hooks.example.com @hooks.example.com :@hooks.example.com
        hooks.example.com@10.0.0.1 hooks.example.com:443@127.0.0.1 hooks.example.com:443@evil.example:443
        """
    ),
)
@pytest.mark.spec("SA-291")
def test_credentials_are_refused(authority: str) -> None:
    assert "credentials" in refusal(f"https://{authority}/x").message


@pytest.mark.parametrize("fragment", ["#", "#x", "/#", "/a?b#c", "#@10.0.0.1/"])
@pytest.mark.spec("SA-292")
def test_a_fragment_is_refused(fragment: str) -> None:
    assert "fragment" in refusal(f"https://hooks.example.com{fragment}").message


@pytest.mark.parametrize(
    "host",
    words(
        """
        127.0.0.1 10.0.0.1 8.8.8.8 1.1.1.1. 127.1 127.0.1 2130706433 0x7f000001 0x7f.0.0.1 0177.0.0.1 017700000001
        0x7f.1 0 0x 0X7F000001 127.0.0.0x1 00000.0 [::1] [::ffff:127.0.0.1] [::] [fd00::1] [2606:4700:4700::1111]
        [fe80::1%25eth0] [::1]:443 [v1.x] 4294967296 1.2.3.4.5 a.b.127 [ []
        """
    ),
)
@pytest.mark.spec("SA-293")
def test_an_ip_address_in_any_notation_is_refused(host: str) -> None:
    assert "IP address" in refusal(f"https://{host}/x").message


@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
@pytest.mark.spec("SA-293")
def test_no_way_of_writing_an_ipv4_address_gets_through(number: int, chance: random.Random) -> None:
    """Every notation that inet_aton takes: one to four parts, each decimal, octal or hexadecimal."""
    parts = chance.randint(1, 4)
    values = [number >> shift & 255 for shift in (24, 16, 8)[: parts - 1]]
    values.append(number & (2 ** (8 * (5 - parts)) - 1))
    text = ".".join(chance.choice(["{}", "0x{:x}", "0X{:X}", "0{:o}", "0x00{:x}"]).format(value) for value in values)
    assert socket.inet_aton(text) == socket.inet_aton(str(ipaddress.IPv4Address(number)))
    refusal(f"https://{text}/x")
    refusal(f"https://{text}:443")
    refusal(f"https://{text}./")


@given(st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address))
@pytest.mark.spec("SA-293")
def test_no_ipv6_address_gets_through(address: ipaddress.IPv6Address) -> None:
    refusal(f"https://[{address}]/x")
    refusal(f"https://[{address.exploded}]:443/x")
    refusal(f"https://{address}/x")


@pytest.mark.parametrize(
    "host",
    words(
        """
        localhost LOCALHOST localhost. a.localhost printer.local Printer.LOCAL. db.internal api.default.svc
        api.default.svc.cluster.local metadata.google.internal metadata intranet router.lan nas.home.arpa
        localhost.localdomain kubernetes a.b.c.internal service.onion atoll
        """
    ),
)
@pytest.mark.spec("SA-294")
def test_a_name_of_an_internal_network_is_refused(host: str) -> None:
    assert "internal networks" in refusal(f"https://{host}/x").message


@given(
    st.lists(LABEL, min_size=0, max_size=3), st.sampled_from(["localhost", "local", "internal", "svc"]), st.booleans()
)
@pytest.mark.spec("SA-294")
def test_no_name_below_an_internal_one_gets_through(labels: list[str], ending: str, dotted: bool) -> None:
    refusal(f"https://{'.'.join([*labels, ending])}{'.' if dotted else ''}/x")


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com\\@10.0.0.1/",
        "https://hooks.example.com\t/",
        "https://hooks.exa\nmple.com/",
        " https://hooks.example.com",
        "https://hooks.example.com /",
        "https://hooks.example.com/\r\nHost: evil",
        "https://hooks.example.com/\x00",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://localhost\u3002/",
        "https://\u2460\u2461.example/",
        "https://bücher.example/",
        "https://hooks.example.com/ü",
        "https://%6c%6f%63alhost/",
        "https://127%2e0%2e0%2e1/",
        "https://hooks%00.example.com",
        "https://-a.example.com",
        "https://a-.example.com",
        "https://a..example.com/",
        "https://.example.com/",
        "https://hooks.example.com../",
        "https://*.example.com",
        "https://a_b.example.com/",
        "https://hooks.example.com:443:80/",
        "https://" + "a" * 64 + ".example.com/",
        "https://" + "a." * 130 + "example.com/",
        "https://hooks.example.com/" + "x" * 3_000,
        "https://$(id).example.com",
        "https://a;b.example.com/",
        "https://?hooks.example.com",
        "https://",
    ],
)
@pytest.mark.spec("SA-289")
def test_what_parsers_read_in_different_ways_is_refused(url: str) -> None:
    error = refusal(url)
    assert error.field == "executionWebhook.url"


@given(st.text(max_size=60))
def test_a_refusal_never_repeats_what_was_sent_and_nothing_else_is_raised(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}/x", f"https://hooks.example.com{text}"):
        try:
            target = parse_target(url, SECRET)
        except Invalid as error:
            assert len(text) < 8 or text not in error.message
        else:
            assert target.host.isascii()
            assert target.path.startswith("/")


@pytest.mark.parametrize("size", [24, 32, 48, 63, 64])
@pytest.mark.spec("SA-296")
def test_a_secret_of_24_to_64_bytes_is_taken(size: int) -> None:
    key = bytes(range(size))
    assert (
        signing_key(parse_target("https://hooks.example.com", "whsec_" + base64.b64encode(key).decode()).secret) == key
    )


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_" + encoded(23),
        "whsec_" + encoded(65),
        encoded(32),
        "WHSEC_" + encoded(32),
        "whsec-" + encoded(32),
        "whpk_" + encoded(32),
        "whsec_" + encoded(32)[:-1],
        "whsec_" + encoded(32) + "=",
        "whsec_" + "*" * 44,
        "whsec_" + "ä" * 44,
        "whsec_" + encoded(32) + "\n",
        " whsec_" + encoded(32),
        "whsec_" + base64.urlsafe_b64encode(b"\xff" * 32).decode(),
        "whsec_whsec_" + encoded(32),
    ],
)
@pytest.mark.spec("SA-296")
def test_any_other_secret_is_refused_without_being_repeated(secret: str) -> None:
    error = refusal("https://hooks.example.com/x", secret)
    assert error.field == "executionWebhook.secret"
    assert len(secret) < 8 or secret not in error.message


@pytest.mark.parametrize(
    "address",
    words(
        """
        127.0.0.1 127.255.255.254 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 169.254.169.254
        100.64.0.1 100.127.255.255 100.100.100.200 0.0.0.0 0.1.2.3 192.0.0.1 192.0.2.1 198.18.0.1 198.19.255.255
        198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 168.63.129.16 192.88.99.1 ::
        ::1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 fc00::1 fd00:ec2::254 fe80::1
        fec0::1 ff02::1 2001::1 2001:0:a00:1:: 2001:db8::1 2002:a00:1:: 2002:7f00:1::1 3fff::1 100::1 5f00::1
        4000::1
        """
    ),
)
@pytest.mark.spec("SA-295", "SA-321")
def test_an_address_that_is_not_of_the_internet_is_known_as_such(address: str) -> None:
    assert not is_public_address(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    words(
        """
        8.8.8.8 1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
        169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 198.17.255.255
        198.20.0.0 223.255.255.255 2606:4700:4700::1111 2001:4860:4860::8888 2a00:1450::1 2003::1 2400::1
        """
    ),
)
def test_an_address_of_the_internet_is_known_as_such(address: str) -> None:
    assert is_public_address(ipaddress.ip_address(address))


@given(st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address) | st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address))
def test_nothing_counts_as_public_that_python_knows_to_be_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public_address(address):
        assert address.is_global
        assert not address.is_multicast
