"""Ranges, and what passes between a client and a program behind a port."""

from __future__ import annotations

import pytest

from atoll.api.gateway import port_headers
from atoll.api.gateway.files import byte_range


@pytest.mark.spec("SA-450")
@pytest.mark.parametrize(
    ("header", "size", "found"),
    [
        (None, 10, (0, 10, False)),
        ("bytes=0-0", 10, (0, 1, True)),
        ("bytes=-3", 10, (7, 10, True)),
        ("bytes=-0", 10, None),
        ("bytes=5-", 10, (5, 10, True)),
        ("bytes=10-", 10, None),
        ("bytes=0-", 0, None),
        ("bytes=-5", 0, None),
        ("bytes=-", 10, (0, 10, False)),
        ("bytes=9999999999999999999-", 10, (0, 10, False)),
        ("bytes=0-999999999999999999", 10, (0, 10, True)),
    ],
)
def test_a_range_is_what_the_standard_says(header: str | None, size: int, found: tuple[int, int, bool] | None) -> None:
    assert byte_range(header, size) == found


@pytest.mark.spec("SA-455")
def test_what_speaks_for_the_caller_is_not_passed_on() -> None:
    headers = [
        *((b"Authorization", b"Bearer x"), (b"Cookie", b"a=b"), (b"Host", b"atoll.test"), (b"Accept", b"*/*")),
        *((b"Connection", b"keep-alive, X-Secret"), (b"X-Secret", b"1"), (b"X-Forwarded-For", b"1.2.3.4")),
        *(
            (b"Transfer-Encoding", b"chunked"),
            (b"Upgrade", b"h2c"),
            (b"TE", b"trailers"),
            (b"Proxy-Authorization", b"x"),
        ),
    ]
    assert port_headers.sent(headers, port=80, prefix="/gateway/1/ports/80", scheme="https") == [
        (b"host", b"localhost:80"),
        (b"accept", b"*/*"),
        (b"x-forwarded-host", b"atoll.test"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-prefix", b"/gateway/1/ports/80"),
    ]


@pytest.mark.spec("SA-455")
def test_what_speaks_for_the_origin_is_not_answered() -> None:
    headers = [(b"Set-Cookie", b"a=b"), (b"Clear-Site-Data", b"*"), (b"Content-Type", b"text/html"), (b"Date", b"now")]
    names = [name for name, _ in port_headers.answered(headers)]
    assert names == [b"content-type", b"content-security-policy"]


@pytest.mark.parametrize(
    ("raw", "query", "asked"),
    [
        (b"/gateway/1/ports/80/", b"", b"/"),
        (b"/gateway/1/ports/80/a%2Fb/../c", b"x=%20", b"/a%2Fb/../c?x=%20"),
        (b"/gateway/1/ports/80/ports/81/", b"", b"/ports/81/"),
        (b"/gateway/1/ports/80//evil.test/", b"", b"//evil.test/"),
    ],
)
def test_the_path_is_passed_on_as_it_came(raw: bytes, query: bytes, asked: bytes) -> None:
    assert port_headers.target(raw, query) == asked
