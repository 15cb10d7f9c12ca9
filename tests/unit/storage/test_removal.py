"""Folders that a sandbox filled are deleted however they look, and one that resists keeps no other."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from atoll.domain.volume import PointKind, StoragePoint
from atoll.drivers.removal import empty_folder, remove_tree
from atoll.storage import objects, workspaces
from atoll.storage.workspaces import Workspaces

DEPTH = 3_000


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # pytest's own clean-up would recurse.
    subprocess.run(["rm", "-rf", "--", str(tmp_path)], check=True, timeout=60)


def nest(folder: Path) -> None:
    """Fill a new folder with folders, one in the other."""
    folder.mkdir(parents=True)
    at = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(DEPTH):
            os.mkdir("d", dir_fd=at)
            below = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
    finally:
        os.close(at)


def test_a_deep_nest_of_folders_is_removed(root: Path) -> None:
    nest(root / "-rf")
    remove_tree(root / "-rf", root / "not there")
    assert list(root.iterdir()) == []


def test_a_folder_is_emptied_and_stays(root: Path) -> None:
    folder, outside = root / "folder", root / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    nest(folder / "deep")
    for number in range(450):
        (folder / str(number)).touch()
    (folder / "link").symlink_to(outside)
    empty_folder(folder)
    assert list(folder.iterdir()) == []
    assert (outside / "kept").exists()


def test_what_is_not_removed_in_time_is_an_error(root: Path) -> None:
    nest(root / "deep")
    with pytest.raises(OSError, match="longer than"):
        remove_tree(root / "deep", seconds=0.0001)


def test_a_volume_with_a_deep_nest_is_deleted(root: Path) -> None:
    nest(root / "v" / "data" / "deep")
    now = datetime(2026, 1, 2, tzinfo=UTC)
    point = StoragePoint("p", None, "r", "n", PointKind.FOLDER, str(root), None, None, None, None, 1, 1, now, None)
    objects.delete_volume(objects.OpenPoint(point, None), "v")
    assert not (root / "v").exists()


async def test_the_sweep_goes_on_after_a_folder_that_resists(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trash = root / "trash"
    nest(trash / "deep")
    (trash / "bad").mkdir()
    (trash / "good").mkdir()

    def removing(path: Path) -> None:
        if path.name == "bad":
            raise RecursionError
        remove_tree(path)

    monkeypatch.setattr(workspaces, "remove_tree", removing)
    Workspaces(root / "workspaces", trash).sweep()
    for _ in range(1_000):
        left = [entry.name for entry in trash.iterdir()]
        if left == ["bad"]:
            break
        await asyncio.sleep(0.02)
    assert left == ["bad"]
