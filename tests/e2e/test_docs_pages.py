"""The pages of `docs`: their examples run as they stand and print what the page says, their links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server import ROOT, AtollServer, atoll_environment

PAGE_SECONDS = 120.0
DOCS = ROOT / "docs"
WORDS = {
    "audit.md": ('"action": "save-sandbox-template"', '"outcome": "accepted"', '"address": "127.0.0.1"'),
    "gateway.md": ("hello sandbox", '"reason":"canceled"', "READY\n", "50 132"),
    "gateway-files.md": (
        "hello, sandbox",
        "/workspace/data/in/first.txt file",
        "event: created",
        "the port says ready",
    ),
    "network-control.md": ('"domainAllowlist":["github.com"]', "Could not resolve host: example.com", "TERMINATED"),
    "mcp.md": ("stdout:\nLinux", "restricted to other apps", " tools"),
}
"""What the examples of a page print, where the page shows no output or a shortened one."""
SHOWN = ("sandboxes.md", "commands.md", "persistence.md", "templates.md", "usage.md", "private-sandboxes.md")
"""Pages that show, indented below an example, what it prints to the letter."""
TESTED_ELSEWHERE = {"webhooks.md"}
"""Its code is for a receiver; `tests/api/test_webhook_docs.py` runs it."""

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OUTPUT = re.compile(r"^```\n\n((?:    .*\n)+)", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def script_of(page: str) -> str:
    """Its blocks in their order as one script: variables that one exports are there in the next."""
    lines = ["set -e"]
    for language, block in _BLOCK.findall((DOCS / page).read_text()):
        lines.append(block if language == "sh" else f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\n")
    assert len(lines) > 1, f"{page} has no examples"
    return "\n".join(lines)


def outputs_of(page: str) -> list[str]:
    """What the page says that its examples print, in their order."""
    found = [re.sub("^    ", "", block, flags=re.MULTILINE) for block in _OUTPUT.findall((DOCS / page).read_text())]
    assert found, f"{page} shows no output"
    return found


def anchors_of(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_with_examples_is_run() -> None:
    with_examples = {page.name for page in DOCS.glob("*.md") if _BLOCK.search(page.read_text())}
    assert with_examples == {*WORDS, *SHOWN} | TESTED_ELSEWHERE


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for link in _LINK.findall(_FENCE.sub("", page.read_text())):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors_of(target), f"{page.name}: {link}"


@pytest.fixture
def environment(shared_server: AtollServer, tmp_path: Path) -> dict[str, str]:
    """What a reader has: the `atoll` command, the server's address and its data directory."""
    program = tmp_path / "bin" / "atoll"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m atoll.cli.main "$@"\n')
    program.chmod(0o755)
    return atoll_environment(
        {
            "PATH": f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ATOLL": shared_server.url,
            "ATOLL_DATA_DIR": str(shared_server.data_dir),
        }
    )


@pytest.mark.gvisor
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [*WORDS, *SHOWN])
def test_the_examples_of_a_page_work_as_they_stand(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", script_of(page)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    for word in WORDS.get(page, ()):
        assert word in done.stdout, told
    read = 0
    for output in outputs_of(page) if page in SHOWN else ():
        found = done.stdout.find(output, read)
        assert found >= 0, f"{output}\nis not what was printed:\n{told}"
        read = found + len(output)
