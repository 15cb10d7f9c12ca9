"""Names out of the beginnings of connections: whatever the pieces, whatever the bytes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.egress.client_hello import MAX_BYTES, NotAllowedHello, server_name
from atoll.egress.policies import is_listed, normal_name, peer_of
from atoll.egress.request_head import NotAllowedHead, RequestHead, request_head


def client_hello(name: str | None) -> bytes:
    """What a real client sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same handshake in records of `size` bytes."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(part).to_bytes(2) + part for part in parts)


@pytest.mark.spec("SA-191")
@given(st.integers(0, 600))
def test_a_name_is_read_as_soon_as_the_handshake_is_whole_and_not_before(cut: int) -> None:
    hello = client_hello("Api.Example.com")
    assert server_name(hello) == server_name(hello + b"later") == "api.example.com"
    if cut < len(hello):
        assert server_name(hello[:cut]) is None


@pytest.mark.parametrize("size", [100, 300, 5_000])
def test_a_handshake_may_come_in_several_records(size: int) -> None:
    assert server_name(in_records(client_hello("a.example"), size)) == "a.example"


def test_a_handshake_in_crumbs_is_refused_for_it_is_nothing_but_work() -> None:
    with pytest.raises(NotAllowedHello):
        server_name(in_records(client_hello("a.example"), 1))


def test_a_handshake_without_a_name_is_refused() -> None:
    with pytest.raises(NotAllowedHello):
        server_name(client_hello(None))


def test_two_names_in_one_handshake_are_refused() -> None:
    hello = bytearray(client_hello("ab.example"))
    entry = b"\0\0\x0aab.example"
    at = hello.index(entry)
    forged = bytes(hello[:at]) + entry + bytes(hello[at:])
    # The lengths around it: name list, extension, extensions, handshake, record.
    grown = bytearray(forged)
    for position in (at - 2, at - 4):
        grown[position : position + 2] = (int.from_bytes(grown[position : position + 2]) + len(entry)).to_bytes(2)
    session = 5 + 4 + 2 + 32
    ciphers = session + 1 + hello[session]
    methods = ciphers + 2 + int.from_bytes(hello[ciphers : ciphers + 2])
    extensions = methods + 1 + hello[methods]
    for position, width in ((extensions, 2), (6, 3), (3, 2)):
        value = int.from_bytes(grown[position : position + width]) + len(entry)
        grown[position : position + width] = value.to_bytes(width)
    with pytest.raises(NotAllowedHello):
        server_name(bytes(grown))


@given(st.binary(max_size=400))
def test_no_bytes_are_taken_for_a_name_that_they_do_not_say(data: bytes) -> None:
    for beginning in (data, b"\x16\x03\x01" + data, b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03" + data):
        try:
            name = server_name(beginning)
        except NotAllowedHello:
            continue
        assert name is None or name.encode() in beginning.lower()


def test_an_endless_beginning_is_refused() -> None:
    with pytest.raises(NotAllowedHello):
        server_name(in_records(b"\x16\x03\x01\x00\x00" + b"\x01\x00\x3f\xff" + bytes(20_000), 100)[: MAX_BYTES + 100])


def head(*lines: str, rest: bytes = b"") -> RequestHead | None:
    return request_head("\r\n".join([*lines, "", ""]).encode("latin-1") + rest)


@pytest.mark.spec("SA-191")
def test_a_request_names_its_host() -> None:
    plain = head("GET /a?b HTTP/1.1", "Host: Api.Example.com", "Connection: keep-alive", "Upgrade: x", rest=b"body")
    assert plain == RequestHead(
        "api.example.com",
        80,
        tunnel=False,
        forwarded=b"GET /a?b HTTP/1.1\r\nHost: Api.Example.com\r\nConnection: close\r\n\r\n",
        body_bytes=0,
        rest=b"body",
    )
    posted = head("POST / HTTP/1.1", "Host: a.example", "Content-Length: 4", rest=b"body")
    assert posted is not None and posted.body_bytes == 4
    absolute = head("GET http://a.example/x HTTP/1.1", "Host: a.example")
    assert absolute is not None and absolute.forwarded.startswith(b"GET /x HTTP/1.1\r\n")
    tunnel = head("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443", rest=b"\x16")
    assert tunnel == RequestHead("a.example", 443, tunnel=True, forwarded=b"", body_bytes=0, rest=b"\x16")
    bare = head("CONNECT a.example:443 HTTP/1.0")
    assert bare is not None and (bare.name, bare.port, bare.tunnel) == ("a.example", 443, True)


@pytest.mark.parametrize(
    "lines",
    [
        ("GET / HTTP/1.1",),
        ("GET / HTTP/1.1", "Host: a.example", "Host: b.example"),
        ("GET / HTTP/1.1", "Host: a.example", "host: a.example"),
        ("GET http://b.example/ HTTP/1.1", "Host: a.example"),
        ("GET / HTTP/1.1", "Host : a.example"),
        ("GET / HTTP/1.1", "X: y", " Host: a.example", "Host: b.example"),
        ("GET / HTTP/1.1", "Host: a.example\nHost: b.example"),
        ("GET / HTTP/1.1", "Host: user@a.example"),
        ("GET / HTTP/1.1", "Host: [::1]"),
        ("GET ftp://a.example/ HTTP/1.1", "Host: a.example"),
        ("PRI * HTTP/2.0", "Host: a.example"),
        ("CONNECT a.example HTTP/1.1", "Host: a.example"),
        ("get / HTTP/1.1", "Host: a.example"),
        ("POST / HTTP/1.1", "Host: a.example", "Transfer-Encoding: chunked"),
        ("POST / HTTP/1.1", "Host: a.example", "Content-Length: 1", "Content-Length: 2"),
        ("POST / HTTP/1.1", "Host: a.example", "Content-Length: +1"),
        ("GET / HTTP/1.1", "Host: x\\.wild.example"),
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(NotAllowedHead):
        head(*lines)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_head_is_read_only_when_it_is_whole(junk: bytes, cut: int) -> None:
    whole = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
    if cut < len(whole):
        assert request_head(whole[:cut]) is None
    try:
        found = request_head(junk)
    except NotAllowedHead:
        return
    assert found is None or found.name.encode() in junk.lower()


@pytest.mark.spec("SA-191")
@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("github.com", True),
        ("api.github.com", False),
        ("evilgithub.com", False),
        ("wild.example", False),
        ("a.wild.example", True),
        ("a.b.wild.example", True),
        ("awild.example", False),
        ("github.com.evil.example", False),
    ],
)
def test_a_pattern_covers_what_it_says(name: str, listed: bool) -> None:
    assert is_listed(name, ["github.com", "*.wild.example"]) is listed


def test_names_and_peers_have_one_form() -> None:
    assert normal_name("GitHub.COM.") == "github.com"
    assert [
        normal_name(odd)
        for odd in ("", ".", "a..b", "ü.example", "a" * 254, r"x\\.wild.example", "a b.c", "-a.b", "a" * 64 + ".b")
    ] == [None] * 9
    assert (peer_of("::ffff:10.1.2.3"), peer_of("fd00::2%eth0"), peer_of("10.1.2.3")) == (
        "10.1.2.3",
        "fd00::2",
        "10.1.2.3",
    )
