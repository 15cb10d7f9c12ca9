"""The examples of documentation pages, run as they stand against a real server."""

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
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def script_of(page: str) -> str:
    """Its blocks in their order as one script: variables that one exports are there in the next."""
    lines = ["set -e"]
    for language, block in _BLOCK.findall((ROOT / "docs" / page).read_text()):
        lines.append(block if language == "sh" else f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\n")
    assert len(lines) > 2, f"{page} has no examples"
    return "\n".join(lines)


@pytest.mark.gvisor
@pytest.mark.timeout(300)
def test_the_examples_of_the_pages_work_as_they_stand(server: AtollServer, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "atoll"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m atoll.cli.main "$@"\n')
    program.chmod(0o755)
    environment = atoll_environment(
        {
            "PATH": f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ATOLL": server.url,
            "ATOLL_DATA_DIR": str(server.data_dir),
        }
    )
    expected = {
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
    for page, words in expected.items():
        done = subprocess.run(
            ["sh", "-c", script_of(page)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PAGE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for word in words:
            assert word in done.stdout, done.stdout + done.stderr
