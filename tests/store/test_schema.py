"""The schema is the sum of its migrations, and migrating is safe to repeat and to do from several processes at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect

from atoll.store import migrate
from atoll.store.database import make_engine
from atoll.store.tables import metadata

pytestmark = pytest.mark.both_databases

UPGRADE = """
import sys
from atoll.store import migrate
from atoll.store.database import make_engine
migrate.upgrade(make_engine(sys.argv[1]))
"""


@pytest.fixture
def empty_url(database_url: str | None, tmp_path: Path) -> str:
    return database_url or f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    engine = make_engine(empty_url)
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))


def test_the_migrations_make_exactly_the_tables_of_the_code(engine: Engine) -> None:
    assert differences(engine)  # it would see a difference
    migrate.upgrade(engine)
    assert differences(engine) == []


def test_migrating_again_changes_nothing(engine: Engine) -> None:
    migrate.upgrade(engine)
    migrate.upgrade(engine)
    assert differences(engine) == []


def test_several_processes_migrate_one_empty_database(engine: Engine, empty_url: str) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", UPGRADE, empty_url], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert differences(engine) == []


@pytest.mark.spec("SA-121", "SA-124", "SA-125")
def test_the_database_itself_keeps_create_identities_apart(engine: Engine) -> None:
    migrate.upgrade(engine)
    unique = [set(item["column_names"]) for item in inspect(engine).get_unique_constraints("sandboxes")]
    assert {"account_id", "app_id", "caller_key", "idempotency_key"} in unique
