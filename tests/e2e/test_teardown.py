"""A control plane is taken off the machine for good, and only when somebody means it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests import leaks
from tests.server import AtollServer, atoll_argv, atoll_environment

pytestmark = pytest.mark.gvisor
NOTHING = leaks.Snapshot(*(frozenset[str]() for _ in range(6)))


def teardown(data_dir: Path, *words: str, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    argv = atoll_argv("teardown", "--data-dir", str(data_dir), *words)
    return subprocess.run(argv, input=typed, capture_output=True, timeout=120, check=False, env=atoll_environment({}))


def tables() -> str:
    return subprocess.run(["nft", "list", "tables"], capture_output=True, timeout=30, check=True, text=True).stdout


def test_nothing_of_a_control_plane_is_left_after_its_teardown(server: AtollServer) -> None:
    data_dir = server.data_dir
    layout = leaks.layout_of(data_dir)
    client = server.client()
    sandbox_id = client.ready("teardown")
    client.start(sandbox_id, ["sleep", "1000"])

    running = teardown(data_dir, "--yes", "--json")
    assert running.returncode == 1
    assert "stop it" in json.loads(running.stdout)["error"]
    assert client.execute(sandbox_id, ["true"]).exit_code == 0

    server.stop()
    before = leaks.snapshot(data_dir)
    assert before.processes
    assert before.namespaces
    no = teardown(data_dir, "--delete-data", typed=b"n\n")
    assert no.returncode == 1
    assert b"ends 1 sandboxes for good and deletes" in no.stderr
    unasked = teardown(data_dir, "--json")
    assert unasked.returncode == 1
    assert leaks.snapshot(data_dir).processes == before.processes

    done = teardown(data_dir, typed=b"y\n")
    assert done.returncode == 0, done.stderr
    assert leaks.snapshot(data_dir) == NOTHING
    assert layout.table not in tables()
    assert not layout.run_dir.exists()
    assert (data_dir / "atoll.db").exists()

    gone = teardown(data_dir, "--delete-data", "--yes", "--json")
    assert json.loads(gone.stdout) == {"dataDir": str(data_dir), "sandboxes": 0, "dataDeleted": True}
    assert not data_dir.exists()
    strange = teardown(data_dir.parent, "--delete-data", "--yes")
    assert strange.returncode == 1
    assert b"not the data directory" in strange.stderr
    assert data_dir.parent.exists()
