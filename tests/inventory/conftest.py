"""Requests of this folder are made up, so what they name must not be asked over the network."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_request_to_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Object storage cannot be reached: a made-up endpoint is one of somebody."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError("no network in this test")

    for call in ("put", "get", "list", "delete"):
        monkeypatch.setattr(f"obstore.{call}", refuse)
