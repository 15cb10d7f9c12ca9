"""How a server finds this process again: it connects to a socket in a folder of its own and is handed a greeting, which
says what runs here, together with the listening sockets.

With them in its hands the server can start another process in the place of this one, and no connection is refused
meanwhile. The greeting is given to nobody but the user who started this process: whoever has the sockets reads what
sandboxes send. Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path


def listen(path: Path) -> socket.socket:
    """Listen at `path`, in place of an earlier process that is no more. To be called before privileges are dropped."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        made.bind(str(path))
        made.listen()
        made.settimeout(0)
    except OSError:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


async def greet(listener: socket.socket, greeting: bytes, descriptors: Sequence[int], *, owner: int) -> None:
    """Greet whoever connects, if it is the user `owner`, for ever. A connection stays open as long as both live, so
    that each end shows the other's."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        while True:
            connection, _ = await loop.sock_accept(listener)
            group.create_task(_greet(connection, greeting, descriptors, owner))


async def _greet(connection: socket.socket, greeting: bytes, descriptors: Sequence[int], owner: int) -> None:
    with connection, contextlib.suppress(OSError):
        if _user(connection) != owner:
            return
        socket.send_fds(connection, [greeting], list(descriptors))
        while await asyncio.get_running_loop().sock_recv(connection, 64):
            pass


def _user(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
