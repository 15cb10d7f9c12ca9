"""A name for a unix socket that is never too long. Called where a socket is connected to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 100
"""Bytes; the kernel takes 107."""


@contextlib.contextmanager
def short_path(socket_path: Path) -> Iterator[str]:
    """The path of a socket while it is connected to; a long one by the descriptor of its folder. Raises `OSError`."""
    if len(os.fsencode(socket_path)) <= _LONGEST:
        yield str(socket_path)
        return
    folder = os.open(socket_path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{socket_path.name}"
    finally:
        os.close(folder)
