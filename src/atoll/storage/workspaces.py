"""Workspaces of sandboxes whose mode takes snapshots: a folder of the local disk for each instance (SA-070).

Called by workers. The folder is bound into the sandbox as /workspace, so that an archive is made of it on the host. It
is named after the instance before the instance exists, so a crash leaves nothing that is not found again.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from atoll.domain.volume import SANDBOX_ID_NUMBER
from atoll.drivers.removal import remove_tree

_log = structlog.get_logger(__name__)


class Workspaces:
    """The folders below one root."""

    def __init__(self, root: Path, trash: Path) -> None:
        """`trash` is on the file system of `root`."""
        self._root = root
        self._trash = trash
        self._sweeping: asyncio.Task[None] | None = None

    def folder(self, instance_id: str) -> Path:
        """The workspace of an instance."""
        return self._root / instance_id / "files"

    async def prepare(self, instance_id: str, fill: Callable[[Path], Awaitable[None]]) -> Path:
        """Make the workspace and fill it, once: a second call finds it done. `fill` handles its own failures."""
        done = self._root / instance_id / "filled"
        folder = self.folder(instance_id)
        if done.exists():
            return folder
        await asyncio.to_thread(self._make, instance_id)
        await fill(folder)
        done.touch()
        return folder

    async def remove(self, instance_id: str) -> None:
        """Take away the workspace of an instance that is dead; fine when there is none.

        Its files are deleted afterwards: many of them take longer than whoever pauses a sandbox should wait.
        """
        folder = self._root / instance_id
        if folder.exists():
            self._trash.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.rename(Path(tempfile.mkdtemp(dir=self._trash), instance_id))
            self.sweep()

    def sweep(self) -> None:
        """Begin to delete what was removed, also what an earlier life of the server did not come to."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        tried: set[Path] = set()
        while found := await asyncio.to_thread(self._removed, tried):
            for folder in found:
                tried.add(folder)
                try:
                    await asyncio.to_thread(remove_tree, folder)
                except Exception as error:  # the rest must go all the same; the next sweep tries again
                    _log.warning("a removed workspace resists", error=str(error))

    def _removed(self, tried: set[Path]) -> set[Path]:
        return set(self._trash.iterdir()) - tried if self._trash.exists() else set()

    def instances(self) -> set[str]:
        """Instances that have one."""
        if not self._root.exists():
            return set()
        return {entry.name for entry in os.scandir(self._root)}

    def _make(self, instance_id: str) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_tree(self._root / instance_id)
        folder = self.folder(instance_id)
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            os.chown(folder, SANDBOX_ID_NUMBER, SANDBOX_ID_NUMBER)
