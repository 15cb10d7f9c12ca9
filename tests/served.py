"""The application behind a real server on loopback, for what only a socket shows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from tests.plane import Api, Plane

from atoll.api.gateway.stream import WEBSOCKET_OPTIONS


@asynccontextmanager
async def served(plane: Plane) -> AsyncIterator[Api]:
    """Serve a control plane with uvicorn; the admin's calls go over the socket."""
    # With the protocol named, asyncio turns Nagle's delay off, as it does for `atoll serve`.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = uvicorn.Config(
        plane.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        **WEBSOCKET_OPTIONS,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield Api(client, plane.api.token, plane.api.ids, plane.shapes)
    finally:
        server.should_exit = True
        await serving
        listener.close()
