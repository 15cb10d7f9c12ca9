"""Archives of a workspace: GNU tar writes and reads, zstd compresses, everything streams.

Called by `atoll.storage.snapshots` in a thread. The workspace is hostile and may change while it is read, so tar runs
in a mount namespace of its own in which the folder follows no symbolic link at all (`nosymfollow`): a folder that is
swapped for a link to the host is an error there. An archive is hostile too: it is unpacked as the sandbox's own user
without privileges, who can make no device and write nowhere else, and before the sandbox exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import zstandard

from atoll.domain.volume import SANDBOX_ID_NUMBER
from atoll.storage.listing import Listing, SnapshotTooLarge
from atoll.storage.patterns import Cancelled

_LEVEL = 1
_THREADS = 2
_CHUNK_BYTES = 1024 * 1024
_MESSAGE_BYTES = 2_000
_END_SECONDS = 10.0
_MAX_WINDOW_BYTES = 128 * 1024 * 1024
_HEADER_BYTES = 16 * 1024
"""What the archive may hold per entry beside the content: headers with long names, padding, maps of sparse files."""
_GROWTH_BYTES = 64 * 1024 * 1024
"""How much files may grow while they are read before the cap counts them again."""

_CREATE = [
    *("tar", "--create", "--file=-", "--format=posix", "--pax-option=delete=atime,delete=ctime", "--sparse"),
    *("--no-recursion", "--null", "--verbatim-files-from", "--files-from=-", "--numeric-owner"),
    *(f"--owner=:{SANDBOX_ID_NUMBER}", f"--group=:{SANDBOX_ID_NUMBER}", "--warning=none"),
]
_EXTRACT = [
    *("tar", "--extract", "--file=-", "--preserve-permissions", "--no-same-owner", "--delay-directory-restore"),
    *("--numeric-owner", "--keep-directory-symlink", "--warning=none"),
]
_ISOLATED = (
    'mount --bind -- "$1" "$1" && mount -o remount,bind,ro,nosymfollow,nosuid,nodev,noexec -- "$1" && cd -- "$1" '
    '&& shift && exec "$@"'
)
_UNPRIVILEGED = [
    *("setpriv", f"--reuid={SANDBOX_ID_NUMBER}", f"--regid={SANDBOX_ID_NUMBER}", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all", "--bounding-set=-all", "--"),
]
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_TAR_CHANGED = 1
"""tar's status when a file changed or went away while it was read: the archive is whole all the same."""


class ArchiveFailed(Exception):  # noqa: N818 - reads as what happened
    """tar did not do its work, or the archive is damaged. For the operator's log."""


def pack(
    folder: Path, listing: Listing, max_bytes: int, cancel: threading.Event, counted: list[int]
) -> Iterator[bytes]:
    """The compressed archive, in chunks. The length before compression is left in `counted[0]`.

    Raises `SnapshotTooLarge` when files grow far over the cap meanwhile, `ArchiveFailed`, `Cancelled`.
    """
    compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=_THREADS, write_checksum=True).compressobj()
    limit = max_bytes + _GROWTH_BYTES + _HEADER_BYTES * len(listing.paths)
    length = 0
    with tempfile.TemporaryFile() as names, _child(_create_argv(folder), stdin=names, write_names=listing.paths) as tar:
        stream = _piped(tar.stdout)
        while chunk := stream.read(_CHUNK_BYTES):
            if cancel.is_set():
                raise Cancelled
            length += len(chunk)
            if length > limit:
                raise SnapshotTooLarge
            if compressed := compressor.compress(chunk):
                yield compressed
        _check_end(tar, allowed=(0, _TAR_CHANGED))
    yield compressor.flush()
    counted[0] = length


def unpack(chunks: Iterator[bytes], folder: Path, length: int, cancel: threading.Event) -> None:
    """Unpack an archive into an empty folder that nothing runs in. `length` is what it was before compression.

    Raises `ArchiveFailed` for a damaged or hostile one; what was unpacked until then is the caller's to throw away.
    """
    with _child(_extract_argv(), stdin=subprocess.PIPE, cwd=folder) as tar:
        stdin = _piped(tar.stdin)
        try:
            for plain in _decompressed(chunks, length):
                if cancel.is_set():
                    raise Cancelled
                stdin.write(plain)
            stdin.close()
        except BrokenPipeError:
            pass  # tar has given up; its status says so
        _check_end(tar, allowed=(0,))


def _decompressed(chunks: Iterator[bytes], expected: int) -> Iterator[bytes]:
    """What the chunks unfold to, in pieces of bounded size, however much that is."""
    length = 0
    source = _Source(chunks)
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(cast("IO[bytes]", source))
        while plain := reader.read(_CHUNK_BYTES):
            length += len(plain)
            if length > expected:
                raise ArchiveFailed("the archive unfolds to more than it was made from")
            yield plain
    except zstandard.ZstdError as error:
        raise ArchiveFailed(f"the archive is damaged: {error}") from error
    # Whatever follows the compressed part is read too, for the caller's checksum.
    while source.read(_CHUNK_BYTES):
        pass
    if length < expected:
        raise ArchiveFailed("the archive ends early")


class _Source(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = memoryview(chunk)
        size = len(self._rest) if size < 0 else size
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)


def _create_argv(folder: Path) -> list[str]:
    if os.getuid() != 0:
        raise ArchiveFailed("snapshots need root: the folder is read in a mount namespace of its own")
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _ISOLATED, "sh", str(folder), *_CREATE]


def _extract_argv() -> list[str]:
    return [*(_UNPRIVILEGED if os.getuid() == 0 else []), *_EXTRACT]


class _Tar:
    """A tar process and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        self.process = process
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.said = said


@contextlib.contextmanager
def _child(
    argv: Sequence[str],
    *,
    stdin: IO[bytes] | int,
    write_names: Sequence[bytes] = (),
    cwd: Path | None = None,
) -> Iterator[_Tar]:
    """Run tar for as long as the block; whatever happens, none of its group outlives it."""
    if not isinstance(stdin, int):
        stdin.writelines(name + b"\0" for name in write_names)
        stdin.seek(0)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603 - no shell sees a name; the programs are ours
            argv,
            stdin=stdin,
            stdout=subprocess.DEVNULL if stdin == subprocess.PIPE else subprocess.PIPE,
            stderr=said,
            env=_ENVIRONMENT,
            cwd=cwd,
            start_new_session=True,
            umask=0,
            bufsize=0,
        )
        try:
            yield _Tar(process, said)
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(_END_SECONDS)


def _piped(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # noqa: S101 - asked for
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
    return pipe


def _check_end(tar: _Tar, *, allowed: tuple[int, ...]) -> None:
    try:
        status = tar.process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        raise ArchiveFailed("tar did not end") from None
    if status not in allowed:
        tar.said.seek(0)
        text = tar.said.read(_MESSAGE_BYTES).decode("utf-8", "replace").strip()
        raise ArchiveFailed(f"tar ended with {status}: {text}")
