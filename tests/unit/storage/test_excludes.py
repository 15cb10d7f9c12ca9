"""Exclude patterns mean what they mean in a .gitignore: held against git itself."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.storage.patterns import Cancelled, matcher

_NAMES = st.sampled_from(
    ["a", "b", "build", "tmp", "x.log", "node_modules", "a b", ".hidden", "[x]", "abab", "a-b", "A1", "x\\y"]
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_WORDS = ["a", "b", "build", "tmp", "node_modules", "a b"]
_GLOBS = [
    *(
        "*.log",
        "*",
        "**",
        "***",
        "?",
        "x.*",
        ".*",
        "\\a",
        "\\[x]",
        "*a*b*",
        "*a*b",
        "**b",
        "?*",
        "*b?*",
        "*\\**",
        "a\\",
    ),
    *("[ab]", "[!a]", "[^a]*", "[a-c]", "[z-a]", "[!z-a]", "[]x]", "[[]x]", "*[a-]b", "[[:upper:]]?", "*[[:digit:]]"),
    *("[a", "[[:none:]]", "[\\]", "[a\\-b]", "[[:x]*", "x[+-z]y", "x[/\\\\]y", "x[!/]y", "a ", "b\\ "),
]
_PIECES = st.sampled_from([*_WORDS, *_GLOBS])
_PATTERNS = st.builds(
    lambda negated, rooted, pieces, folder: negated + rooted + "/".join(pieces) + folder,
    st.sampled_from(["", "", "", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(_PIECES, min_size=1, max_size=3),
    st.sampled_from(["", "/"]),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True, timeout=30)
    yield root
    shutil.rmtree(root)


def _git_keeps(root: Path, patterns: list[str], files: set[str]) -> set[str]:
    for entry in root.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for file in files:
        # check-ignore asks the file system what is a folder.
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"")
    (root / ".git" / "info" / "exclude").write_text("\n".join(patterns) + "\n", encoding="utf-8")
    told = subprocess.run(
        ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=root,
        input="\0".join(sorted(files)).encode(),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert told.returncode in {0, 1}, told.stderr
    return files - {name.decode() for name in told.stdout.split(b"\0") if name}


def _kept(files: set[str], patterns: list[str]) -> set[str]:
    """What the walk would keep: an excluded folder is not entered."""
    excluded = matcher(patterns, threading.Event())
    kept = set()
    for file in files:
        parts = file.split("/")
        entries = [("/".join(parts[:n]), n < len(parts)) for n in range(1, len(parts) + 1)]
        if not any(excluded(path, is_folder) for path, is_folder in entries):
            kept.add(file)
    return kept


def _without_clashes(paths: list[str]) -> set[str]:
    """No path that is a file in one and a folder in another."""
    return {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}


@pytest.mark.spec("SA-036")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=st.lists(_PATHS, min_size=1, max_size=8), patterns=st.lists(_PATTERNS, min_size=1, max_size=4))
def test_patterns_exclude_what_git_ignores(repository: Path, paths: list[str], patterns: list[str]) -> None:
    files = _without_clashes(paths)
    assert _kept(files, patterns) == _git_keeps(repository, patterns, files)


@pytest.mark.spec("SA-036")
@pytest.mark.parametrize(
    ("pattern", "excluded_paths", "kept_paths"),
    [
        ("node_modules", ["node_modules/x.js", "web/node_modules/y.js"], ["node_modules.txt"]),
        ("*.log", ["a.log", "deep/down/b.log"], ["log", "a.log.txt"]),
        ("build/tmp", ["build/tmp/x", "build/tmp"], ["web/build/tmp/x", "build/temporary"]),
        ("# a comment", [], ["# a comment"]),
    ],
)
def test_a_name_a_glob_and_a_path_each_exclude(pattern: str, excluded_paths: list[str], kept_paths: list[str]) -> None:
    assert _kept({*excluded_paths, *kept_paths}, [pattern]) == set(kept_paths)


def test_a_pattern_that_git_does_not_understand_excludes_nothing() -> None:
    assert _kept({"a", "b"}, ["!", "/", "\\"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*a*a*a*ab", "a" * 255),
        ("*?" * 127 + "b", "a" * 255),
        ("*[a-b]" * 100 + "c", "a" * 255),
        ("**/a/" * 150 + "b", "a/" * 2_000 + "a"),
        ("**/*a*a*a*a*ab/" * 20 + "b", "/".join(["a" * 255] * 15)),
    ],
)
def test_no_pattern_makes_matching_slow(pattern: str, path: str) -> None:
    excluded = matcher([pattern], threading.Event())
    began = time.process_time()
    assert not excluded(path, False)
    assert time.process_time() - began < 0.1


def test_matching_stops_when_nobody_wants_it_any_more() -> None:
    cancel = threading.Event()
    excluded = matcher(["a"], cancel)
    assert excluded("a", False)
    cancel.set()
    with pytest.raises(Cancelled):
        excluded("a", False)
