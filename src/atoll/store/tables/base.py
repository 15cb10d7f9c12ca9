"""Metadata and column types that both databases share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import BigInteger, MetaData, String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

E = TypeVar("E", bound=StrEnum)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Moment(TypeDecorator[datetime]):
    """A time as whole milliseconds since the epoch: the same order and precision on both databases."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """To the database."""
        del dialect
        return None if value is None else (value - EPOCH) // _MILLISECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """From the database."""
        del dialect
        # In whole numbers: a float of seconds is off by a microsecond for some, and so by a millisecond when cut.
        return None if value is None else EPOCH + timedelta(milliseconds=value)


class Name(TypeDecorator[E]):
    """An enum member, stored by its value."""

    impl = String(64)
    cache_ok = True

    def __init__(self, enum: type[E]) -> None:
        super().__init__()
        self.enum = enum

    def process_bind_param(self, value: E | None, dialect: Dialect) -> str | None:
        """To the database."""
        del dialect
        return None if value is None else str(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> E | None:
        """From the database."""
        del dialect
        return None if value is None else self.enum(value)
