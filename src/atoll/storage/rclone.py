"""The rclone that serves a volume as a folder: its command line, its environment, what it has yet to store.

Called by the mounts. rclone gives what the specification says of a volume (SA-072, SA-092 … SA-097): every file 0664
and every folder 2775 of the volume's owner, changed modes and times accepted and not kept, a file stored once it is
closed. Credentials reach it in its environment, which root alone can read, never in its arguments.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from atoll.domain.volume import PointKind, SharedVolume
from atoll.storage.objects import OpenPoint

_DIRECTORY_MODE = "20000775"
"""2775 as rclone understands it: the set-group-id bit has another place in Go's modes."""
_WRITE_BACK = "20ms"
"""From the close of a file to its upload. Not 0: rclone would upload within the kernel's release, which comes after
close(2) has returned, and a rename right behind it, as git renames its every lock, would pull the file away from under
the upload. With any delay the file waits in a queue that knows of renames."""
_OPTIONS = (
    *("--file-perms", "0664", "--dir-perms", _DIRECTORY_MODE, "--umask", "0", "--no-modtime", "--allow-other"),
    # A symbolic link is an object that holds where it leads; nothing on this machine follows it.
    "--vfs-links",
    *("--vfs-cache-mode", "writes", "--vfs-write-back", _WRITE_BACK),
    # What is stored leaves the machine's disk soon. What is open or not stored yet is bounded by no option: the driver
    # counts the cache as temporary disk of the sandbox.
    *("--vfs-cache-max-age", "10s", "--vfs-cache-poll-interval", "5s", "--vfs-cache-max-size", "64M"),
    # How soon one sandbox sees what another one wrote. A folder that nobody looked at for twice as long is forgotten
    # and comes back with the time at which its last file was stored: tar would say of it that it has changed.
    *("--dir-cache-time", "5s", "--attr-timeout", "1s", "--poll-interval", "0"),
    *("--config", "/dev/null", "--log-level", "ERROR", "--use-mmap", "--buffer-size", "4M"),
)
_RESTING_MEMORY = "32MiB"
_PART_BYTES = 1024 * 1024


def program() -> str:
    """The rclone that Atoll depends on, which lies beside its interpreter, or else the machine's."""
    own = Path(sysconfig.get_path("scripts"), "rclone")
    return str(own) if own.exists() else shutil.which("rclone") or "rclone"


def mount_argv(source: str, folder: Path, volume: SharedVolume, *, cache: Path, log: Path) -> list[str]:
    """The command line that serves a volume at a folder until it is unmounted."""
    return [
        *(program(), "mount", source, str(folder)),
        *("--uid", str(volume.uid), "--gid", str(volume.gid), "--cache-dir", str(cache), "--log-file", str(log)),
        *_OPTIONS,
    ]


def source(opened: OpenPoint, volume: SharedVolume) -> str:
    """What is served, as rclone names it. A folder is made when it is not there."""
    data = opened.folder(volume.id)
    if data is None:
        return f":s3:{opened.point.location.rstrip('/')}/{volume.id}/data"
    data.mkdir(mode=0o2775, parents=True, exist_ok=True)
    return f":local:{data}"


def environment(opened: OpenPoint) -> dict[str, str]:
    """What rclone needs to reach a point. Holds its secret."""
    point = opened.point
    told = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "GOMEMLIMIT": _RESTING_MEMORY}
    if point.kind is PointKind.FOLDER:
        return told
    told |= {
        "RCLONE_S3_PROVIDER": "AWS" if point.endpoint is None else "Other",
        "RCLONE_S3_REGION": point.bucket_region or "us-east-1",
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
        "RCLONE_S3_DIRECTORY_MARKERS": "true",
    }
    if point.endpoint is not None:
        told["RCLONE_S3_ENDPOINT"] = point.endpoint
    if point.access_key_id is not None and opened.secret_access_key is not None:
        told["RCLONE_S3_ACCESS_KEY_ID"] = point.access_key_id
        told["RCLONE_S3_SECRET_ACCESS_KEY"] = opened.secret_access_key
    else:
        told["RCLONE_S3_ENV_AUTH"] = "true"
        told |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return told


def holds_unstored(cache: Path) -> bool:
    """Whether something was written that is not in the volume yet: rclone marks it on disk before the first byte.

    Blocks for as long as it takes to read a small file for each cached one. A torn mark is being written, or was cut
    off by a crash, and then the next rclone takes it away: until then it waits. Raises `OSError` when the marks cannot
    be read: nothing may be concluded from that.
    """
    return any(_is_dirty(mark) is not False for mark in _files_below(cache / "vfsMeta"))


def mend_marks(cache: Path, data: Path | None) -> None:
    """Make torn marks whole where it is certain that the cache has all of the file: the next rclone drops the others.

    A rclone that is killed while it rewrites a mark leaves it empty. `data` is the folder that is served, if it is one.
    Only while no rclone serves the cache. Blocks for as long as it takes to read the files of torn marks. Raises
    `OSError`.
    """
    for mark in list(_files_below(cache / "vfsMeta")):
        if _is_dirty(mark) is not None:
            continue
        relative = mark.relative_to(cache / "vfsMeta")
        cached = cache / "vfs" / relative
        # The first part names the remote; where that is a folder of this machine, its path follows.
        served = Path("/", *relative.parts[1:])
        is_new = data is not None and served.is_relative_to(data) and not os.path.lexists(served)
        with contextlib.suppress(FileNotFoundError):
            if is_new or _is_surely_whole(cached):
                mark.write_text(json.dumps(_dirty_mark(cached.stat())))


def _is_surely_whole(cached: Path) -> bool:
    """What is not cached of a file reads as zero bytes; an empty one may not have been given its size yet."""
    with cached.open("rb") as file:
        part = file.read(_PART_BYTES)
        if not part:
            return False
        while part and b"\0" not in part:
            part = file.read(_PART_BYTES)
        return not part


def _dirty_mark(cached: os.stat_result) -> dict[str, object]:
    """What rclone writes down of a file that it has whole and has not stored."""
    changed = datetime.fromtimestamp(cached.st_mtime, UTC).isoformat()
    whole = {"Pos": 0, "Size": cached.st_size}
    times = {"ModTime": changed, "ATime": changed}
    return times | {"Size": cached.st_size, "Rs": [whole], "Fingerprint": "", "Dirty": True}


def _is_dirty(mark: Path) -> bool | None:
    """Whether a file is marked as not stored yet; None for a mark that is torn. Raises `OSError`."""
    try:
        return json.loads(mark.read_bytes()).get("Dirty") is True
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError):
        return None


def _files_below(folder: Path) -> Iterator[Path]:
    """Without recursion: the sandbox chooses how deep its folders nest."""
    folders = [folder]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield Path(entry.path)
