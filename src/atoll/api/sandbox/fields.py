"""The field types that bodies and queries share: strict, bounded by what the database and the agent can hold.

Bodies take nothing for something else: `"5"` is no integer, `5.0` neither, and a string is no list. A query has text
only, so its numbers are parsed here, by the digits alone.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

MAX_INTEGER = 2_147_483_647
"""The largest number that both databases keep in an integer column."""
MAX_SEQUENCE = 9_007_199_254_740_991
"""The largest sequence number that every JSON client can hold."""
MAX_SECONDS = 315_360_000
"""Ten years: the longest duration that a revision may name."""
MAX_PATH_LENGTH = 4_096
_NO_NUL = r"^[^\x00]*$"
_ABSOLUTE = r"^/[^\x00]*$"
_NOT_BLANK = r"^[^\x00]*[^\x00\s][^\x00]*$"
_INTEGER = re.compile(r"-?[0-9]{1,18}")


class Body(BaseModel):
    """A request body: camelCase, strict, and without fields that it does not know (SA-441)."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, extra="forbid", frozen=True)


class Query(BaseModel):
    """Query parameters; unknown ones are ignored (SA-441)."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class Answer(BaseModel):
    """Describes an answer in the OpenAPI document. `render` writes answers; tests hold both together."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


def _parse_integer(value: Any) -> Any:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise PydanticCustomError("integer", "Input should be an integer")
        return int(value)
    return value


def _parse_boolean(value: Any) -> Any:
    if isinstance(value, str):
        if value not in {"true", "false"}:
            raise PydanticCustomError("boolean", "Input should be true or false")
        return value == "true"
    return value


Id = Annotated[str, Field(min_length=1, max_length=100, pattern=_NO_NUL)]
Label = Annotated[str, Field(min_length=1, max_length=500, pattern=_NO_NUL)]
ShortName = Annotated[str, Field(min_length=1, max_length=200, pattern=_NOT_BLANK)]
LongText = Annotated[str, Field(max_length=10_000, pattern=_NO_NUL)]
Argument = Annotated[str, Field(max_length=131_071, pattern=_NO_NUL)]
AbsolutePath = Annotated[str, Field(max_length=MAX_PATH_LENGTH, pattern=_ABSOLUTE)]
Directory = Annotated[str, Field(min_length=1, max_length=MAX_PATH_LENGTH, pattern=_NO_NUL)]
VariableName = Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"^[^=\x00]+$")]
QueryInteger = Annotated[int, BeforeValidator(_parse_integer)]
QueryBoolean = Annotated[bool, BeforeValidator(_parse_boolean)]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
WaitSeconds = Annotated[QueryInteger, Field(ge=0, le=25)]

AccountId = Annotated[Id, Field(description="The account that the call is about.", examples=["ACCOUNT_ID"])]
SandboxId = Annotated[Id, Field(description="The sandbox.", examples=["SANDBOX_ID"])]
TemplateId = Annotated[Id, Field(description="The template.", examples=["TEMPLATE_ID"])]
ExecutionId = Annotated[Id, Field(description="What the start of the command answered.", examples=["EXECUTION_ID"])]
Moment = Annotated[
    str,
    Field(
        description="RFC 3339, UTC, milliseconds.",
        examples=["2026-08-07T12:00:00.000Z"],
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
        json_schema_extra={"format": "date-time"},
    ),
]
