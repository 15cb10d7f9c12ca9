"""Makes an unpacked image fit to be a sandbox's root: strips what must not be kept, adds what every sandbox has.

The image store calls it once, before the image is published, while nothing else can touch the tree. The tree is
hostile: its symlinks may point anywhere on the host, so every step goes from one directory descriptor to the next and
follows none.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll.drivers.gvisor.images.failures import invalid_image

SANDBOX_ID = 1001
"""User and group of every command."""
DEFAULT_HOME = "/home/sandbox"
MAX_FILES = 2_000_000
_MAX_ACCOUNT_FILE = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HOSTS = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a tree holds."""

    files: int
    bytes: int


def measure(rootfs: Path) -> Contents:
    """Count a tree that may still be growing, without following symlinks."""
    files = size = 0
    for _, _, status in _walk(rootfs):
        files += 1
        size += status.st_blocks * 512
    return Contents(files, size)


def strip(rootfs: Path) -> Contents:
    """Remove device nodes and the attributes that an overlay mount of the host would obey; count the rest.

    Nobody mounts the tree with `nodev`, and gVisor has devices of its own. `trusted.overlay.*` could redirect an
    overlay of the host.
    """
    files = size = 0
    for parent, name, status in _walk(rootfs):
        path = f"{parent}/{name}"
        if stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            os.unlink(path)  # noqa: PTH108 - two million objects would be slow
            continue
        for attribute in os.listxattr(path, follow_symlinks=False):
            if attribute.startswith(("trusted.", "user.overlay.")):
                os.removexattr(path, attribute, follow_symlinks=False)
        files += 1
        size += status.st_blocks * 512
    return Contents(files, size)


def prepare(rootfs: Path) -> str:
    """Add the directories, mount points and account that every sandbox has; returns the account's home directory."""
    with _opened(os.open(rootfs, _DIRECTORY)) as root:
        os.fchmod(root, 0o755)
        _directory(root, ".atoll", 0o755)
        _directory(root, "workspace", 0o755, owner=SANDBOX_ID)
        for name in ("proc", "sys", "dev"):
            _directory(root, name, 0o755)
        with _subdirectory(root, "tmp", 0o1777) as found:
            if found is not None:
                os.fchmod(found, 0o1777)
        with _subdirectory(root, "home", 0o755) as home:
            if home is not None and not _exists(home, "sandbox"):
                _directory(home, "sandbox", 0o755, owner=SANDBOX_ID)
        with _subdirectory(root, "etc", 0o755) as etc:
            if etc is None:
                return DEFAULT_HOME
            _mount_point(etc, "resolv.conf", b"")
            _mount_point(etc, "hosts", _HOSTS)
            _mount_point(etc, "hostname", b"sandbox\n")
            shell = (
                "/bin/bash"
                if _exists_below(root, ("bin",), "bash") or _exists_below(root, ("usr", "bin"), "bash")
                else "/bin/sh"
            )
            entry = f"x:{SANDBOX_ID}:{SANDBOX_ID}::{DEFAULT_HOME}:{shell}"
            account = _account(etc, "passwd", "sandbox", entry, "root:x:0:0:root:/root:/bin/sh\n")
            _account(etc, "group", "sandbox", f"x:{SANDBOX_ID}:", "root:x:0:\n")
            home_path = account[5] if len(account) > 5 else ""
            return home_path if home_path.startswith("/") else DEFAULT_HOME


def _walk(rootfs: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Every object below, depth first without recursion: an image can nest deeper than Python's stack."""
    pending = [str(rootfs)]
    seen = 0
    while pending:
        parent = pending.pop()
        with contextlib.suppress(FileNotFoundError), os.scandir(parent) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_FILES:
                    raise invalid_image(f"The image has more than {MAX_FILES:,} files.")
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    pending.append(entry.path)
                yield parent, entry.name, status


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _subdirectory(parent: int, name: str, mode: int) -> Iterator[int | None]:
    """Open a directory, making it if nothing has the name; None when something else, such as a symlink, has it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        yield None
        return
    with _opened(descriptor):
        yield descriptor


def _directory(parent: int, name: str, mode: int, *, owner: int | None = None) -> None:
    """Have a real directory, in the place of whatever else has the name: it is going to be mounted on, or owned."""
    if _exists(parent, name) and not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        os.unlink(name, dir_fd=parent)
    with _subdirectory(parent, name, mode) as descriptor:
        if descriptor is not None and owner is not None:
            os.fchown(descriptor, owner, owner)


def _mount_point(parent: int, name: str, content: bytes) -> None:
    """Have a regular file: images leave these out, or leave a symlink to a file of the build's machine."""
    try:
        kind = os.lstat(name, dir_fd=parent).st_mode
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISREG(kind):
            return
        if stat.S_ISDIR(kind):
            raise invalid_image(f"The image has a directory in the place of /etc/{name}.")
        os.unlink(name, dir_fd=parent)
    _write_new(parent, name, content)


def _account(etc: int, name: str, account: str, entry: str, fresh: str) -> list[str]:
    """Have a line for the sandbox's id in passwd or group; returns the fields of the one that counts."""
    if not _exists(etc, name):
        _write_new(etc, name, f"{fresh}{account}:{entry}\n".encode())
        return [account, *entry.split(":")]
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=etc)
    except OSError:
        # A symlink (Nix images have one) or a special file: leave it; commands run by number.
        return [account, *entry.split(":")]
    with _opened(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_ACCOUNT_FILE:
            return [account, *entry.split(":")]
        text = os.read(descriptor, _MAX_ACCOUNT_FILE).decode("utf-8", "replace")
        lines = [line.split(":") for line in text.splitlines()]
        for fields in lines:
            if len(fields) > 3 and fields[2] == str(SANDBOX_ID):
                return fields
        if any(fields[0] == account for fields in lines):
            account = f"{account}{SANDBOX_ID}"
        line = f"{account}:{entry}\n"
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, (line if text.endswith("\n") or not text else f"\n{line}").encode())
        return line.strip().split(":")


def _write_new(parent: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _opened(os.open(name, flags, 0o644, dir_fd=parent)) as descriptor:
        os.fchmod(descriptor, 0o644)
        os.write(descriptor, content)


def _exists(parent: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


def _exists_below(root: int, directories: tuple[str, ...], name: str) -> bool:
    with contextlib.ExitStack() as stack:
        current = root
        for directory in directories:
            try:
                current = stack.enter_context(_opened(os.open(directory, _DIRECTORY, dir_fd=current)))
            except OSError:
                return False
        return _exists(current, name)
