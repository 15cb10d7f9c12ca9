"""Rows as domain objects: a column and a field of one name are one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, Row, Table

D = TypeVar("D")


class Mapper(Generic[D]):
    """Reads rows of a table as instances of a dataclass whose fields are columns; `parse` mends JSON columns."""

    def __init__(self, table: Table, kind: type[D], parse: Mapping[str, Any] | None = None) -> None:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # D is a dataclass by contract
        self.columns: list[Column[Any]] = [table.c[name] for name in names]
        self._make: Callable[..., D] = kind
        self._parse = [(names.index(name), function) for name, function in (parse or {}).items()]

    def one(self, row: Row[Any]) -> D:
        """One row."""
        if not self._parse:
            return self._make(*row)
        values = list(row)
        for index, function in self._parse:
            if values[index] is not None:
                values[index] = function(values[index])
        return self._make(*values)

    def maybe(self, row: Row[Any] | None) -> D | None:
        """One row, or None."""
        return None if row is None else self.one(row)
