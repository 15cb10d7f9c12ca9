"""Where this machine gets Debian's packages from: its own APT sources, in both of their formats.

The default image's build asks it, so that the image comes from the mirror that the machine uses, whichever it is. Pure
but for reading the files. It names no mirror itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMES = frozenset({"bookworm", "trixie", "forky", "stable", "oldstable", "testing", "sid"})
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


@dataclass(frozen=True, slots=True)
class Source:
    """One archive: where it is, which suite, and what its signature is checked with."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str | None = None
    """A keyring's path; None leaves it to APT's own keyrings."""
    trusted: bool = False
    """The operator turned signatures off for it."""

    def line(self, suite: str) -> str:
        """The source in the one-line format, for another suite of the same archive."""
        options = [f"signed-by={self.signed_by}"] * (self.signed_by is not None) + ["trusted=yes"] * self.trusted
        bracket = f"[{' '.join(options)}] " if options else ""
        return f"deb {bracket}{self.uri} {suite} main"


def debian_lines(codename: str, etc_apt: Path = Path("/etc/apt")) -> list[str]:
    """One-line sources of `main` for a Debian release, from the archives that this machine uses for its own.

    Updates and security are among them where the machine has them. Empty when the machine has no Debian archive.
    """
    lines: dict[str, str] = {}
    for source in read_sources(etc_apt):
        name, _, kind = source.suite.replace("/", "-").partition("-")
        if name not in _NAMES or "main" not in source.components or not _debians_own(source):
            continue
        if kind in ("", "updates", "security"):
            suite = f"{codename}-{kind}" if kind else codename
            lines.setdefault(suite, source.line(suite))
    return [lines[suite] for suite in sorted(lines)] if codename in lines else []


def read_sources(etc_apt: Path) -> list[Source]:
    """Every enabled source of binary packages, in APT's order."""
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    found: list[Source] = []
    for file in files:
        if not file.is_file() or file.suffix not in (".list", ".sources"):
            continue
        text = file.read_text(errors="replace")
        found.extend(_deb822(text) if file.suffix == ".sources" else _one_line(text))
    return found


def _debians_own(source: Source) -> bool:
    """Whether it can be Debian's archive: other vendors borrow its suites' names, but sign with keys of their own."""
    return source.signed_by is None or "debian" in Path(source.signed_by).name


def _one_line(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match:
            options = dict(part.split("=", 1) for part in (match["options"] or "").split() if "=" in part)
            yield Source(
                match["uri"],
                match["suite"],
                tuple(match["components"].split()),
                options.get("signed-by"),
                options.get("trusted") == "yes",
            )


def _deb822(text: str) -> Iterator[Source]:
    for stanza in re.split(r"\n[ \t]*\n", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')}\n{line}"
            elif ":" in line:
                name = line.partition(":")[0].strip().lower()
                fields[name] = line.partition(":")[2]
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").strip().lower() == "no":
            continue
        # A key written into the file itself cannot be named in a one-line source; APT's own keyrings must do.
        signed_by = fields.get("signed-by", "").strip()
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(
                    uri,
                    suite,
                    tuple(fields.get("components", "").split()),
                    signed_by if signed_by.startswith("/") else None,
                    fields.get("trusted", "").strip().lower() == "yes",
                )
