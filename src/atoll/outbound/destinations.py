"""From a host's name to the addresses that may be connected to.

Ops ask at create whether a host may be called at all, the webhook worker asks again for every attempt and connects to
nothing but what it was given: between the check and the connection nobody looks the name up a second time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll.domain.public_host import Address, is_public_address
from atoll.settings import WebhookTestDestination

_LOOKUP_SECONDS = 5.0
_MAX_LOOKUPS = 64
"""Look-ups at one time. One that hangs keeps its thread for as long as the system's resolver tries."""
_MAX_ADDRESSES = 8


class HostUnresolved(Exception):  # noqa: N818 - an outcome
    """The name has no address, or none was found in time."""


class HostNotPublic(Exception):  # noqa: N818 - an outcome
    """The name leads, or could lead, to an address that is not of the internet."""


@dataclass(frozen=True, slots=True)
class Destination:
    """What to connect to for a host, and whose certificates to trust."""

    addresses: tuple[Address, ...]
    port: int
    tls: ssl.SSLContext


class Destinations:
    """Looks hosts up and judges them. `test_destinations` are the operator's own receivers, by host."""

    def __init__(self, test_destinations: Mapping[str, WebhookTestDestination]) -> None:
        self._test_destinations = dict(test_destinations)
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._public_tls: ssl.SSLContext | None = None

    async def check(self, host: str) -> None:
        """Raise `HostNotPublic` when the host's addresses are known and one of them is not public (SA-295)."""
        if host in self._test_destinations:
            return
        try:
            await self._public_addresses(host)
        except HostUnresolved:
            return  # nothing is known against it, and every attempt looks again

    async def find(self, host: str, port: int) -> Destination:
        """Where to connect to now. Raises `HostUnresolved` or `HostNotPublic` (SA-321)."""
        test = self._test_destinations.get(host)
        if test is not None:
            return Destination((test.address,), test.port, _tls(test.ca_file))
        addresses = await self._public_addresses(host)
        if self._public_tls is None:
            self._public_tls = _tls(None)
        return Destination(addresses, port, self._public_tls)

    async def _public_addresses(self, host: str) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS), self._lookups:
                addresses = await _look_up(host)
        except TimeoutError:
            raise HostUnresolved from None
        # All of them, not only the first: the answer's order is the name server's to choose.
        if not all(map(is_public_address, addresses)):
            raise HostNotPublic
        return addresses[:_MAX_ADDRESSES]


async def _look_up(host: str) -> tuple[Address, ...]:
    """Ask the system's resolver from a thread of its own.

    Neither the loop's nor any pool's threads: a name server that does not answer would take them from everyone else and
    hold up the end of the process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[tuple[Address, ...]] = loop.create_future()

    def settle(result: tuple[Address, ...] | None) -> None:
        if found.done():
            return
        if result:
            found.set_result(result)
        else:
            found.set_exception(HostUnresolved())

    def ask() -> None:
        result = _system_addresses(host)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=ask, name="atoll-resolve", daemon=True).start()
    return await found


def _system_addresses(host: str) -> tuple[Address, ...] | None:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    texts = dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers)
    return tuple(ipaddress.ip_address(text) for text in texts)


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Certificates are always verified: against the machine's authorities, or against one test authority alone."""
    return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
