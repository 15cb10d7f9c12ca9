"""The table from the domain's errors to statuses, and the shape of an error."""

from __future__ import annotations

import json

import pytest

from atoll.api.errors import INTERNAL, STATUS_OF_CODE, Failure, failure_of, render
from atoll.domain import errors
from atoll.domain.errors import ErrorCode

CONTRACT = {
    503: {"AGENT_UNREACHABLE"},
    429: {"TOO_MANY_EXECUTIONS"},
    404: {"EXECUTION_NOT_FOUND", "SANDBOX_NOT_FOUND"},
    409: {"EXECUTION_EXITED", "IDEMPOTENCY_CONFLICT", "SANDBOX_SUSPENDED", "SANDBOX_NOT_READY", "SANDBOX_EXPIRED"},
    400: {"INVALID_REQUEST", "PATH_ESCAPE"},
    401: {"UNAUTHENTICATED", "TOKEN_EXPIRED"},
    403: {"INSUFFICIENT_SCOPE", "NAMESPACE_DENIED"},
    502: {"UNKNOWN"},
}
RETRYABLE = {"SANDBOX_SUSPENDED", "SANDBOX_NOT_READY", "AGENT_UNREACHABLE", "TOO_MANY_EXECUTIONS"}


@pytest.mark.spec("SA-385", "SA-386", "SA-387", "SA-388", "SA-389", "SA-390", "SA-391", "SA-392", "SA-393", "SA-394")
@pytest.mark.spec("SA-395", "SA-396", "SA-397", "SA-398", "SA-399", "SA-400", "SA-401", "SA-439")
@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_the_contracts_status_and_its_own_flag(code: ErrorCode) -> None:
    answer = render(failure_of(errors.RuntimeFailure("It failed.", code=code)))
    body = json.loads(bytes(answer.body))
    assert code in CONTRACT[answer.status_code]
    assert body["errorCode"] == code
    assert body["data"]["retryable"] is (code in RETRYABLE)
    delay = body["data"].get("retryAfterSeconds")
    assert (delay is not None) is (code in RETRYABLE)
    assert answer.headers.get("retry-after") == (None if delay is None else str(delay))


def test_the_tables_are_complete() -> None:
    assert set(STATUS_OF_CODE) == set(ErrorCode)
    assert set().union(*CONTRACT.values()) == set(ErrorCode)


@pytest.mark.spec("SA-438")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Invalid("Wrong.", field="region"), 400),
        (errors.Unauthenticated("Who?"), 401),
        (errors.Forbidden("No."), 403),
        (errors.NotFound("Where?"), 404),
        (errors.Conflict("Not now."), 409),
        (errors.StaleGeneration("It moved."), 409),
        (errors.LimitReached("Full.", reason="account_concurrency_exceeded", retry_after_seconds=30), 429),
        (errors.AtollError("the account is gone"), 500),
    ],
)
def test_every_class_without_a_code_has_a_status_and_no_key_that_does_not_apply(
    error: errors.AtollError, status: int
) -> None:
    answer = render(failure_of(error))
    body = json.loads(bytes(answer.body))
    assert answer.status_code == status
    assert "errorCode" not in body
    expected = {
        429: {"retryable": True, "retryAfterSeconds": 30, "reason": "account_concurrency_exceeded"},
        409: {"retryable": True} if isinstance(error, errors.StaleGeneration) else None,
    }.get(status)
    assert body.get("data") == expected


@pytest.mark.spec("SA-440")
def test_a_field_is_named_once() -> None:
    assert failure_of(errors.Invalid("Unknown.", field="region")).message == "region: Unknown."
    assert failure_of(errors.Invalid("The region is unknown.", field="region")).message == "The region is unknown."


def test_an_error_that_is_in_no_table_says_nothing_of_itself() -> None:
    assert failure_of(errors.AtollError("SELECT secret")) is INTERNAL
    assert "SELECT" not in INTERNAL.message


def test_a_bare_failure_has_two_keys() -> None:
    assert json.loads(bytes(render(Failure(400, "No.")).body)) == {"success": False, "error": "No."}
