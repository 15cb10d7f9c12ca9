"""Delivers execution webhooks: takes what is due from the outbox, attempts it, records the outcome.

At least once: an attempt is counted before it is made and its outcome recorded after it, so a crash between the two
repeats it under the same webhook-id. Neither the URL nor the secret nor an answer's body is ever logged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import structlog
from standardwebhooks import Webhook

from atoll import __version__
from atoll.domain.errors import AtollError
from atoll.domain.webhook import (
    ATTEMPT_SECONDS,
    MAX_ATTEMPTS,
    PORT,
    DeliveryState,
    WebhookTarget,
    retry_delay,
    state_after_answer,
    webhook_id,
)
from atoll.ops.execution_webhook import open_target
from atoll.ops.services import Services
from atoll.outbound.destinations import HostNotPublic, HostUnresolved
from atoll.outbound.post import PostFailed, post
from atoll.store import webhooks
from atoll.store.database import Transaction
from atoll.store.wakes import WEBHOOKS
from atoll.store.webhooks import Delivery, Room

log = structlog.get_logger()

_UNDER_WAY = 64
_UNDER_WAY_PER_ACCOUNT = 16
_UNDER_WAY_PER_HOST = 4
_LEASE = timedelta(seconds=3 * ATTEMPT_SECONDS)
_KEPT = timedelta(days=7)
"""How long the record of a delivery that ended stays."""
_REMOVAL_INTERVAL = timedelta(hours=1)


class WebhookWorker:
    """The worker of deliveries that are due."""

    name = "webhooks"
    topics: tuple[str, ...] = (WEBHOOKS,)
    interval = 30.0
    patience = 0.0

    def __init__(self, services: Services, lease_token: str) -> None:
        self._services = services
        self._lease_token = lease_token
        self._under_way: dict[asyncio.Task[None], Delivery] = {}
        self._remove_after: datetime | None = None

    async def run_once(self) -> float | None:
        """Start an attempt for everything that is due and has room; returns the seconds to the next due one."""
        room = Room(
            total=_UNDER_WAY - len(self._under_way),
            per_host=_UNDER_WAY_PER_HOST,
            per_account=_UNDER_WAY_PER_ACCOUNT,
            hosts=Counter(delivery.host for delivery in self._under_way.values()),
            accounts=Counter(delivery.account_id for delivery in self._under_way.values()),
        )

        def claim(tx: Transaction) -> tuple[list[Delivery], datetime | None]:
            self._remove_old(tx)
            claimed = webhooks.claim(tx, self._lease_token, lease=_LEASE, room=room)
            return claimed, webhooks.next_due(tx, after=tx.now)

        claimed, due = await self._services.database.write(claim)
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery), name=f"webhook-{delivery.id}")
            self._under_way[task] = delivery
            task.add_done_callback(self._done)
        return None if due is None else (due - self._services.clock()).total_seconds()

    async def close(self) -> None:
        """Stop where we are; attempts without an outcome on record are made again."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        if not task.cancelled() and task.exception() is not None:
            log.error("webhook_attempt_failed", error=type(task.exception()).__name__)
        self._services.wakes.publish([WEBHOOKS])  # there is room again

    def _remove_old(self, tx: Transaction) -> None:
        if self._remove_after is None or tx.now >= self._remove_after:
            webhooks.remove_finished(tx, before=tx.now - _KEPT)
            self._remove_after = tx.now + _REMOVAL_INTERVAL

    async def _deliver(self, delivery: Delivery) -> None:
        """One attempt, and the record of it."""
        status: int | None = None
        failure: str | None = None
        state = DeliveryState.PENDING
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                status = await self._attempt(delivery)
            state = state_after_answer(status)
        except TimeoutError:
            failure = "timed out"
        except PostFailed as error:
            failure = error.reason
        except HostUnresolved:
            failure = "the host has no address"
        except HostNotPublic:
            failure = "the host leads to an address that is not public"
        except AtollError:
            # Sealed with another key, or gone: another attempt would find the same.
            state, failure = DeliveryState.STOPPED, "the target cannot be read"
        if state is DeliveryState.PENDING and delivery.attempts >= MAX_ATTEMPTS:
            state = DeliveryState.EXHAUSTED
        await self._services.database.write(lambda tx: self._record(tx, delivery, state, status, failure))
        log.info(
            "webhook_attempt",
            delivery=webhook_id(delivery.id),
            sandbox_id=delivery.sandbox_id,
            attempt=delivery.attempts,
            state=state,
            status=status,
            failure=failure,
        )

    def _record(
        self, tx: Transaction, delivery: Delivery, state: DeliveryState, status: int | None, failure: str | None
    ) -> None:
        retry_at: datetime | None = None
        if state is DeliveryState.PENDING:
            base = self._services.settings.webhook_retry_base_seconds
            delay = retry_delay(delivery.attempts, base, random.random())  # noqa: S311 - jitter
            retry_at = tx.now + timedelta(seconds=delay)
        webhooks.record(tx, delivery, state, status=status, failure=failure, retry_at=retry_at)

    async def _attempt(self, delivery: Delivery) -> int:
        target = await open_target(self._services, delivery.sandbox_id)
        # Looked up here and connected to below, with nothing in between that could look it up again (SA-321).
        destination = await self._services.destinations.find(target.host, PORT)
        headers = signed_headers(delivery, target, self._services.clock())
        return await post(destination, target.host, target.path, headers, delivery.body)


def signed_headers(delivery: Delivery, target: WebhookTarget, now: datetime) -> dict[str, str]:
    """The headers of one attempt, signed as Standard Webhooks says (SA-309 … SA-311). `now` is its time."""
    identity = webhook_id(delivery.id)
    second = now.astimezone(UTC).replace(microsecond=0)
    return {
        "Content-Type": "application/json",
        "User-Agent": f"Atoll/{__version__}",
        "webhook-id": identity,
        "webhook-timestamp": str(int(second.timestamp())),
        "webhook-signature": Webhook(target.secret).sign(identity, second, delivery.body.decode()),
    }
