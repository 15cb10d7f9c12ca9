"""The receiver's code in docs/webhooks.md verifies what Atoll sends, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.webhook_receiver import SECRET, URL

from atoll.domain.webhook import parse_target
from atoll.store.webhooks import Delivery
from atoll.workers.webhooks import signed_headers

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"
Verifier = Callable[[str, dict[str, str], bytes], bool]


@pytest.fixture
def is_valid() -> Verifier:
    """The code of the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Verifier] = {}
    exec(code, names)  # the subject of the test
    return names["is_valid"]


@pytest.mark.spec("SA-310", "SA-311")
def test_the_code_of_the_page_takes_a_webhook_and_refuses_a_forged_or_old_one(is_valid: Verifier) -> None:
    delivery = Delivery("id", "sandbox", "account", "host", '{"ü": 1}'.encode(), 1, None)
    target = parse_target(URL, SECRET)
    now = datetime.now(UTC)
    headers = signed_headers(delivery, target, now)
    assert is_valid(SECRET, headers, delivery.body)
    assert not is_valid(SECRET, headers, delivery.body + b" ")
    assert not is_valid(SECRET.replace("M", "N"), headers, delivery.body)
    assert not is_valid(SECRET, {**headers, "webhook-id": "evt_other"}, delivery.body)
    old = signed_headers(delivery, target, datetime.fromtimestamp(now.timestamp() - 400, UTC))
    assert not is_valid(SECRET, old, delivery.body)
