"""The error table: every code, and whether waiting helps."""

from __future__ import annotations

import pytest

from atoll.domain.errors import ErrorCode

RETRYABLE = {
    "SANDBOX_SUSPENDED": True,
    "SANDBOX_NOT_READY": True,
    "AGENT_UNREACHABLE": True,
    "SANDBOX_EXPIRED": False,
    "SANDBOX_NOT_FOUND": False,
    "NAMESPACE_DENIED": False,
    "UNAUTHENTICATED": False,
    "TOKEN_EXPIRED": False,
    "INSUFFICIENT_SCOPE": False,
    "PATH_ESCAPE": False,
    "EXECUTION_NOT_FOUND": False,
    "EXECUTION_EXITED": False,
    "TOO_MANY_EXECUTIONS": True,
    "IDEMPOTENCY_CONFLICT": False,
    "INVALID_REQUEST": False,
    "UNKNOWN": False,
}


@pytest.mark.spec("SA-385", "SA-386", "SA-387", "SA-388", "SA-389", "SA-390", "SA-391", "SA-392", "SA-393")
@pytest.mark.spec("SA-394", "SA-395", "SA-396", "SA-397", "SA-398", "SA-399", "SA-400", "SA-401")
def test_the_codes_and_their_flags_are_those_of_the_specification() -> None:
    assert {code.value: code.retryable for code in ErrorCode} == RETRYABLE
