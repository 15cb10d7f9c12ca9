"""`atoll serve`: the only command that may wire a control plane (`atoll.compose`)."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
import uvicorn
import uvloop

from atoll.cli.options import AsJson, DatabaseUrl, DataDir
from atoll.cli.output import emit, progress, reported_errors
from atoll.domain.errors import Invalid
from atoll.logs import configure_logs
from atoll.settings import Settings, load_settings

_DRAIN_SECONDS = 5


def serve(
    data_dir: DataDir,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = "127.0.0.1:8080",
    database_url: DatabaseUrl = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    as_json: AsJson = False,
) -> None:
    """Serve the API.

    Stops on SIGTERM and SIGINT; sandboxes and their commands go on and are found at the next start.
    """
    configure_logs(log_level)
    with reported_errors(as_json=as_json):
        host, port = _address(listen)
        settings = load_settings(data_dir, database_url=database_url)
        _raise_open_files()
        with _bind(host, port) as listening:
            uvloop.run(_serve(settings, listening, as_json=as_json))


def _raise_open_files() -> None:
    """As many as the machine allows: each client, sandbox and transfer takes some, and the usual 1,024 are few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _address(listen: str) -> tuple[str, int]:
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535:
        raise Invalid(f"--listen takes HOST:PORT, not {listen!r}.", field="listen")
    return host.strip("[]") or "127.0.0.1", int(port)


def _bind(host: str, port: int) -> socket.socket:
    """Listen before anything is started, so that an address in use is told at once and in words."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        # Not the error's own words: they say the address again, as Python writes it.
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there. Stop it, or choose another address with --listen"
        else:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else "there is no such address"
        raise Invalid(f"Cannot listen on {host}:{port}: {why}.", field="listen") from None


class _Server(uvicorn.Server):
    """uvicorn's, but it does not raise the signal again once it has drained: that would end this process before the
    control plane is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def _until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Wait until the server listens or has given up; uvicorn offers a flag and no event."""
    while not server.started and not serving.done():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.01)


async def _serve(settings: Settings, listening: socket.socket, *, as_json: bool) -> None:
    # Loaded here: they take a second, which no other command should pay.
    from atoll import compose
    from atoll.api.app import create_app
    from atoll.api.gateway.stream import WEBSOCKET_OPTIONS

    async with await compose.ControlPlane.open(settings) as plane:
        config = uvicorn.Config(
            create_app(plane.services, readiness=plane.readiness),
            access_log=False,
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=_DRAIN_SECONDS,
            timeout_keep_alive=75,
            **WEBSOCKET_OPTIONS,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await _until_started(server, serving)
        if server.started:
            host, port = listening.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            if as_json:
                emit({"url": url, "dataDir": str(settings.data_dir)}, as_json=True, text=str)
            else:
                progress(f"Atoll serves on {url} (data in {settings.data_dir}); stop it with Ctrl-C.")
        await serving
