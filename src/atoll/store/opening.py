"""Opens a database at the present schema."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from atoll.store import migrate
from atoll.store.database import Database
from atoll.store.wakes import Wakes


def open_database(url: str, *, clock: Callable[[], datetime], wakes: Wakes) -> Database:
    """Open the database and apply the migrations that it lacks."""
    database = Database(url, clock=clock, wakes=wakes)
    migrate.upgrade(database.engine)
    return database
