"""Transactions: all or nothing, whole views, repeated when the database asks for it, and wakes that nobody can lose."""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from tests.databases import Clock, Store

import atoll.ops
import atoll.workers
from atoll.domain.errors import StaleGeneration
from atoll.domain.sandbox import Action, SandboxStatus
from atoll.store import identity, sandboxes
from atoll.store.database import Database, Transaction
from atoll.store.listener import relay_notifications
from atoll.store.tables import accounts, tokens
from atoll.store.tables.base import Moment
from atoll.store.transitions import transition
from atoll.store.wakes import Wakes
from atoll.system import random_id

both = pytest.mark.both_databases
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), timezones=st.just(UTC))


@given(moments)
def test_a_time_survives_the_database_to_the_millisecond(moment: datetime) -> None:
    column = Moment()
    stored = column.process_bind_param(moment, None)  # type: ignore[arg-type]  # the dialect is not looked at
    back = column.process_result_value(stored, None)  # type: ignore[arg-type]  # as above
    assert back == moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


@both
@pytest.mark.parametrize("microsecond", [0, 1, 999, 1_000, 123_456, 999_999])
async def test_what_a_transaction_returns_equals_what_is_read_later(store: Store, microsecond: int) -> None:
    store.clock.now = datetime(2026, 8, 7, 12, 0, 0, microsecond, tzinfo=UTC)
    added = await store.add_sandbox()
    assert await store.sandbox(added.id) == added
    moved = await store.write(lambda tx: transition(tx, added, Action.ALLOCATE, claimed_at=tx.now))
    assert await store.sandbox(added.id) == moved


@both
async def test_a_transaction_that_fails_leaves_and_wakes_nothing(store: Store) -> None:
    woken: list[str] = []
    store.database.wakes.publish = woken.extend  # type: ignore[method-assign, assignment]  # to see what is published

    def fail(tx: Transaction) -> None:
        tx.connection.execute(update(accounts).values(name="changed"))
        tx.wake("topic")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.write(fail)
    assert (await store.account()).name == "default"
    assert woken == []


async def together(store: Store, *functions: Callable[[Transaction], object]) -> tuple[list[object], int]:
    """Run transactions that all wait while another one is slow; what became of them, and the commits it took."""
    commits: list[object] = []
    event.listen(store.database.engine, "commit", commits.append)
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(10)

    first = asyncio.create_task(store.write(slow))
    await asyncio.to_thread(begun.wait, 10)
    rest = [asyncio.create_task(store.write(function)) for function in functions]
    await asyncio.sleep(0)
    go_on.set()
    await first
    outcomes = await asyncio.gather(*rest, return_exceptions=True)
    return list(outcomes), len(commits) - 1


def name_account(name: str) -> Callable[[Transaction], str]:
    def write(tx: Transaction) -> str:
        tx.connection.execute(update(accounts).values(name=name))
        return name

    return write


async def test_transactions_that_wait_at_the_same_time_are_written_with_one_commit(store: Store) -> None:
    outcomes, commits = await together(store, *(name_account(str(number)) for number in range(20)))
    assert outcomes == [str(number) for number in range(20)]
    assert commits == 1
    assert (await store.account()).name == "19"


async def test_one_that_fails_takes_none_of_those_that_are_written_with_it(store: Store) -> None:
    woken: list[str] = []
    store.database.wakes.publish = woken.extend  # type: ignore[method-assign, assignment]  # to see what is published

    def fail(tx: Transaction) -> None:
        name_account("wrong")(tx)
        tx.wake("wrong")
        raise StaleGeneration("no")

    def wake(tx: Transaction) -> None:
        tx.wake("right")

    outcomes, commits = await together(store, name_account("right"), fail, wake)
    assert outcomes[0] == "right"
    assert isinstance(outcomes[1], StaleGeneration)
    assert commits == 1
    assert (await store.account()).name == "right"
    assert "right" in woken and "wrong" not in woken


async def test_one_that_the_database_refuses_is_the_only_one_to_be_told(store: Store) -> None:
    def refused(tx: Transaction) -> None:
        row = tx.connection.execute(select(accounts)).mappings().one()
        tx.connection.execute(accounts.insert(), [dict(row)])

    outcomes, _ = await together(store, name_account("first"), refused, name_account("second"))
    assert outcomes[0] == "first" and outcomes[2] == "second"
    assert isinstance(outcomes[1], IntegrityError)
    assert (await store.account()).name == "second"


