"""The doctor: a machine that lacks everything is told so with a remedy, and nothing of a check is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from atoll.drivers.gvisor.doctor import Finding, Machine, Status, examine
from atoll.drivers.gvisor.images import ImageStore


def machine(tmp_path: Path, **where: Path) -> Machine:
    return Machine(images=ImageStore(tmp_path / "images"), agent=tmp_path / "agent", **where)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


async def test_without_any_program_each_is_missing_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_name(await examine(machine(tmp_path)))
    for name in ("runsc", "network", "nft", "mounts", "skopeo", "umoci", "mmdebstrap"):
        assert (found[name].status, found[name].remedy) == (Status.MISSING, "sh deploy/setup-machine.sh"), name
    assert found["agent"].status is Status.MISSING
    assert found["default image"].status is Status.WARNING


@pytest.mark.parametrize(
    ("controllers", "status"), [("cpuset cpu io memory pids", Status.OK), ("cpu pids", Status.MISSING)]
)
async def test_version_two_of_control_groups_is_judged_by_its_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str, status: Status
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cgroup.controllers").write_text(f"{controllers}\n")
    found = by_name(await examine(machine(tmp_path, cgroup=tmp_path / "cgroup")))["control groups"]
    assert found.status is status
    assert "version 2" in found.detail


async def test_version_one_of_control_groups_names_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("cpu", "pids"):
        (tmp_path / "cgroup" / name).mkdir(parents=True)
        (tmp_path / "cgroup" / name / "cgroup.procs").touch()
    found = by_name(await examine(machine(tmp_path, cgroup=tmp_path / "cgroup")))["control groups"]
    assert (found.status, found.detail) == (Status.MISSING, "version 1 without the controllers memory")


async def test_an_agent_for_another_machine_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "agent").write_bytes(b"\x7fELF not for here")
    (tmp_path / "agent").chmod(0o755)
    assert by_name(await examine(machine(tmp_path)))["agent"].status is Status.MISSING


def left_by_checks() -> list[str]:
    """Namespaces and mounts of the doctor that are still there."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=10).stdout
    mounts = Path("/proc/self/mounts").read_text()
    return [line for line in spaces.splitlines() if line.startswith(f"atoll-doctor-{os.getpid()}")] + [
        line for line in mounts.splitlines() if " /mnt " in line
    ]


@pytest.mark.gvisor
async def test_on_this_machine_nothing_that_sandboxes_need_is_missing_and_nothing_is_left(tmp_path: Path) -> None:
    found = await examine(machine(tmp_path))
    missing = [finding for finding in found if finding.status is Status.MISSING]
    assert [finding.name for finding in missing] == ["agent"]
    assert left_by_checks() == []


async def test_what_lists_of_domains_take_is_checked_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(await examine(machine(tmp_path)))["domain control"].status is Status.OK
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("unshare", "setsid"):
        (programs / name).symlink_to(Path(shutil.which(name) or ""))
    nft = programs / "nft"
    nft.write_text('#!/bin/sh\n[ "$1" = --version ]\n')
    nft.chmod(0o755)
    for name in ("sh", "true"):
        (programs / name).symlink_to(Path(shutil.which(name) or ""))
    monkeypatch.setenv("PATH", str(programs))
    found = by_name(await examine(machine(tmp_path)))["domain control"]
    assert (found.status, found.remedy) == (Status.WARNING, "modprobe -a nft_socket nft_redir nft_masq nft_fib_inet")
    nft.unlink()
    found = by_name(await examine(machine(tmp_path)))["domain control"]
    assert (found.status, found.remedy) == (Status.WARNING, "sh deploy/setup-machine.sh")
    (programs / "python").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python").chmod(0o755)
    found = by_name(await examine(machine(tmp_path, python=programs / "python")))["domain control"]
    assert (found.status, found.remedy) == (Status.WARNING, "pip install --force-reinstall .")
