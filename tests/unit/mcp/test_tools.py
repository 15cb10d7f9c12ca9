"""Tools made from an OpenAPI document, and the requests that calls of them stand for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from atoll.domain.errors import Invalid
from atoll.mcp.tools import ToolOperation, request_of, tools_of


def document() -> dict[str, Any]:
    leaf = {"type": "string", "title": "Leaf", "enum": ["a", "b"]}
    inner = {"type": "object", "properties": {"leaf": {"$ref": "#/components/schemas/Leaf"}}}
    body = {
        "type": "object",
        "title": "Body",
        "example": {"title": "x"},
        "properties": {
            "title": {"type": "string", "title": "Title"},
            "inner": {"anyOf": [{"$ref": "#/components/schemas/Inner"}, {"type": "null"}]},
        },
        "required": ["title"],
    }
    post = {
        "operationId": "make-thing",
        "summary": "Make",
        "description": "Makes it.",
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}},
    }
    get = {
        "operationId": "list-things",
        "summary": "List",
        "description": "Lists them.",
        "parameters": [
            {"name": "owner", "required": True, "description": "Whose.", "schema": {"type": "string"}},
            {"name": "limit", "schema": {"type": "integer"}},
        ],
    }
    return {
        "paths": {"/api/thing": {"post": post}, "/api/things": {"get": get}, "/other": {"get": get}},
        "components": {"schemas": {"Leaf": leaf, "Inner": inner, "Body": body, "Unused": leaf}},
    }


@pytest.fixture
def tools() -> dict[str, ToolOperation]:
    return tools_of(document(), "/api/")


def test_there_is_a_tool_for_each_operation_below_the_prefix(tools: dict[str, ToolOperation]) -> None:
    assert set(tools) == {"make-thing", "list-things"}
    assert (tools["list-things"].read_only, tools["make-thing"].read_only) == (True, False)
    assert tools["list-things"].input_schema["required"] == ["owner"]


def test_a_schema_stands_alone_and_a_field_called_title_stays(tools: dict[str, ToolOperation]) -> None:
    schema = tools["make-thing"].input_schema
    assert schema["properties"]["title"] == {"type": "string"}
    assert schema["properties"]["inner"]["anyOf"][0] == {"$ref": "#/$defs/Inner"}
    assert set(schema["$defs"]) == {"Inner", "Leaf"}
    assert schema["$defs"]["Inner"]["properties"]["leaf"] == {"$ref": "#/$defs/Leaf"}
    assert "example" not in schema


def test_arguments_become_a_query_or_a_body(tools: dict[str, ToolOperation]) -> None:
    listed = request_of(tools["list-things"], {"owner": "me & you", "limit": 5})
    assert (listed.query, listed.body) == ([("limit", "5"), ("owner", "me & you")], None)
    assert request_of(tools["list-things"], {"owner": ["a", "b"], "limit": None}).query == [
        ("owner", "a"),
        ("owner", "b"),
    ]
    made = request_of(tools["make-thing"], {"title": "ü", "inner": None})
    assert made.query == []
    assert made.body is not None
    assert orjson.loads(made.body) == {"title": "ü", "inner": None}


def test_an_argument_that_the_operation_does_not_have_is_refused(tools: dict[str, ToolOperation]) -> None:
    with pytest.raises(Invalid, match="colour is not a field"):
        request_of(tools["list-things"], {"owner": "x", "colour": "blue"})
