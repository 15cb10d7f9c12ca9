"""The commands of the README's section "A tour", run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import leaks
from tests.server import ROOT, AtollServer, atoll_environment

TOUR_SECONDS = 120.0
SECTION = "A tour"


def shell_blocks(text: str, section: str) -> list[str]:
    """The contents of the `sh` blocks of one section, in their order. A `#` inside a block ends no section."""
    blocks: list[str] = []
    inside, fence, language = False, False, ""
    for line in text.splitlines():
        if match := re.match(r"```(\w*)", line):
            fence, language = not fence, match[1] if not fence else ""
            if fence and inside and language == "sh":
                blocks.append("")
        elif fence:
            if inside and language == "sh":
                blocks[-1] += f"{line}\n"
        elif heading := re.match(r"#+ (.+)", line):
            inside = heading[1].strip() == section
    return blocks


def test_blocks_are_taken_from_the_section_alone() -> None:
    text = "# x\n```sh\nno\n```\n## A tour\n```sh\necho 1\n# A heading?\n```\n```json\n{}\n```\n```sh\necho 2\n```\n"
    text += "## y\n```sh\nno\n```"
    assert shell_blocks(text, SECTION) == ["echo 1\n# A heading?\n", "echo 2\n"]


@pytest.mark.gvisor
def test_the_tour_of_the_readme_works_as_it_stands(server: AtollServer, tmp_path: Path) -> None:
    blocks = shell_blocks((ROOT / "README.md").read_text(), SECTION)
    assert blocks, "the README has no tour"
    before = leaks.snapshot(server.data_dir)
    program = tmp_path / "bin" / "atoll"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m atoll.cli.main "$@"\n')
    program.chmod(0o755)
    environment = atoll_environment(
        {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "ATOLL": server.url,
            "ATOLL_DATA_DIR": str(server.data_dir),
        }
    )
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TOUR_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("READY", "Python 3.", "v22.", "Linux", '"nextSeq"', "TERMINATED"):
        assert expected in done.stdout, done.stdout
    leaks.wait_until_nothing_left(server.data_dir, before)
