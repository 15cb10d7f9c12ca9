"""Workers over a scripted world and a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.databases import migrated_database, opened
from tests.unit.workers.world import World

from atoll.workers import pools


@pytest.fixture(autouse=True)
def prompt_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool lets a moment go by before it boots."""
    monkeypatch.setattr(pools, "_REFILL_AFTER_SECONDS", 0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A scripted world on SQLite."""
    with migrated_database(tmp_path, None) as url:
        async with opened(url) as store:
            world = World(store, tmp_path)
            yield world
            await world.end_life()
