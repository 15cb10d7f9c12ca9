"""Reads the server name out of the beginning of a TLS connection. Pure: bytes in, a name or a refusal out.

The bytes are a hostile client's. Nothing is decrypted, and nothing is taken for a name that a server could read
otherwise: no name, two of them, or what is not a ClientHello is refused.
"""

from __future__ import annotations

from atoll.egress.policies import normal_name

MAX_BYTES = 16_384 + 5
"""One record is enough for every client; a longer beginning is refused."""
_MAX_RECORDS = 16
"""More is nothing but work."""
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0


class NotAllowedHello(Exception):  # noqa: N818 - an outcome of reading
    """It names no server that could be judged."""


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise NotAllowedHello
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def part(self, size: int) -> _Bytes:
        """What follows a length of `size` bytes."""
        return _Bytes(self.take(self.number(size)))


def server_name(data: bytes) -> str | None:
    """The name in a ClientHello; None while more bytes are needed. Raises `NotAllowedHello`."""
    handshake = bytearray()
    rest = data
    records = 0
    while len(handshake) < 4 or len(handshake) < 4 + int.from_bytes(handshake[1:4]):
        if len(data) > MAX_BYTES or (rest and rest[0] != _HANDSHAKE) or (len(rest) > 1 and rest[1] != 3):
            raise NotAllowedHello
        if len(handshake) >= 4 and (handshake[0] != _CLIENT_HELLO or int.from_bytes(handshake[1:4]) > MAX_BYTES):
            raise NotAllowedHello
        if len(rest) < 5:
            return None
        length = int.from_bytes(rest[3:5])
        if not 0 < length <= MAX_BYTES:
            raise NotAllowedHello
        if len(rest) < 5 + length:
            return None
        records += 1
        if records > _MAX_RECORDS:
            raise NotAllowedHello
        handshake += rest[5 : 5 + length]
        rest = rest[5 + length :]
    return _name_of(bytes(handshake))


def _name_of(handshake: bytes) -> str:
    whole = _Bytes(handshake)
    if whole.number(1) != _CLIENT_HELLO:
        raise NotAllowedHello
    hello = whole.part(3)
    hello.take(2 + 32)
    hello.part(1)
    hello.part(2)
    hello.part(1)
    extensions = hello.part(2)
    names: list[str] = []
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.part(2)
        if kind == _SERVER_NAME:
            names += _listed(content.part(2))
    name = normal_name(names[0]) if len(names) == 1 else None
    if name is None:
        raise NotAllowedHello
    return name


def _listed(entries: _Bytes) -> list[str]:
    found = []
    while entries.left:
        if entries.number(1) != _HOST_NAME:
            raise NotAllowedHello
        name = entries.part(2)
        found.append(name.take(name.left).decode("latin-1"))
    return found
