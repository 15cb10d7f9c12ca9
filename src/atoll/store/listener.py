"""Hears the wakes that other processes send through PostgreSQL."""

from __future__ import annotations

import asyncio

import psycopg
import structlog

from atoll.store.database import NOTIFY_CHANNEL, Database

log = structlog.get_logger()

_RECONNECT_SECONDS = 2.0


async def relay_notifications(database: Database) -> None:
    """Publish every notification of the database to this process's listeners, until cancelled.

    A lost connection is made again; what is missed meanwhile costs the timers' delay.
    """
    while True:
        try:
            connection = await psycopg.AsyncConnection.connect(database.url, autocommit=True)
            async with connection:
                await connection.execute(f"LISTEN {NOTIFY_CHANNEL}")
                async for notification in connection.notifies():
                    database.wakes.publish([notification.payload])
        except psycopg.Error as error:
            log.warning("listener_lost", error=type(error).__name__)
            await asyncio.sleep(_RECONNECT_SECONDS)
