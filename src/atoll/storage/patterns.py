"""Gitignore patterns: what `snapshotExclude` says of one path.

Called by `atoll.storage.listing`. Patterns come from clients and names from sandboxes, and Python holds its lock while
an expression is matched. So a pattern becomes an expression that cannot go back on what it has matched: what stands
between two wildcards is taken where it first fits, in an atomic group, which is right since all of it has a fixed
length. The work is bounded by the length of the pattern times that of the path. Nothing here touches files.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ANY = "[^/]"
_FOLDER = "[^/]+/"
_NOTHING = "(?!)"
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    "space": r" \t\n\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class Cancelled(Exception):  # noqa: N818 - reads as what happened
    """Whoever asked for the work no longer wants it."""


class _NotUnderstood(Exception):  # noqa: N818 - reads as what happened
    """git would match nothing with the pattern."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    excludes: bool
    only_folders: bool
    only_name: bool
    """It has no slash, so it speaks of the last part of a path."""
    expression: re.Pattern[str]


def matcher(patterns: Sequence[str], cancel: threading.Event) -> Callable[[str, bool], bool]:
    """Whether an entry is excluded, as git would say of it alone: the last pattern that matches the entry decides.

    The path is relative. Excluded folders are not walked, so nothing below one can be taken in again (SA-036). Patterns
    that git would not understand match nothing. What is returned raises `Cancelled`, looking before each pattern.
    """
    compiled = [pattern for line in patterns if (pattern := _compile(line)) is not None]
    compiled.reverse()

    def excluded(path: str, is_folder: bool) -> bool:  # noqa: FBT001 - a fact about the entry
        name = path.rpartition("/")[2]
        for pattern in compiled:
            if cancel.is_set():
                raise Cancelled
            if pattern.only_folders and not is_folder:
                continue
            if pattern.expression.fullmatch(name if pattern.only_name else path) is not None:
                return pattern.excludes
        return False

    return excluded


def _compile(line: str) -> _Pattern | None:
    line = _without_trailing_spaces(line.rstrip("\r\n"))
    if line.startswith("#"):
        return None
    excludes = not line.startswith("!")
    text = line if excludes else line[1:]
    only_folders = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    only_name = "/" not in text
    try:
        segments = _segments(text.removeprefix("/"))
    except _NotUnderstood:
        return None
    return _Pattern(excludes, only_folders, only_name, re.compile(_expression(segments)))


def _without_trailing_spaces(line: str) -> str:
    """As git does: a space that is escaped stays."""
    bare = line.rstrip(" ")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if backslashes % 2 and bare != line else bare


def _expression(segments: list[list[str]]) -> str:
    """One expression for the whole path."""
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == ["**"]:
            runs.append([])
        else:
            runs[-1].append(_segment(segment))
    first, *rest = runs
    if not rest:
        return "/".join(first)
    folders = f"(?:{_FOLDER})*"
    middle = "".join(f"(?>{folders}?{_each_with_slash(run)})" for run in rest[:-1] if run)
    return _each_with_slash(first) + middle + folders + ("/".join(rest[-1]) or f"{_ANY}+")


def _each_with_slash(run: list[str]) -> str:
    return "".join(f"{segment}/" for segment in run)


def _segment(pieces: list[str]) -> str:
    """The expression of what stands between two slashes."""
    chunks = [""]
    for piece in pieces:
        if piece in {"*", "**"}:
            chunks.append("")
        else:
            chunks[-1] += piece
    first, *rest = chunks
    if not rest:
        return first
    middle = "".join(f"(?>{_ANY}*?{chunk})" for chunk in rest[:-1] if chunk)
    return f"{first}{middle}{_ANY}*{rest[-1]}"


def _segments(text: str) -> list[list[str]]:
    """Expressions of one character each, `*` and `**`, by segment. Raises `_NotUnderstood`."""
    segments: list[list[str]] = [[]]
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            if at == len(text):
                raise _NotUnderstood
            char = text[at]
            at += 1
            if char != "/":
                segments[-1].append(re.escape(char))
                continue
        if char == "/":
            segments.append([])
        elif char == "*":
            end = at
            while text[end : end + 1] == "*":
                end += 1
            whole = not segments[-1] and (end == len(text) or text[end] == "/")
            segments[-1].append("**" if whole and end > at else "*")
            at = end
        elif char == "?":
            segments[-1].append(_ANY)
        elif char == "[":
            expression, at = _bracket(text, at)
            segments[-1].append(expression)
        else:
            segments[-1].append(re.escape(char))
    return segments


def _bracket(text: str, at: int) -> tuple[str, int]:
    """The expression of `[…]`, whose inside begins at `at`, and where the text goes on."""
    negated = text[at : at + 1] in {"!", "^"}
    at += negated
    items: list[str] = []
    before: str | None = None
    first = True
    while first or text[at : at + 1] != "]":
        first = False
        if text.startswith("[:", at) and (end := text.find("]", at + 2)) > at + 2 and text[end - 1] == ":":
            named = _CLASSES.get(text[at + 2 : end - 1])
            if named is None:
                raise _NotUnderstood
            items.append(named)
            at, before = end + 1, None
        elif text.startswith("-", at) and before is not None and text[at + 1 : at + 2] not in {"", "]"}:
            upper, at = _character(text, at + 1)
            if before <= upper:
                items.append(f"{_escaped(before)}-{_escaped(upper)}")
            before = None
        else:
            before, at = _character(text, at)
            items.append(_escaped(before))
    if not items:
        return (_ANY if negated else _NOTHING), at + 1
    return f"(?!/)[{'^' if negated else ''}{''.join(items)}]", at + 1


def _character(text: str, at: int) -> tuple[str, int]:
    """One character inside `[…]`, escaped or not, and where the text goes on."""
    at += text.startswith("\\", at)
    if at >= len(text):
        raise _NotUnderstood
    return text[at], at + 1


def _escaped(char: str) -> str:
    return f"\\U{ord(char):08x}"
