"""The deployment's secret: made once, whole, for its owner only, and the root of every other key."""

from __future__ import annotations

import base64
import os
import stat
import threading
from pathlib import Path

import pytest

from atoll.domain.errors import Invalid
from atoll.secret_key import derive_key, load_secret


def test_the_secret_is_made_at_the_first_start_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    secret = load_secret(file)
    assert len(secret) == 32
    assert load_secret(file) == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret.key"]


def test_starts_at_the_same_time_agree_on_one_secret(tmp_path: Path) -> None:
    file, found = tmp_path / "secret.key", set[bytes]()
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait(5)
        found.add(load_secret(file))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret.key"]


def test_a_stop_while_it_is_written_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        load_secret(tmp_path / "secret.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"not base64!", base64.b64encode(b"k" * 31), base64.b64encode(b"k" * 33), b"\xff\xfe", b"k" * 32],
)
def test_a_file_that_holds_something_else_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(content)
    with pytest.raises(Invalid):
        load_secret(file)
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_made_or_read_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path / "missing" / "secret.key", tmp_path):
        with pytest.raises(Invalid):
            load_secret(file)


def test_each_purpose_has_a_key_of_its_own(tmp_path: Path) -> None:
    secret = load_secret(tmp_path / "secret.key")
    keys = {derive_key(secret, purpose) for purpose in ("one", "other")} | {derive_key(b"x" * 32, "one"), secret}
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
