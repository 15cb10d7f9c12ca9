"""Fixtures with a real server, for the suites whose `conftest.py` names them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.images import default_image_digest
from tests.server import AtollServer


@contextmanager
def _with_an_account(folder: Path) -> Iterator[AtollServer]:
    """A server that was not started yet. Nothing of it is left afterwards, whatever the tests did."""
    default_image_digest()
    server = AtollServer(folder / "data")
    try:
        server.access()
        yield server
    finally:
        server.close()


@pytest.fixture
def idle_server(tmp_path: Path) -> Iterator[AtollServer]:
    """A server of the test's own that was not started yet, with an account."""
    with _with_an_account(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtollServer]:
    """One running server for the tests of a file."""
    with _with_an_account(tmp_path_factory.mktemp("shared")) as server:
        server.start()
        yield server


@pytest.fixture
def server(idle_server: AtollServer) -> AtollServer:
    """A running server without warm pools."""
    idle_server.start()
    return idle_server
