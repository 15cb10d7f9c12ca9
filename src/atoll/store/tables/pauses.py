"""The pause of a sandbox as one JSON column of its row."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import JSON
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from atoll.domain.snapshot import Pause, PauseFailure


class PauseDocument(TypeDecorator[Pause]):
    """A `Pause`, or nothing."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Pause | None, dialect: Dialect) -> Any:
        """To the database."""
        del dialect
        return None if value is None else asdict(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Pause | None:
        """From the database."""
        del dialect
        if value is None:
            return None
        exclude, failure = value["snapshot_exclude"], value["failure"]
        return Pause(
            attempt=value["attempt"],
            snapshot_exclude=None if exclude is None else tuple(exclude),
            snapshot_max_mb=value["snapshot_max_mb"],
            archived=value["archived"],
            failure=None if failure is None else PauseFailure(failure),
            message=value["message"],
        )
