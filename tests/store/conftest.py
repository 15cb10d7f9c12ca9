"""Every test of the store runs on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.databases import Store, migrated_database, opened
from tests.postgres import PostgresServer


@pytest.fixture
def store_url(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database at the present schema."""
    server = request.getfixturevalue("postgres") if database_kind == "postgresql" else None
    with migrated_database(tmp_path, server) as url:
        yield url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """A database with an account."""
    async with opened(store_url) as store:
        yield store


@pytest.fixture
async def postgres_store(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Store]:
    """A database with an account, on PostgreSQL."""
    with migrated_database(tmp_path, postgres) as url:
        async with opened(url) as store:
            yield store