@both
async def test_a_caller_that_goes_away_parts_no_commit_from_its_wakes(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(10)
        tx.connection.execute(update(accounts).values(name="changed"))
        tx.wake("topic")

    with store.database.wakes.listen("topic") as listener:
        caller = asyncio.create_task(store.write(slow))
        assert await asyncio.to_thread(begun.wait, 10)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        assert await listener.wait(10)
    assert (await store.account()).name == "changed"


@both
async def test_a_cancelled_caller_leaves_the_threads_usable(store: Store) -> None:
    for _ in range(50):
        caller = asyncio.create_task(store.write(lambda tx: sandboxes.touch(tx, "none")))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
    assert (await store.account()).name == "default"


@both
async def test_a_deadlock_is_repeated_until_it_is_none(store: Store) -> None:
    attempts: list[int] = []
    state = "40P01" if store.database.dialect == "postgresql" else None

    def unlucky(tx: Transaction) -> str:
        attempts.append(1)
        tx.wake("topic")
        if len(attempts) < 3:
            raise DBAPIError("statement", {}, _refusal(state))
        return "done"

    assert await store.write(unlucky) == "done"
    assert len(attempts) == 3


@both
async def test_an_error_that_repeating_cannot_mend_is_not_repeated(store: Store) -> None:
    attempts: list[int] = []

    def wrong(tx: Transaction) -> None:
        attempts.append(1)
        tx.connection.execute(text("SELECT nothing FROM nowhere"))

    with pytest.raises(DBAPIError):
        await store.write(wrong)
    assert len(attempts) == 1
    assert (await store.account()).name == "default"


def _refusal(state: str | None) -> BaseException:
    if state is None:
        return sqlite3.OperationalError("database is locked")
    return psycopg.errors.DeadlockDetected("deadlock detected")


@both
async def test_two_transactions_that_lock_crosswise_both_get_through(store: Store) -> None:
    one, other = await store.add_sandbox(), await store.add_sandbox()
    meeting = threading.Barrier(2)

    def crosswise(first: str, second: str) -> Callable[[Transaction], None]:
        def run(tx: Transaction) -> None:
            sandboxes.get(tx, first, lock=True)
            if store.database.dialect == "postgresql":
                with suppress(threading.BrokenBarrierError):  # the repetition of the one that lost is alone
                    meeting.wait(3)
            sandboxes.get(tx, second, lock=True)
            sandboxes.touch(tx, second)

        return run

    await asyncio.gather(store.write(crosswise(one.id, other.id)), store.write(crosswise(other.id, one.id)))


@both
async def test_a_read_sees_one_moment_though_others_write_between_its_statements(store: Store) -> None:
    looked, written = threading.Event(), threading.Event()

    def look(tx: Transaction) -> tuple[str, str]:
        query = select(accounts.c.name)
        before = tx.connection.execute(query).scalar_one()
        looked.set()
        assert written.wait(10)
        return before, tx.connection.execute(query).scalar_one()

    reading = asyncio.create_task(store.read(look))
    assert await asyncio.to_thread(looked.wait, 10)
    await store.write(lambda tx: tx.connection.execute(update(accounts).values(name="changed")))
    written.set()
    assert await reading == ("default", "default")
    assert (await store.account()).name == "changed"


@both
async def test_find_or_add_from_all_sides_adds_once(store: Store) -> None:
    def find_or_add(tx: Transaction) -> str:
        app = identity.find_app(tx, store.made.account_id, "wanted")
        if app is None:
            app = identity.App(random_id(), store.made.account_id, "wanted")
            identity.add_app(tx, app)
        return app.id

    assert len(set(await asyncio.gather(*(store.write(find_or_add) for _ in range(20))))) == 1


@both
async def test_a_true_duplicate_is_an_error_and_no_endless_repetition(store: Store) -> None:
    account = await store.account()
    with pytest.raises(IntegrityError):
        await store.write(lambda tx: identity.add_account(tx, account))


async def test_connections_that_the_server_ended_are_made_again(postgres_store: Store) -> None:
    store = postgres_store
    for _ in range(2):
        await asyncio.gather(*(store.account() for _ in range(6)), *(store.write(lambda tx: None) for _ in range(8)))
        with psycopg.connect(store.database.url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await asyncio.gather(*(store.account() for _ in range(6)))
        await asyncio.gather(*(store.write(lambda tx: sandboxes.touch(tx, "none")) for _ in range(16)))


async def test_a_wake_reaches_the_other_processes_of_one_database(postgres_store: Store) -> None:
    store = postgres_store
    other = Database(store.database.url, clock=Clock(), wakes=Wakes())
    relay = asyncio.create_task(relay_notifications(other))
    try:
        with other.wakes.listen("topic") as listener, other.wakes.listen("second") as second:
            for _ in range(100):
                await store.write(lambda tx: tx.wake("topic", "second", "topic"))
                if await listener.wait(0.1):
                    break
            else:
                raise AssertionError("no wake arrived")
            assert await second.wait(5)
        # A relay that lost its connection connects again.
        with psycopg.connect(store.database.url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        with other.wakes.listen("later") as later:
            for _ in range(100):
                await store.write(lambda tx: tx.wake("later"))
                if await later.wait(0.1):
                    break
            else:
                raise AssertionError("no wake arrived after the connection was lost")
    finally:
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
        await other.close()


@both
async def test_the_times_of_transactions_follow_the_clock(store: Store) -> None:
    first = await store.write(lambda tx: tx.now)
    store.clock.pass_seconds(5)
    assert await store.write(lambda tx: tx.now) - first == timedelta(seconds=5)


@both
@pytest.mark.spec("SA-436")
async def test_no_token_can_be_read_from_the_database(store: Store) -> None:
    rows = await store.read(lambda tx: [tuple(row) for row in tx.connection.execute(select(tokens))])
    secret = store.made.token
    assert rows
    assert not any(secret in str(row) or secret.removeprefix("atoll_") in str(row) for row in rows)


@both
async def test_of_two_writers_with_one_view_the_second_loses(store: Store) -> None:
    seen = await store.add_sandbox(SandboxStatus.READY)
    await store.write(lambda tx: transition(tx, seen, Action.BEGIN_WORK))
    with pytest.raises(StaleGeneration):
        await store.write(lambda tx: transition(tx, seen, Action.TERMINATE))


def test_transactions_are_plain_functions_so_nothing_can_be_awaited_in_one() -> None:
    """The structure that keeps transactions apart from driver calls: what runs in one cannot await."""
    offenders = []
    for package in (atoll.ops, atoll.workers, atoll):
        folder = Path(package.__path__[0])
        files = folder.glob("*.py") if package is not atoll else (folder / "store").glob("*.py")
        for file in files:
            offenders += re.findall(r"async def \w+\([^)]*\btx: Transaction", file.read_text())
    assert offenders == []
    assert not inspect.iscoroutinefunction(Transaction.wake)
