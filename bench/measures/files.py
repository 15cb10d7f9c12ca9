"""How fast a gigabyte goes into a sandbox and out of it over the gateway, and that the server does not grow by it.

The client is as thin as Python allows: one socket, one buffer. It shares the processors with everything else.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

from tests import leaks
from tests.client import Client

from bench.figures import Result
from bench.setting import Setting

TARGET_MB_S = 150.0
GROWTH_MB = 16.0
_MB = 1_000_000
_BUFFER_BYTES = 1024 * 1024
_LIMIT_SECONDS = 120.0


class _Gateway:
    """The gateway of one sandbox, one connection for each transfer."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        session = client.call("POST", "/sandbox/session", {"sandboxId": sandbox_id, "scopes": ["file"]})
        self._url = urlsplit(session["endpoint"])
        self._token = session["token"]
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def upload(self, size: int) -> float:
        """Seconds from the first byte sent to the answer."""
        with self._connect() as connection:
            began = time.perf_counter()
            connection.sendall(self._head("PUT", f"Content-Length: {size}\r\n"))
            left = size
            while left:
                left -= connection.send(self._buffer[: min(left, _BUFFER_BYTES)])
            status = connection.recv(65_536).split(b" ", 2)[1]
            took = time.perf_counter() - began
        if status != b"200":
            raise RuntimeError(f"the upload was answered with {status.decode()}")
        return took

    def download(self, size: int) -> float:
        """Seconds from the request to the last byte."""
        with self._connect() as connection:
            began = time.perf_counter()
            connection.sendall(self._head("GET", ""))
            first = connection.recv(65_536)
            head, _, rest = first.partition(b"\r\n\r\n")
            left = size - len(rest)
            while left and (got := connection.recv_into(self._buffer)):
                left -= got
            took = time.perf_counter() - began
        if left or b" 200 " not in head.splitlines()[0]:
            raise RuntimeError(f"the download ended {left} bytes early")
        return took

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._url.hostname, self._url.port), timeout=_LIMIT_SECONDS)

    def _head(self, method: str, more: str) -> bytes:
        line = f"{method} {self._url.path}/files?path=big HTTP/1.1\r\nHost: {self._url.netloc}\r\n"
        return f"{line}Authorization: Bearer {self._token}\r\nConnection: close\r\n{more}\r\n".encode()


def files(setting: Setting) -> Result:
    """A gigabyte in and out, in the default size and in a larger one; the server's peak while they last."""
    size = 1_000 * _MB if not setting.quick else 250 * _MB
    result = Result("files", f"{size / _MB:,.0f} MB through the gateway")
    with setting.server("files") as server, server.client() as client:
        sizes = {"a sandbox of 1 zCloud": None, "a sandbox of 4 zClouds": client.make_template("four", zClouds=4)}
        for name, template in sizes.items():
            sandbox_id = client.ready(f"files-{name}", template_id=template)
            gateway = _Gateway(client, sandbox_id)
            gateway.upload(8 * _MB)
            gateway.download(8 * _MB)
            before = leaks.resources(server.pid).resident_kb / 1024
            leaks.reset_peak_resident(server.pid)
            rates: dict[str, list[float]] = {"upload": [], "download": []}
            for _ in range(setting.rounds(3, 1)):
                rates["upload"].append(size / _MB / gateway.upload(size))
                rates["download"].append(size / _MB / gateway.download(size))
            growth = leaks.peak_resident_kb(server.pid) / 1024 - before
            for direction, seen in rates.items():
                rate = result.samples(f"{direction}, {name}", "MB/s", seen, "").p50
                target = f"{direction} of {size / _MB:,.0f} MB, {name} ≥ {TARGET_MB_S:g} MB/s"
                result.target(target, f"{rate:.0f} MB/s", met=rate >= TARGET_MB_S)
            target = f"{size / _MB:,.0f} MB in and out of {name} grow the server by no more than {GROWTH_MB:g} MB"
            result.target(target, f"{growth:.0f} MB", met=growth <= GROWTH_MB)
            client.terminate(sandbox_id)
    result.notes.append("1 zCloud is half a processor, which gVisor, the agent and its worker share; 4 are two")
    return result
