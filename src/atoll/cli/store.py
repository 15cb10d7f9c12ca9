"""The database, for commands that an operator runs beside or without the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy.exc import OperationalError

from atoll.domain.errors import AtollError, Invalid
from atoll.settings import DATABASE_FILE, Settings
from atoll.store.database import Database
from atoll.store.opening import open_database
from atoll.store.wakes import Wakes
from atoll.system import random_id, utc_now


@asynccontextmanager
async def existing_database(settings: Settings) -> AsyncIterator[tuple[Database, Callable[[], str]]]:
    """As `operator_database`, of a control plane that is there: a mistyped folder must not look like an empty one."""
    if settings.database_url is None and not (settings.data_dir / DATABASE_FILE).exists():
        raise Invalid(f"There is no control plane in {settings.data_dir}; run atoll bootstrap first.", field="data-dir")
    async with operator_database(settings) as opened:
        yield opened


@asynccontextmanager
async def operator_database(settings: Settings) -> AsyncIterator[tuple[Database, Callable[[], str]]]:
    """Open the database at the present schema, and close it. Raises `AtollError` when it cannot be opened."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        database = open_database(settings.store_url, clock=utc_now, wakes=Wakes())
    except OperationalError as error:
        # Not the driver's own words: they name users and hosts.
        raise AtollError(f"The database cannot be opened ({type(error.orig).__name__}); is it running?") from None
    try:
        yield database, random_id
    finally:
        await database.close()
