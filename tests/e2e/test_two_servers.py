"""Two servers on one machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import leaks
from tests.server import AtollServer, ServerFailed

pytestmark = pytest.mark.gvisor


def test_a_second_server_on_the_same_data_directory_is_refused(server: AtollServer) -> None:
    client = server.client()
    sandbox_id = client.ready("first")
    second = AtollServer(server.data_dir)
    with pytest.raises(ServerFailed, match="Another atoll serve uses the data directory"):
        second.start()
    assert client.execute(sandbox_id, ["true"]).exit_code == 0


def test_servers_with_different_data_directories_do_not_touch_each_other(server: AtollServer, tmp_path: Path) -> None:
    client = server.client()
    sandbox_id = client.ready("mine")
    mine = leaks.snapshot(server.data_dir)
    other = AtollServer(tmp_path / "other")
    other.access()
    with other:
        theirs = other.client().ready("theirs")
        assert other.client().execute(theirs, ["true"]).exit_code == 0
    now = leaks.snapshot(server.data_dir)
    assert client.execute(sandbox_id, ["true"]).exit_code == 0
    assert (now.processes, now.cgroups, now.files) == (mine.processes, mine.cgroups, mine.files)
