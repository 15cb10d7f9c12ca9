"""Requests made from the OpenAPI document, valid and not: none is answered with a fault, all as documented."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies
from schemathesis.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from tests.plane import PREFIX, Api, Plane
from tests.served import served

SECONDS = 45
EXAMPLES = 10
"""Per operation and round; rounds go on until the time is over, so a slow machine leaves no operation out."""
KNOWN_FAULTS = {502, 503, 504}
"""Faults of a sandbox or of a storage that an answer names; not of the server."""
ANYTHING = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers()
    | strategies.floats(allow_nan=False, allow_infinity=False) | strategies.text(max_size=50),
    lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.spec("SA-438", "SA-440")
async def test_no_generated_request_is_answered_with_a_fault_or_undocumented(plane: Plane) -> None:
    sandbox_id = (await plane.api.ready_sandbox())["sandboxId"]
    async with served(plane) as api:
        sent = await asyncio.to_thread(_fuzz, api, str(api.client.base_url), sandbox_id)
    print("requests by status:", dict(sorted(sent.items())))
    assert sum(sent.values()) > 200
    assert sent[200] > 10
    assert sent[400] > 20


def _fuzz(api: Api, url: str, sandbox_id: str) -> dict[int, int]:
    """Send what is made up, in a thread of its own; how often each status was the answer."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in operations if operation.path.startswith(PREFIX)]
    sent: dict[int, int] = {}
    # Made once: working out how to generate a body costs more than generating it.
    senders = [_sender(operation, api, sandbox_id, sent) for operation in operations]
    deadline = time.monotonic() + SECONDS
    for turn in itertools.count():
        for send in senders:
            if turn and time.monotonic() > deadline:
                return sent
            send()
    raise AssertionError("unreachable")


def _sender(operation: Any, api: Api, sandbox_id: str, sent: dict[int, int]) -> Callable[[], None]:
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(
        case=operation.as_strategy(), spoilt=strategies.booleans(), field=strategies.integers(0, 50), odd=ANYTHING
    )
    def send(case: Any, spoilt: bool, field: int, odd: Any) -> None:
        for values in (case.query, case.body):
            if isinstance(values, dict):
                _aim(values, api, sandbox_id)
        if spoilt:
            _spoil(case, field, odd)
        answer = case.call(headers={"Authorization": f"Bearer {api.token}"}, timeout=60)
        sent[answer.status_code] = sent.get(answer.status_code, 0) + 1
        assert answer.status_code < 500 or answer.status_code in KNOWN_FAULTS, (
            f"{operation.label}: {answer.status_code} for {case.query} {case.body}"
        )
        case.validate_response(
            answer, checks=[status_code_conformance, content_type_conformance, response_schema_conformance]
        )

    return send


def _aim(values: dict[str, Any], api: Api, sandbox_id: str) -> None:
    """Name what exists: else every request would end at its account."""
    known = {
        "accountId": api.ids.account,
        "appId": api.ids.app,
        "templateId": api.ids.template,
        "sandboxId": sandbox_id,
        "region": "local",
    }
    values.update({name: real for name, real in known.items() if name in values})
    for name in ("waitSeconds", "timeoutSeconds"):
        if name in values:
            values[name] = 1


def _spoil(case: Any, field: int, odd: Any) -> None:
    """Put something else into one of the fields."""
    values = case.body if isinstance(case.body, dict) and case.body else case.query
    if isinstance(values, dict) and values:
        name = sorted(values)[field % len(values)]
        values[name] = odd if values is case.body else str(odd).encode("utf-8", "replace").decode()
