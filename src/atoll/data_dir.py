"""The data directory of a control plane: who holds it, and where the images are that its server runs.

Called by `atoll.compose` and by the commands that work beside or without a server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from atoll.domain.errors import Conflict
from atoll.settings import Settings

RUNNER_ID = "runner-id"
"""Written at the first start of a server; a folder that has it is a data directory."""
_IMAGE_DIR = "image-dir"


def lock_data_dir(data_dir: Path) -> int:
    """Hold the directory alone; the descriptor is the lock. A second control plane on it would take the first one's
    sandboxes for orphans. Raises `Conflict` while a server runs."""
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Conflict(
            f"Another atoll serve uses the data directory {data_dir}; stop it, or choose another --data-dir."
        ) from None
    return descriptor


def recorded_image_dir(data_dir: Path) -> Path | None:
    """Where the images of this control plane are; None before its first server or bootstrap."""
    with contextlib.suppress(FileNotFoundError):
        return Path((data_dir / _IMAGE_DIR).read_text())
    return None


def record_image_dir(data_dir: Path, image_dir: Path) -> None:
    """Say where they are."""
    temporary = data_dir / f"{_IMAGE_DIR}.new"
    temporary.write_text(str(image_dir))
    temporary.replace(data_dir / _IMAGE_DIR)


def with_the_servers_images(settings: Settings) -> Settings:
    """The settings of a command that makes images for a server, which looks for them where it was told to and nowhere
    else: the server's directory counts, whatever ATOLL_IMAGE_DIR is for the command. The first to come decides."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    recorded = recorded_image_dir(settings.data_dir)
    if recorded is None:
        record_image_dir(settings.data_dir, settings.image_dir)
        return settings
    return settings.model_copy(update={"image_dir": recorded})
