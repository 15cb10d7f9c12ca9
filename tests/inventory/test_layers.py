"""The layers of the source, and the sizes of its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 500
LARGER: dict[str, str] = {}
"""Files that may be longer, each with its reason."""
SOURCES = ("src/**/*.py", "src/**/*.c", "src/**/*.h", "tests/**/*.py", "bench/**/*.py", "examples/**/*.py")


def test_imports_point_one_way() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_files_stay_small() -> None:
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n") for pattern in SOURCES for path in ROOT.glob(pattern)
    }
    assert len(lengths) > 100
    too_long = {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert set(too_long) - set(LARGER) == set(), {path: too_long[path] for path in set(too_long) - set(LARGER)}
    assert set(LARGER) - set(too_long) == set(), "short by now: take it off the list"


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "shared"}
    assert not [path for path in (ROOT / "src").rglob("*.py") if path.stem in empty_names]
