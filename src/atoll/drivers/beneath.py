"""Opens folders that a sandbox writes in, so that none of its links leads out. Called by whoever walks them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator

_WENT_AWAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""What a folder is that was there a moment ago: removed, or swapped for something else. Any other error is one."""
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_NO_XDEV = 0x04, 0x08, 0x01


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(root: int, relative: bytes) -> int:
    """Open a folder below `root` without following any link or leaving its file system. Raises `OSError`."""
    how = _OpenHow(DIRECTORY_FLAGS, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH | _RESOLVE_NO_XDEV)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(relative or b"."),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def entries_beneath(root: int, relative: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """What is in one folder below `root`, by its path from there; nothing when it went away since its parent was read.

    Any other error is raised: what could not be read for now must not count as what is not there.
    """
    try:
        descriptor = open_beneath(root, relative)
    except OSError as error:
        if not relative or error.errno not in _WENT_AWAY:
            raise
        return
    prefix = relative + b"/" if relative else b""
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    yield prefix + os.fsencode(entry.name), entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)
