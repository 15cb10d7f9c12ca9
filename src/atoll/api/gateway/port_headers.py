"""Which headers pass between a client and a program behind a port of a sandbox. Pure.

The program is untrusted and is served from the API's own origin, so it gets nothing that speaks for the caller there,
and says nothing that a browser would take as the origin's word: no token, no cookie, either way.
"""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes]

_HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
}
_NOT_SENT = _HOP_BY_HOP | {
    *(b"authorization", b"cookie", b"host", b"content-length", b"expect", b"forwarded", b"x-real-ip"),
    *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix"),
}
_NOT_ANSWERED = _HOP_BY_HOP | {
    *(b"set-cookie", b"set-cookie2", b"clear-site-data", b"strict-transport-security", b"public-key-pins"),
    *(b"service-worker-allowed", b"alt-svc", b"nel", b"report-to", b"reporting-endpoints", b"www-authenticate"),
    *(b"x-request-id", b"server", b"date", b"x-accel-redirect", b"x-sendfile"),
}
_SANDBOXED: Header = (b"content-security-policy", b"sandbox allow-forms allow-scripts")
"""Should a browser ever show such an answer, it does so without the origin's storage."""


def sent(headers: Iterable[Header], *, port: int, prefix: str, scheme: str) -> list[Header]:
    """The headers of a request as the program gets them."""
    found = [(name.lower(), value) for name, value in headers]
    named = _named_by_connection(found)
    host = next((value for name, value in found if name == b"host"), b"")
    kept = [(name, value) for name, value in found if name not in _NOT_SENT | named]
    return [
        (b"host", b"localhost:%d" % port),
        *kept,
        (b"x-forwarded-host", host),
        (b"x-forwarded-proto", scheme.encode()),
        (b"x-forwarded-prefix", prefix.encode()),
    ]


def answered(headers: Iterable[Header]) -> list[Header]:
    """The headers of an answer as the client gets them."""
    found = [(name.lower(), value) for name, value in headers]
    named = _named_by_connection(found)
    return [*((name, value) for name, value in found if name not in _NOT_ANSWERED | named), _SANDBOXED]


def target(raw_path: bytes, query: bytes) -> bytes:
    """What is asked of the program: the path behind `/gateway/ID/ports/PORT` as it came, and the query."""
    rest = raw_path.split(b"/ports/", 1)[1].partition(b"/")[2]
    return b"/" + rest + (b"?" + query if query else b"")


def _named_by_connection(headers: Iterable[Header]) -> set[bytes]:
    """What the sender says is for this hop alone."""
    return {word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")} - {
        b"content-length",
        b"content-type",
    }
