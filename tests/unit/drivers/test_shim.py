"""A shim is known by its folder, and its last words are read with distrust."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.drivers import shim


def test_a_process_with_the_number_of_a_shim_is_no_shim(tmp_path: Path) -> None:
    assert shim.alive(tmp_path) is None
    (tmp_path / "shim.pid").write_text(str(os.getpid()))
    assert shim.alive(tmp_path) is None
    (tmp_path / "shim.pid").write_text("not a number")
    assert shim.alive(tmp_path) is None


def test_the_folder_on_the_command_line_makes_it_one_until_it_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)", "--dir"]
    with subprocess.Popen([*words, str(tmp_path)], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            (tmp_path / "shim.pid").write_text(str(child.pid))
            assert shim.alive(tmp_path) == child.pid
            other = tmp_path / "other"
            other.mkdir()
            (other / "shim.pid").write_text(str(child.pid))
            assert shim.alive(other) is None
        finally:
            child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # Dead, and not yet reaped.
        assert shim.alive(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("code=3 signal=0 oom=0 killed=0\n", shim.Ending(3, 0, oom=False, killed=False)),
        ("code=0 signal=9 oom=1 killed=1\n", shim.Ending(0, 9, oom=True, killed=True)),
        ("", shim.Ending(-1, 0, oom=False, killed=False)),
    ],
)
def test_the_last_words_are_read(tmp_path: Path, text: str, expected: shim.Ending) -> None:
    assert shim.ending(tmp_path) is None
    (tmp_path / "exit").write_text(text)
    assert shim.ending(tmp_path) == expected


async def test_killing_where_nobody_listens_fails_quickly(tmp_path: Path) -> None:
    assert not await shim.kill(tmp_path, seconds=1)
    assert not await shim.kill(tmp_path / "none", seconds=1)


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    assert shim.log_tail(tmp_path) == ""
    (tmp_path / "runsc.log").write_bytes(b"x" * 1_000_000 + b"\xff end")
    tail = shim.log_tail(tmp_path)
    assert tail.endswith(" end")
    assert len(tail) < 20_000
