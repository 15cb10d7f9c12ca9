"""Holds a PostgreSQL database for one control plane. Called by compose; SQLite's lies in a folder that is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from atoll.domain.errors import Conflict
from atoll.store.database import Database

_KEY = 0x61746F6C6C  # "atoll"
_WAIT_SECONDS = 10.0
"""PostgreSQL may not have noticed yet that an earlier one was killed."""
_LOOK_SECONDS = 0.2


@asynccontextmanager
async def sole_control_plane(database: Database) -> AsyncIterator[None]:
    """Hold the database while the block runs; raises `Conflict` when another control plane does.

    Two would take each other's sandboxes for lost: each knows the instances of its own machine alone. It guards a
    start: PostgreSQL lets go when the connection is lost, and the one that runs is not stopped for that.
    """
    if database.dialect != "postgresql":
        yield
        return
    connection = await psycopg.AsyncConnection.connect(database.url, autocommit=True)
    async with connection:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not await _taken(connection):  # noqa: ASYNC110 - nobody tells when it is free
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise Conflict(
                "Another atoll serve works on this database. Stop it first, or give this one a database of its own."
            ) from None
        yield


async def _taken(connection: psycopg.AsyncConnection[tuple[bool]]) -> bool:
    row = await (await connection.execute("SELECT pg_try_advisory_lock(%s)", (_KEY,))).fetchone()
    return row is not None and row[0]
