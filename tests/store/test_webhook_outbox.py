"""The outbox of webhooks: written with the end of a command, shared out fairly, given to one attempt at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import insert, select, update
from tests.databases import Store

from atoll.domain.command import CommandState, EndReason
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.sandbox import SandboxStatus
from atoll.domain.webhook import MAX_ATTEMPTS, DeliveryState
from atoll.store import commands, webhooks
from atoll.store.database import Transaction
from atoll.store.tables import webhook_deliveries
from atoll.store.webhooks import Delivery, Room
from atoll.system import random_id

pytestmark = pytest.mark.both_databases
LEASE = timedelta(seconds=30)
d = webhook_deliveries.c


def room(total: int = 64, per_host: int = 4, per_account: int = 16, **under_way: dict[str, int]) -> Room:
    return Room(total, per_host, per_account, under_way.get("hosts", {}), under_way.get("accounts", {}))


async def due(store: Store, count: int, *, host: str = "a.example.com", account: str = "account-1") -> None:
    """Deliveries that are due, the oldest first."""
    sandbox = await store.add_sandbox(SandboxStatus.READY, webhook_host=host)

    def add(tx: Transaction) -> None:
        for number in range(count):
            tx.connection.execute(
                insert(webhook_deliveries).values(
                    id=random_id(),
                    sandbox_id=sandbox.id,
                    account_id=account,
                    host=host,
                    body=b"{}",
                    state=DeliveryState.PENDING,
                    attempts=0,
                    next_attempt_at=tx.now - timedelta(milliseconds=count - number),
                    created_at=tx.now,
                )
            )

    await store.write(add)


async def claim(store: Store, token: str = "runner.1", limits: Room | None = None) -> list[Delivery]:
    return await store.write(lambda tx: webhooks.claim(tx, token, lease=LEASE, room=limits or room()))


async def started(
    store: Store, *, webhook_host: str | None = "a.example.com", kind: ExecutionKind = ExecutionKind.START
) -> Execution:
    """A command on record that runs."""
    sandbox = await store.add_sandbox(SandboxStatus.BUSY, webhook_host=webhook_host, instance_id=random_id())

    def add(tx: Transaction) -> Execution:
        execution = Execution(
            random_id(), sandbox.id, str(sandbox.instance_id), kind, ExecutionState.RUNNING, None, None, "user:1",
            7, None, None, 0, 0, output_truncated=False, requested_at=tx.now, started_at=tx.now, exited_at=None,
        )  # fmt: skip
        commands.add(tx, execution)
        return execution

    return await store.write(add)


def exited(store: Store, execution: Execution) -> CommandState:
    now = store.clock()
    return CommandState(
        uuid4(), running=False, exit_code=0, reason=None, started_at=now, exited_at=now, stdout_bytes=1, stderr_bytes=2,
        output_truncated=True,
    )  # fmt: skip


async def outbox(store: Store) -> list[tuple[str, bytes]]:
    return await store.read(lambda tx: [(row.id, row.body) for row in tx.connection.execute(select(d.id, d.body))])


@pytest.mark.spec("SA-285", "SA-288")
async def test_the_end_of_a_started_command_is_told_once_and_of_no_other(store: Store) -> None:
    execution = await started(store)
    state = exited(store, execution)
    assert await store.write(lambda tx: commands.mark_exited(tx, execution.id, state))
    (first,) = await outbox(store)
    assert first[0] == execution.id
    assert b'"stdoutBytes":1,"stderrBytes":2,"outputTruncated":true' in first[1]
    assert not await store.write(lambda tx: commands.mark_exited(tx, execution.id, state))
    await store.write(lambda tx: commands.mark_lost(tx, [execution.id], reason=EndReason.KILLED))
    assert await outbox(store) == [first]
    for other in (await started(store, webhook_host=None), await started(store, kind=ExecutionKind.EXECUTE)):
        await store.write(lambda tx, other=other: commands.mark_exited(tx, other.id, state))  # type: ignore[misc]
    assert await outbox(store) == [first]


@pytest.mark.spec("SA-306")
async def test_commands_that_end_with_their_sandbox_are_told_as_unknown(store: Store) -> None:
    execution = await started(store)
    await store.write(lambda tx: commands.end_all(tx, execution.sandbox_id, reason=EndReason.KILLED))
    ((identity, body),) = await outbox(store)
    assert identity == execution.id
    assert b'"status":"UNKNOWN"' in body
    assert b"exitCode" not in body


@pytest.mark.spec("SA-288")
async def test_an_execute_that_ends_with_its_sandbox_is_told_to_nobody(store: Store) -> None:
    execution = await started(store, kind=ExecutionKind.EXECUTE)
    await store.write(lambda tx: commands.end_all(tx, execution.sandbox_id, reason=EndReason.KILLED))
    assert await outbox(store) == []


async def test_the_end_and_what_is_told_of_it_are_written_together_or_not_at_all(store: Store) -> None:
    execution = await started(store)

    def fail_afterwards(tx: Transaction) -> None:
        commands.mark_exited(tx, execution.id, exited(store, execution))
        raise RuntimeError("the machine stops here")

    with pytest.raises(RuntimeError):
        await store.write(fail_afterwards)
    assert await outbox(store) == []
    found = await store.read(lambda tx: commands.find(tx, execution.id))
    assert found is not None
    assert found.state is ExecutionState.RUNNING


async def test_a_host_with_a_long_queue_leaves_room_for_the_others(store: Store) -> None:
    await due(store, 700, host="slow.example.com", account="greedy")
    await due(store, 3, host="quick.example.com", account="modest")
    claimed = await claim(store)
    assert Counter(delivery.host for delivery in claimed) == {"slow.example.com": 4, "quick.example.com": 3}
    full = room(hosts={"slow.example.com": 4}, accounts={"greedy": 4})
    await due(store, 1, host="third.example.com", account="greedy")
    assert [delivery.host for delivery in await claim(store, limits=full)] == ["third.example.com"]


async def test_an_account_with_many_hosts_leaves_room_for_the_others(store: Store) -> None:
    for number in range(30):
        await due(store, 4, host=f"h{number}.example.com", account="greedy")
    await due(store, 2, host="quick.example.com", account="modest")
    claimed = await claim(store)
    assert Counter(delivery.account_id for delivery in claimed) == {"greedy": 16, "modest": 2}


@pytest.mark.spec("SA-317", "SA-320")
async def test_a_delivery_is_given_to_one_attempt_at_a_time_and_counted_before_it(store: Store) -> None:
    await due(store, 1)
    (first,) = await claim(store)
    assert first.attempts == 1
    assert await claim(store, "other.1") == []
    store.clock.pass_seconds(31)
    (second,) = await claim(store, "other.1")
    assert second.attempts == 2
    record: dict[str, Any] = {"status": 200, "failure": None, "retry_at": None}
    assert not await store.write(lambda tx: webhooks.record(tx, first, DeliveryState.DELIVERED, **record))
    assert await store.write(lambda tx: webhooks.record(tx, second, DeliveryState.DELIVERED, **record))
    store.clock.pass_seconds(10_000)
    assert await claim(store) == []


@pytest.mark.spec("SA-317")
async def test_the_eighth_attempt_is_the_last_also_when_a_crash_took_its_outcome(store: Store) -> None:
    await due(store, 1)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        (delivery,) = await claim(store)
        assert delivery.attempts == attempt
        store.clock.pass_seconds(31)
    assert await claim(store) == []
    states = await store.read(lambda tx: list(tx.connection.execute(select(d.state)).scalars()))
    assert states == [DeliveryState.EXHAUSTED]


async def test_a_runner_that_starts_again_frees_its_own_deliveries_alone(store: Store) -> None:
    await due(store, 1, host="a.example.com")
    await claim(store, "mine.1")
    await due(store, 1, host="b.example.com")
    await claim(store, "theirs.1")
    await store.write(lambda tx: webhooks.drop_leases(tx, "mine"))
    assert [delivery.host for delivery in await claim(store, "mine.2")] == ["a.example.com"]


async def test_concurrent_claims_never_share_a_delivery(store: Store) -> None:
    for number in range(10):
        await due(store, 4, host=f"h{number}.example.com", account=f"account-{number}")
    rounds = await asyncio.gather(*(claim(store, f"runner-{n}.1", room(total=7)) for n in range(8)))
    taken = [delivery.id for claimed in rounds for delivery in claimed]
    assert len(taken) == len(set(taken)) > 0
    assert all(delivery.attempts == 1 for claimed in rounds for delivery in claimed)


async def test_the_worker_is_told_when_to_come_back(store: Store) -> None:
    assert await store.read(lambda tx: webhooks.next_due(tx, after=tx.now)) is None
    await due(store, 1)
    (delivery,) = await claim(store)
    assert await store.read(lambda tx: webhooks.next_due(tx, after=tx.now)) == store.clock() + LEASE
    at = store.clock() + timedelta(seconds=5)
    await store.write(
        lambda tx: webhooks.record(tx, delivery, DeliveryState.PENDING, status=500, failure=None, retry_at=at)
    )
    assert await store.read(lambda tx: webhooks.next_due(tx, after=tx.now)) == at


async def test_what_ended_long_ago_is_forgotten(store: Store) -> None:
    await due(store, 2)
    await store.write(
        lambda tx: tx.connection.execute(
            update(webhook_deliveries)
            .where(d.id == select(d.id).limit(1).scalar_subquery())
            .values(state=DeliveryState.DELIVERED, finished_at=tx.now)
        )
    )
    store.clock.pass_seconds(10)
    await store.write(lambda tx: webhooks.remove_finished(tx, before=tx.now))
    assert len(await outbox(store)) == 1
