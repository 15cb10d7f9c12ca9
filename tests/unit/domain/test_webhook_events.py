"""What a webhook says of each way in which a command can end, and when it is tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.domain.command import EndReason
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState, ExecutionType
from atoll.domain.webhook import (
    MAX_ATTEMPTS,
    DeliveryState,
    completed_event,
    execution_status,
    retry_delay,
    state_after_answer,
)

NOW = datetime(2026, 10, 11, 12, 41, 7, tzinfo=UTC)


def ended(exit_code: int | None = 0, reason: EndReason | None = None, **fields: object) -> Execution:
    values: dict[str, object] = {
        "id": "EXECUTION_ID",
        "sandbox_id": "SANDBOX_ID",
        "instance_id": "INSTANCE_ID",
        "kind": ExecutionKind.START,
        "state": ExecutionState.EXITED,
        "idempotency_key": None,
        "fingerprint": None,
        "caller_key": "user:USER_ID",
        "process_id": 7,
        "exit_code": exit_code,
        "reason": reason,
        "stdout_bytes": 18_234,
        "stderr_bytes": 0,
        "output_truncated": False,
        "requested_at": NOW - timedelta(minutes=42),
        "started_at": NOW - timedelta(minutes=41, seconds=7),
        "exited_at": NOW,
    }
    return Execution(**{**values, **fields})  # type: ignore[arg-type]  # a row's values by name


@pytest.mark.spec("SA-298", "SA-299", "SA-302")
def test_the_event_is_that_of_the_specification() -> None:
    event = completed_event(ended(), account_id="ACCOUNT_ID", app_id="APP_ID", observed=True, now=NOW)
    assert event == {
        "id": "evt_EXECUTION_ID",
        "type": "sandbox.execution.completed",
        "timestamp": "2026-10-11T12:41:07.000Z",
        "data": {
            "accountId": "ACCOUNT_ID",
            "appId": "APP_ID",
            "sandboxId": "SANDBOX_ID",
            "executionId": "EXECUTION_ID",
            "executionType": "EXEC",
            "status": "SUCCEEDED",
            "exitCode": 0,
            "startedAt": "2026-10-11T12:00:00.000Z",
            "finishedAt": "2026-10-11T12:41:07.000Z",
            "stdoutBytes": 18_234,
            "stderrBytes": 0,
            "outputTruncated": False,
        },
    }


@pytest.mark.parametrize(
    ("exit_code", "reason", "status"),
    [
        (0, None, "SUCCEEDED"),
        (1, None, "FAILED"),
        (255, None, "FAILED"),
        (137, EndReason.KILLED, "FAILED"),
        (143, EndReason.DEADLINE_EXCEEDED, "TIMED_OUT"),
        (0, EndReason.DEADLINE_EXCEEDED, "TIMED_OUT"),
        (143, EndReason.CANCELED, "CANCELED"),
        (0, EndReason.CANCELED, "CANCELED"),
        (143, EndReason.AGENT_SHUTDOWN, "UNKNOWN"),
    ],
)
@pytest.mark.spec("SA-302", "SA-303", "SA-304", "SA-305", "SA-306")
def test_every_ending_has_its_status(exit_code: int, reason: EndReason | None, status: str) -> None:
    assert execution_status(exit_code, reason) == status


@pytest.mark.spec("SA-306", "SA-307")
def test_an_end_that_nobody_saw_is_unknown_and_claims_no_exit_code() -> None:
    event = completed_event(ended(137, EndReason.KILLED), account_id="A", app_id="B", observed=False, now=NOW)
    assert event["data"]["status"] == "UNKNOWN"
    assert not {"exitCode", "reason"} & set(event["data"])


@pytest.mark.spec("SA-307")
def test_exit_code_and_reason_are_there_when_they_are_known() -> None:
    data = completed_event(ended(143, EndReason.CANCELED), account_id="A", app_id="B", observed=True, now=NOW)["data"]
    assert (data["exitCode"], data["reason"]) == (143, "canceled")


@pytest.mark.spec("SA-301")
def test_a_terminal_is_told_from_a_command() -> None:
    terminal = ended(execution_type=ExecutionType.PTY)
    assert (
        completed_event(terminal, account_id="A", app_id="B", observed=True, now=NOW)["data"]["executionType"] == "PTY"
    )


@pytest.mark.parametrize("status", range(100, 600))
@pytest.mark.spec("SA-313", "SA-314", "SA-318", "SA-319")
def test_2xx_ends_429_and_5xx_repeat_and_the_rest_stops(status: int) -> None:
    expected = DeliveryState.STOPPED
    if 200 <= status < 300:
        expected = DeliveryState.DELIVERED
    elif status == 429 or status >= 500:
        expected = DeliveryState.PENDING
    assert state_after_answer(status) is expected


@given(st.floats(0, 1), st.floats(0, 1))
@pytest.mark.spec("SA-316")
def test_delays_grow_from_30_seconds_and_never_exceed_an_hour(chance: float, next_chance: float) -> None:
    for attempt in range(1, 40):
        delay, following = retry_delay(attempt, 30, chance), retry_delay(attempt + 1, 30, next_chance)
        assert min(30 * 2 ** (attempt - 1), 3_600) <= delay <= 3_600
        assert following > delay or delay == following == 3_600
    assert [retry_delay(attempt, 30, 0) for attempt in range(1, MAX_ATTEMPTS)] == [30, 60, 120, 240, 480, 960, 1_920]
    assert retry_delay(8, 30, 0) == 3_600
