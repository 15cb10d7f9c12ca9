"""What is stripped from an unpacked tree and what is added, without any registry."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from atoll.drivers.gvisor.images import rootfs as tree


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs").mkdir()
    return tmp_path / "rootfs"


def test_attributes_for_an_overlay_of_the_host_and_devices_go_and_the_rest_stays(rootfs: Path) -> None:
    file = rootfs / "file"
    file.write_text("x")
    os.setxattr(file, "trusted.overlay.redirect", b"/etc")
    os.setxattr(file, "user.kept", b"1")
    os.mknod(rootfs / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    contents = tree.strip(rootfs)
    assert os.listxattr(file) == ["user.kept"]
    assert [path.name for path in rootfs.iterdir()] == ["file"]
    assert contents.files == 1


def test_an_account_of_the_image_for_the_sandboxs_number_is_kept_with_its_home(rootfs: Path) -> None:
    (rootfs / "etc").mkdir()
    (rootfs / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnode:x:1001:1001::/home/node:/bin/bash\n")
    before = (rootfs / "etc/passwd").read_text()
    assert tree.prepare(rootfs) == "/home/node"
    assert (rootfs / "etc/passwd").read_text() == before


def test_a_name_that_is_taken_is_not_given_twice(rootfs: Path) -> None:
    (rootfs / "etc").mkdir()
    (rootfs / "etc/passwd").write_text("sandbox:x:500:500::/other:/bin/sh")
    assert tree.prepare(rootfs) == "/home/sandbox"
    assert (rootfs / "etc/passwd").read_text().splitlines()[1].startswith("sandbox1001:x:1001:1001:")


def test_a_workspace_of_the_image_becomes_the_sandboxs_own_and_keeps_its_files(rootfs: Path) -> None:
    (rootfs / "workspace").mkdir()
    (rootfs / "workspace/file").write_text("kept")
    tree.prepare(rootfs)
    assert (rootfs / "workspace").stat().st_uid == 1001
    assert (rootfs / "workspace/file").read_text() == "kept"


def test_preparing_twice_changes_nothing(rootfs: Path) -> None:
    tree.prepare(rootfs)
    once = {path: path.lstat().st_size for path in sorted(rootfs.rglob("*")) if path.is_file()}
    tree.prepare(rootfs)
    assert {path: path.lstat().st_size for path in sorted(rootfs.rglob("*")) if path.is_file()} == once


def test_a_tree_with_too_many_files_is_refused(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_FILES", 3)
    for number in range(4):
        (rootfs / str(number)).touch()
    with pytest.raises(Exception, match="more than 3 files"):
        tree.strip(rootfs)
