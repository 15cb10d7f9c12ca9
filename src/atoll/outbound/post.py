"""One HTTPS POST to a checked address. No redirects, no proxies, no cookies, no second connection; the answer's body is
not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import httpcore

from atoll.outbound.destinations import Destination

_CONNECT_SECONDS = 4.0
"""For one address of several, so that a dead first one leaves time for the next."""


class PostFailed(Exception):  # noqa: N818 - an outcome
    """There was no answer: no connection, no trust in the certificate, or no HTTP. `reason` names the kind alone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def post(destination: Destination, host: str, path: str, headers: Mapping[str, str], body: bytes) -> int:
    """Send and return the answer's status. The caller sets the time limit. Raises `PostFailed`.

    The certificate is verified for `host`, which is also what SNI and the Host header say.
    """
    url = httpcore.URL(scheme=b"https", host=host.encode(), port=None, target=path.encode())
    try:
        async with (
            httpcore.AsyncConnectionPool(
                ssl_context=destination.tls,
                max_connections=1,
                max_keepalive_connections=0,
                network_backend=_PinnedNetwork(destination),
            ) as pool,
            pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
        ):
            return int(response.status)
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise PostFailed("no connection") from error
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError) as error:
        raise PostFailed("no answer") from error


class _PinnedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to the destination's addresses, whatever the name is that it is asked for."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that takes it."""
        del host, port, timeout
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._destination.addresses:
            try:
                return await self._network.connect_tcp(
                    str(address), self._destination.port, _CONNECT_SECONDS, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise httpcore.ConnectError("not over a local socket")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
