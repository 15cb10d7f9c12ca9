"""Workspaces of sandboxes whose mode takes snapshots: a folder of the local disk for each instance (SA-070).

Called by workers. The folder is bound into the sandbox as /workspace, so that an archive is made of it on the host. It
is named after the instance before the instance exists, so a crash leaves nothing that is not found again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from atoll.domain.volume import SANDBOX_ID_NUMBER


class Workspaces:
    """The folders below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

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
        """Delete the workspace of an instance that is dead; fine when there is none."""
        await asyncio.to_thread(self._remove, self._root / instance_id)

    def instances(self) -> set[str]:
        """Instances that have one."""
        if not self._root.exists():
            return set()
        return {entry.name for entry in os.scandir(self._root)}

    def _make(self, instance_id: str) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove(self._root / instance_id)
        folder = self.folder(instance_id)
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            os.chown(folder, SANDBOX_ID_NUMBER, SANDBOX_ID_NUMBER)

    @staticmethod
    def _remove(folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
