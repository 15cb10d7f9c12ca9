"""The database: SQLite by default, PostgreSQL by URL, behind one way to run a transaction.

A transaction is a plain function that runs in a database thread: `await database.write(function)`. It may run again
when the database asks for that (a deadlock, a busy lock, a lost connection), so it must do nothing but read and write
rows. What it wants to wake is collected and published after the commit, also when its caller has gone away meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.store.wakes import Wakes

T = TypeVar("T")

_BUSY_TIMEOUT_SECONDS = 15
_ATTEMPTS = 5
_READ_THREADS = 3
_POSTGRES_WRITE_THREADS = 8
_POSTGRES_DISK_FULL = "53100"
_DISK_RETRY_AFTER_SECONDS = 30
_RETRIED_POSTGRES_STATES = frozenset({"40001", "40P01", "23505"})
"""Serialization failure, deadlock, and a uniqueness that a concurrent find-or-add was first to take: it finds next."""
NOTIFY_CHANNEL = "atoll_wakes"
_NOTIFY = text("SELECT pg_notify(:channel, topic) FROM unnest(CAST(:topics AS text[])) AS topic")

_GROUP = 32
"""SQLite transactions at most that are written together when they wait at the same time: waiting for the disk is most
of what one takes."""

Runner = Callable[[Callable[["Transaction"], T]], tuple[T, list[str]]]


class Transaction:
    """What a transaction function works on: the connection, the time it began, and whom to wake afterwards."""

    def __init__(self, connection: Connection, now: datetime, dialect: str) -> None:
        self.connection = connection
        # To the millisecond, as it is stored: what a transaction returns equals what is read later.
        self.now = now.replace(microsecond=now.microsecond // 1_000 * 1_000)
        self.dialect = dialect
        self.topics: list[str] = []

    def wake(self, *topics: str) -> None:
        """Wake whoever waits on the topics, once the transaction is committed."""
        self.topics.extend(topics)


class _Waiting:
    """A transaction that waits for the writer."""

    def __init__(self, function: Callable[[Transaction], Any]) -> None:
        self.function = function
        self.outcome: Future[tuple[Any, list[str]]] = Future()


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
        self._waiting: deque[_Waiting] = deque()
        """Transactions that SQLite's one writer has not begun yet."""
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="atoll-read")
        self._local = threading.local()
        self._connections: list[Connection] = []
        self._connections_lock = threading.Lock()

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction that may write, commit, then wake whom it named."""
        if self.dialect != "sqlite":
            return await self._settled(self._writers.submit(self._write, function))
        waiting = _Waiting(function)
        self._waiting.append(waiting)
        self._writers.submit(self._write_waiting)
        return await self._settled(waiting.outcome)

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function over one consistent view of the rows."""
        return await self._settled(self._readers.submit(self._read, function))

    async def _settled(self, outcome: Future[tuple[T, list[str]]]) -> T:
        future = asyncio.wrap_future(outcome)
        # By a callback of the future, which is shielded: a caller that goes away must not part a commit from its wakes.
        future.add_done_callback(self._publish)
        result, _ = await asyncio.shield(future)
        return result

    def _publish(self, future: asyncio.Future[tuple[Any, list[str]]]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.wakes.publish(future.result()[1])

    async def close(self) -> None:
        """Finish running transactions and close every connection."""
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._connections:
            connection.close()
        self.engine.dispose()

    def _connection(self, isolation_level: str | None = None) -> Connection:
        """The connection of this thread; a thread reads or writes, never both."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed or connection.invalidated:
            replaced, connection = connection, self.engine.connect()
            if isolation_level is not None:
                connection = connection.execution_options(isolation_level=isolation_level)
            self._local.connection = connection
            with self._connections_lock:
                if replaced is not None:
                    self._connections.remove(replaced)
                self._connections.append(connection)
        return connection

    def _write(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        return self._repeated(self._attempt_write, function)

    def _write_waiting(self) -> None:
        """Write all that waits, with one wait for the disk; each transaction succeeds or fails by itself."""
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _GROUP))]
        group = [waiting for waiting in group if waiting.outcome.set_running_or_notify_cancel()]
        if len(group) > 1:
            # When the database refuses: alone, each is told what happened to it.
            with suppress(DBAPIError):
                self._write_group(group)
                return
        for waiting in group:
            try:
                outcome = self._write(waiting.function)
            except BaseException as error:
                waiting.outcome.set_exception(error)
            else:
                waiting.outcome.set_result(outcome)

    def _write_group(self, group: list[_Waiting]) -> None:
        connection = self._connection()
        outcomes: list[tuple[Any, list[str]] | Exception] = []
        with connection.begin():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            for waiting in group:
                tx = Transaction(connection, self.clock(), self.dialect)
                try:
                    with connection.begin_nested():
                        outcomes.append((waiting.function(tx), tx.topics))
                except DBAPIError:
                    raise
                except Exception as error:
                    outcomes.append(error)
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Exception):
                waiting.outcome.set_exception(outcome)
            else:
                waiting.outcome.set_result(outcome)

    def _read(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        return self._repeated(self._attempt_read, function)

    def _repeated(self, attempt: Runner[T], function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        for _ in range(_ATTEMPTS - 1):
            try:
                return attempt(function)
            except DBAPIError as error:
                if not _worth_retrying(error):
                    raise _translated(error) from error
        return attempt(function)

    def _attempt_write(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        connection = self._connection()
        with connection.begin():
            if self.dialect == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            tx = Transaction(connection, self.clock(), self.dialect)
            result = function(tx)
            if tx.topics and self.dialect == "postgresql":
                topics = list(dict.fromkeys(tx.topics))
                connection.execute(_NOTIFY, {"channel": NOTIFY_CHANNEL, "topics": topics})
            return result, tx.topics

    def _attempt_read(self, function: Callable[[Transaction], T]) -> tuple[T, list[str]]:
        # PostgreSQL's default takes a new view at every statement: an instance that moves from a pool to its sandbox
        # between two of them would be seen in neither, and be reaped as an orphan.
        connection = self._connection(None if self.dialect == "sqlite" else "REPEATABLE READ")
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


def _translated(error: DBAPIError) -> Exception:
    """A full disk in the domain's words, since a caller can do something about it; anything else as it is."""
    if getattr(error.orig, "sqlstate", None) == _POSTGRES_DISK_FULL or "disk is full" in str(error.orig):
        return RuntimeFailure(
            "The disk of the server is full; nothing was changed. Free some space and retry.",
            code=ErrorCode.SANDBOX_NOT_READY,
            retry_after_seconds=_DISK_RETRY_AFTER_SECONDS,
        )
    return error


def _worth_retrying(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    return state in _RETRIED_POSTGRES_STATES or "database is locked" in str(error.orig) or error.connection_invalidated
