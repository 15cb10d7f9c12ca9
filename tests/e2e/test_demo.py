"""`make demo` without make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import leaks
from tests.images import default_image_digest
from tests.server import ROOT, atoll_environment

pytestmark = pytest.mark.gvisor
DEMO_SECONDS = 180.0


def run_demo(data_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    default_image_digest()
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--data-dir", str(data_dir)],
        env=atoll_environment(environment),
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )


def test_the_demo_shows_a_whole_life_and_leaves_nothing(tmp_path: Path) -> None:
    data_dir = tmp_path / "demo"
    try:
        before = leaks.snapshot(data_dir)
        done = run_demo(data_dir)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Starting gVisor" in done.stdout
        assert "each once and none lost; exit code 7" in done.stdout
        assert "All of it worked" in done.stdout
        leaks.wait_until_nothing_left(data_dir, before, pool=0)
    finally:
        leaks.sweep(data_dir)


def test_the_demo_says_in_a_sentence_what_failed(tmp_path: Path) -> None:
    data_dir = tmp_path / "demo"
    broken = tmp_path / "runsc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    try:
        before = leaks.snapshot(data_dir)
        done = run_demo(data_dir, ATOLL_RUNSC=str(broken))
        assert done.returncode == 1
        assert "Failed: " in done.stdout
        assert "Traceback" not in done.stdout + done.stderr
        leaks.wait_until_nothing_left(data_dir, before, pool=0)
    finally:
        leaks.sweep(data_dir)
