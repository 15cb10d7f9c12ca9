"""Whatever is sent to whatever operation, a refusal has the one shape, names its field, and is no 500.

`tests.shapes` holds every answer against the document while these run.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.inventory.operations import operations
from tests.plane import Plane, refused

ODD: list[Any] = [
    None, "", "\x00", "a\x00b", "x", "x" * 20_000, "😀" * 300, "../..", 0, -1, 5, 2**31, 2**63, 2**70, 1.5, 1e308, True,
    False, [], [None], ["\x00"], [[]], ["x"] * 3_000, {}, {"": ""}, {"\x00": 1}, {"a": {"b": []}},
]  # fmt: skip

PYDANTIC = re.compile(
    r"Input should|should (have|be|match)|Value error|valid (dict|string|integer|list|datetime|number)"
)
"""Words of the validator, which say nothing to whoever sent a request."""


@pytest.mark.spec("SA-440")
async def test_each_required_field_is_named_when_it_is_missing(plane: Plane) -> None:
    account = plane.api.ids.account
    for operation in operations(plane.app.openapi()):
        query, body = operation.query(account), operation.body(account)
        for name in query:
            rest = {key: value for key, value in query.items() if key != name}
            refused(await plane.api.send(operation.method, operation.path, params=rest), 400, f"{name} is required")
        if body is None or operation.body_schema is None:
            continue
        for name in operation.body_schema.get("required", ()):
            rest = {key: value for key, value in body.items() if key != name}
            refused(await plane.api.send(operation.method, operation.path, json=rest), 400, f"{name} is required")


@pytest.mark.spec("SA-441")
async def test_an_unknown_field_is_refused_and_an_unknown_parameter_ignored(plane: Plane) -> None:
    account = plane.api.ids.account
    for operation in operations(plane.app.openapi()):
        query, body = operation.query(account), operation.body(account)
        if body is not None:
            strange = {**body, "colourOfTheSky": "blue"}
            refused(await plane.api.send(operation.method, operation.path, json=strange), 400, "colourOfTheSky")
        else:
            strange = {**query, "colourOfTheSky": "blue"}
            assert (await plane.api.send(operation.method, operation.path, params=strange)).status_code != 400


@pytest.mark.both_databases
@pytest.mark.spec("SA-438", "SA-440")
async def test_odd_values_of_every_field_are_refused_in_the_one_shape_or_taken(plane: Plane) -> None:
    account = plane.api.ids.account
    for operation in operations(plane.app.openapi()):
        body, schema = operation.body(account), operation.body_schema
        if body is None or schema is None:
            query = operation.query(account)
            for name in operation.parameters:
                for value in ODD:
                    if isinstance(value, str | int | float):
                        params = {**query, name: str(value)}
                        answer = await plane.api.send(operation.method, operation.path, params=params)
                        assert not PYDANTIC.search(answer.json().get("error", "")), f"{operation} {name}={value!r}"
            continue
        for name in schema["properties"]:
            for value in ODD:
                answer = await plane.api.send(operation.method, operation.path, json={**body, name: value})
                if answer.status_code == 400:
                    error = answer.json()["error"]
                    assert error, operation
                    assert not PYDANTIC.search(error), f"{operation} {name}={value!r}: {error}"


@pytest.mark.spec("SA-438")
async def test_no_operation_takes_a_body_that_is_not_json(plane: Plane) -> None:
    for operation in operations(plane.app.openapi()):
        if operation.body_schema is None:
            continue
        for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"accountId": NaN}', b'"\\ud800"'):
            answer = await plane.api.send(
                operation.method, operation.path, content=content, headers={"Content-Type": "application/json"}
            )
            refused(answer, 400, "body")
        refused(await plane.api.send(operation.method, operation.path, data={"a": "b"}), 400, "application/json")
