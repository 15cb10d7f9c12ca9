"""One control plane a database."""

from __future__ import annotations

import pytest
from tests.databases import Store

from atoll.domain.errors import Conflict
from atoll.store import sole


async def test_a_second_control_plane_on_one_postgresql_is_refused_until_the_first_has_gone(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sole, "_WAIT_SECONDS", 0.5)
    database = postgres_store.database
    async with sole.sole_control_plane(database):
        with pytest.raises(Conflict, match="Another atoll serve works on this database"):
            async with sole.sole_control_plane(database):
                raise AssertionError("two hold it")
    async with sole.sole_control_plane(database):
        pass
