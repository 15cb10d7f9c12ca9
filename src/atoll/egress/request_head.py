"""Reads the target out of the head of an HTTP/1 request. Pure: bytes in, a target or a refusal out.

The bytes are a hostile client's. Two readings of one head must be impossible: repeated or contradicting hosts, folded
lines, bare line feeds and whatever is not HTTP/1 are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from atoll.egress.policies import normal_name

MAX_BYTES = 16_384
_LINE = re.compile(r"(?P<method>[A-Z]{1,20}) (?P<target>[\x21-\x7e]+) HTTP/1\.[01]")
_ABSOLUTE = re.compile(r"http://(?P<host>[^/?#]*)(?P<path>.*)", re.IGNORECASE)
_FIELD = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[^\x00\r\n]*?)[ \t]*")
_LENGTH = re.compile(r"[0-9]{1,18}")
_AUTHORITY = re.compile(r"(?P<name>[^:@\[\]]+)(?::(?P<port>\d{1,5}))?")


class NotAllowedHead(Exception):  # noqa: N818 - an outcome of reading
    """It names no server that could be judged."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a request is about."""

    name: str
    port: int
    tunnel: bool
    """Whether it asks for a tunnel (CONNECT)."""
    forwarded: bytes
    """The head as the server is to get it: its path alone, and `Connection: close`. Empty for a tunnel."""
    body_bytes: int
    """How long the body is. What comes after it would be a second request, which nobody has judged."""
    rest: bytes
    """What came after the head."""


def request_head(data: bytes) -> RequestHead | None:
    """The head at the beginning of a connection; None while more bytes are needed. Raises `NotAllowedHead`."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        if len(data) > MAX_BYTES:
            raise NotAllowedHead
        return None
    if len(head) > MAX_BYTES:
        raise NotAllowedHead
    first, *lines = head.decode("latin-1").split("\r\n")
    line = _LINE.fullmatch(first)
    fields = [_FIELD.fullmatch(each) for each in lines]
    if line is None or "\n" in first:
        raise NotAllowedHead
    named = []
    for field in fields:
        if field is None:
            raise NotAllowedHead
        named.append((field["name"], field["value"]))
    hosts = [value for name, value in named if name.lower() == "host"]
    if line["method"] == "CONNECT" and len(hosts) <= 1:
        name, port = _authority(line["target"], None)
        return RequestHead(name, port, tunnel=True, forwarded=b"", body_bytes=0, rest=rest)
    if len(hosts) != 1:
        raise NotAllowedHead
    target = line["target"]
    name, port = _authority(hosts[0], 80)
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        if _authority(absolute["host"], 80) != (name, port):
            raise NotAllowedHead
        target = absolute["path"] or "/"
        target = target if target.startswith("/") else f"/{target}"
    elif not target.startswith("/") and target != "*":
        raise NotAllowedHead
    forwarded = _forwarded(line["method"], target, named)
    return RequestHead(name, port, tunnel=False, forwarded=forwarded, body_bytes=_body_bytes(named), rest=rest)


def _body_bytes(fields: list[tuple[str, str]]) -> int:
    """By Content-Length alone: what has its length in itself can be read in two ways."""
    lengths = [value for name, value in fields if name.lower() == "content-length"]
    coded = any(name.lower() == "transfer-encoding" for name, _ in fields)
    if coded or len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise NotAllowedHead
    return int(lengths[0]) if lengths else 0


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    name = normal_name(found["name"]) if found else None
    port = int(found["port"]) if found and found["port"] else default_port
    if name is None or port is None:
        raise NotAllowedHead
    return name, port


def _forwarded(method: str, target: str, fields: list[tuple[str, str]]) -> bytes:
    """An upgrade is left out as well: a server that ignores it would take a second request."""
    left_out = {"connection", "keep-alive", "proxy-connection", "proxy-authorization", "upgrade"}
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields if name.lower() not in left_out]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")
