"""Fixtures for every suite: a control plane per test, on SQLite or, where a test is marked so, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest
import structlog
from tests.plane import Api, Plane, open_plane
from tests.postgres import PostgresServer, running_server

# Speed is the bench's subject: on a busy machine a time limit for an example fails what is right.
hypothesis.settings.register_profile("atoll", deadline=None)
hypothesis.settings.load_profile("atoll")

SQLITE, POSTGRESQL = "sqlite", "postgresql"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_databases: the test runs on SQLite and on PostgreSQL")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_databases") is not None
        metafunc.parametrize("database_kind", [SQLITE, POSTGRESQL] if both else [SQLITE])


@pytest.fixture(autouse=True)
def quiet_logs() -> None:
    """Logs of the servers go to the test's captured output, as plain lines. For each test anew: some set up their own,
    and structlog's usual one takes tracebacks apart, which is slow."""
    structlog.reset_defaults()
    structlog.configure(processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()])


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The one PostgreSQL server of the run."""
    with running_server() as server:
        yield server


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest) -> Iterator[str | None]:
    """A database of the test's own: None is SQLite in the data directory."""
    if database_kind == SQLITE:
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
async def plane(database_url: str | None) -> AsyncIterator[Plane]:
    """A control plane of the test's own."""
    async with open_plane(database_url) as running:
        yield running


@pytest.fixture
def api(plane: Plane) -> Api:
    """The admin of the control plane's account."""
    return plane.api
