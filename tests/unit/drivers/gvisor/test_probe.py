"""The probe of runsc: what it learns from a real one, and what it says of broken ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.probe import probe_runsc

REFUSED = "cannot run with network enabled in root network namespace"


def fake_runsc(tmp_path: Path, version: str, boot: str) -> Path:
    """A runsc that tells a version, and boots as the shell lines say."""
    script = tmp_path / "runsc"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "runsc version {version}"; echo "spec: 1.0"; exit 0; }}\n{boot}\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the probe puts its files, so that a test sees what it leaves."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.gvisor
async def test_the_real_runsc_boots_and_leaves_no_file(temporary: Path) -> None:
    traits = await probe_runsc(Path("runsc"))
    assert traits.platform == "systrap"
    assert traits.version != "unknown"
    assert not any(os.scandir(temporary))


async def test_a_runsc_that_boots_needs_no_workaround(tmp_path: Path) -> None:
    traits = await probe_runsc(fake_runsc(tmp_path, "release-20240729.0", "exit 0"))
    assert (traits.version, traits.hide_proc_sys_net) == ("release-20240729.0", False)


@pytest.mark.gvisor
async def test_one_that_takes_every_network_for_the_machines_gets_the_workaround(tmp_path: Path) -> None:
    boot = f'[ -z "$(ls /proc/sys/net)" ] || {{ echo "{REFUSED}" >&2; exit 128; }}'
    traits = await probe_runsc(fake_runsc(tmp_path, "release-20240729.0", boot))
    assert traits.hide_proc_sys_net


@pytest.mark.parametrize(
    ("version", "boot", "word"),
    [
        ("0.0~20221219.0", "exit 0", "too old"),
        ("release-20240729.0", "echo broken >&2; exit 128", "cannot start a sandbox"),
        ("release-20240729.0", f'echo "{REFUSED}" >&2; exit 128', "network"),
    ],
)
async def test_a_runsc_that_will_not_do_is_named_in_a_sentence(
    tmp_path: Path, temporary: Path, version: str, boot: str, word: str
) -> None:
    with pytest.raises(RuntimeFailure, match=word) as caught:
        await probe_runsc(fake_runsc(tmp_path, version, boot))
    assert caught.value.code is ErrorCode.SANDBOX_NOT_READY
    assert "/" not in caught.value.message
    assert not any(os.scandir(temporary))


async def test_no_runsc_is_a_machine_that_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="not installed"):
        await probe_runsc(tmp_path / "none")
