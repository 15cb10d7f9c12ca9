"""Fixtures with a real server, for the suites whose `conftest.py` names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.images import default_image_digest
from tests.server import AtollServer


@pytest.fixture
def idle_server(tmp_path: Path) -> Iterator[AtollServer]:
    """A server that was not started yet, with an account. Nothing of it is left afterwards, whatever the test did."""
    default_image_digest()
    server = AtollServer(tmp_path / "data")
    try:
        server.access()
        yield server
    finally:
        server.close()


@pytest.fixture
def server(idle_server: AtollServer) -> AtollServer:
    """A running server without warm pools."""
    idle_server.start()
    return idle_server
