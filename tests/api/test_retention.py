"""What is forgotten after a while, and what never is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.plane import Api, Plane, expect, refused

from atoll.domain.times import rfc3339
from atoll.workers.retention import RetentionWorker

pytestmark = pytest.mark.both_databases


async def test_commands_are_forgotten_a_while_after_the_end_of_their_sandbox_and_usage_is_not(
    plane: Plane, api: Api
) -> None:
    ended = (await api.ready_sandbox())["sandboxId"]
    for _ in range(3):
        await api.execute(ended, "true")
    execution_id = (await api.start(ended, "true"))["executionId"]
    await api.finished(ended, execution_id)
    plane.clock.pass_seconds(60)
    expect(await api.post("/sandbox/terminate", sandboxId=ended), 200)
    await plane.ended(ended)
    since = rfc3339(plane.clock() - timedelta(days=1))
    before = expect(await api.get("/usage", since=since), 200)["sandboxes"]
    retention = RetentionWorker(plane.services)

    plane.clock.pass_seconds(timedelta(days=29).total_seconds())
    await retention.run_once()
    assert (await api.command(ended, execution_id))["state"] == "exited"

    plane.clock.pass_seconds(timedelta(days=2).total_seconds())
    living = (await api.ready_sandbox(idempotencyKey="another"))["sandboxId"]
    kept = (await api.start(living, "true"))["executionId"]
    await api.finished(living, kept)
    while await retention.run_once():
        pass
    refused(await api.get("/sandbox/command", sandboxId=ended, executionId=execution_id), 404)
    assert (await api.command(living, kept))["executionId"] == kept
    assert expect(await api.get("/sandbox", sandboxId=ended), 200)["sandbox"]["status"] == "TERMINATED"
    after = expect(await api.get("/usage", since=since), 200)["sandboxes"]
    assert before[0] in after
    left = await plane.sql("SELECT action FROM sandbox_events WHERE sandbox_id = :id ORDER BY generation", id=ended)
    assert "begin_work" not in {action for (action,) in left}
    assert len(left) >= 4
