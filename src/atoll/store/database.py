"""The database: SQLite by default, PostgreSQL by URL, behind one way to run a transaction.

A transaction is a plain function that runs in a database thread: `await database.write(function)`. It may run again
when the database asks for that (a deadlock, a busy lock), so it must do nothing but read and write rows. What it wants
to wake is collected and published after the commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from atoll.store.wakes import Wakes

T = TypeVar("T")

_BUSY_TIMEOUT_SECONDS = 15
_ATTEMPTS = 5
_READ_THREADS = 3
_POSTGRES_WRITE_THREADS = 8
_RETRIED_POSTGRES_STATES = frozenset({"40001", "40P01"})
NOTIFY_CHANNEL = "atoll_wakes"


class Transaction:
    """What a transaction function works on: the connection, the time it began, and whom to wake afterwards."""

    def __init__(self, connection: Connection, now: datetime, dialect: str) -> None:
        self.connection = connection
        self.now = now
        self.dialect = dialect
        self.topics: list[str] = []

    def wake(self, *topics: str) -> None:
        """Wake whoever waits on the topics, once the transaction is committed."""
        self.topics.extend(topics)

    @property
    def locks_rows(self) -> bool:
        """Whether rows are locked one by one; SQLite has one writer and needs no row locks."""
        return self.dialect == "postgresql"


class Database:
    """Runs transactions. `clock` gives the time of each."""

    def __init__(self, url: str, *, clock: Callable[[], datetime], wakes: Wakes) -> None:
        self.url = url
        self.clock = clock
        self.wakes = wakes
        self.engine = make_engine(url)
        self.dialect = self.engine.dialect.name
        writers = 1 if self.dialect == "sqlite" else _POSTGRES_WRITE_THREADS
        self._writers = ThreadPoolExecutor(writers, thread_name_prefix="atoll-write")
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="atoll-read")
        self._local = threading.local()
        self._connections: list[Connection] = []
        self._connections_lock = threading.Lock()

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction that may write, commit, then wake whom it named."""
        return await self._run(self._writers, self._write, function)

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function over one consistent view of the rows."""
        return await self._run(self._readers, self._read, function)

    async def _run(
        self,
        executor: ThreadPoolExecutor,
        runner: Callable[[Callable[[Transaction], T]], tuple[T, list[str]]],
        function: Callable[[Transaction], T],
    ) -> T:
        loop = asyncio.get_running_loop()
        # Shielded: a caller that goes away must not part a commit from its wakes.
        result, topics = await asyncio.shield(loop.run_in_executor(executor, runner, function))
        self.wakes.publish(topics)
        return result

    async def close(self) -> None:
        """Finish running transactions and close every connection."""
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._connections:
            connection.close()
        self.engine.dispose()

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed or connection.invalidated:
            connection = self.engine.connect()
            self._local.connection = connection
            with self._connections_lock:
                self._connections.append(connection)
        return connection

    def _write(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(function)
            except OperationalError as error:
                if attempt == _ATTEMPTS or not _worth_retrying(error):
                    raise
        raise AssertionError("unreachable")

    def _attempt(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        connection = self._connection()
        with connection.begin():
            if self.dialect == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            tx = Transaction(connection, self.clock(), self.dialect)
            result = function(tx)
            if tx.topics and tx.locks_rows:
                for topic in dict.fromkeys(tx.topics):
                    connection.execute(
                        text("SELECT pg_notify(:channel, :topic)"), {"channel": NOTIFY_CHANNEL, "topic": topic}
                    )
            return result, tx.topics

    def _read(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        connection = self._connection()
        with connection.begin():
            if self.dialect == "sqlite":
                connection.exec_driver_sql("BEGIN")
            tx = Transaction(connection, self.clock(), self.dialect)
            return function(tx), tx.topics


def make_engine(url: str) -> Engine:
    """An engine for `sqlite:///PATH` or `postgresql://…`; each thread keeps its own connection."""
    if url.startswith("sqlite"):
        engine = create_engine(url, poolclass=NullPool, connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _configure_sqlite)
        return engine
    return create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool, isolation_level="READ COMMITTED"
    )


def _configure_sqlite(connection: Any, record: Any) -> None:
    del record
    connection.isolation_level = None  # we say BEGIN ourselves
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_SECONDS * 1_000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    # FULL: what was answered survives a loss of power, not only a crash of the process.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _worth_retrying(error: OperationalError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    return state in _RETRIED_POSTGRES_STATES or "database is locked" in str(error.orig) or error.connection_invalidated
