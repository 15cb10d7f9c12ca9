"""Tools from the OpenAPI document: one for every operation of the Sandbox API, named by its operationId.

Pure. `atoll.api.mcp` makes a request of a call and sends it through the routes, so a tool does what the operation does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from atoll.domain.errors import Invalid

_COMPONENTS = "#/components/schemas/"
_OF_NO_USE = frozenset({"title", "example", "examples"})
"""Keys of schemas that say nothing to a model but cost it tokens."""


@dataclass(frozen=True, slots=True)
class ToolOperation:
    """One operation as a tool."""

    name: str
    method: str
    path: str
    title: str
    description: str
    input_schema: dict[str, Any]
    parameters: frozenset[str]
    """Arguments that go into the query; the others are the body."""
    takes_body: bool

    @property
    def read_only(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The request that a call of a tool stands for."""

    method: str
    path: str
    query: list[tuple[str, str]]
    body: bytes | None


def tools_of(document: Mapping[str, Any], prefix: str) -> dict[str, ToolOperation]:
    """The tools of every operation whose path begins with `prefix`, by name."""
    found = (
        _tool(method.upper(), path, operation, document["components"]["schemas"])
        for path, operations in document["paths"].items()
        if path.startswith(prefix)
        for method, operation in operations.items()
    )
    return {tool.name: tool for tool in found}


def request_of(tool: ToolOperation, arguments: Mapping[str, Any]) -> ToolRequest:
    """What to send for a call. Raises `Invalid` for an argument that the operation does not have.

    Everything else is checked by the route, which refuses in the one shape of an error.
    """
    unknown = sorted(set(arguments) - set(tool.input_schema["properties"]))
    if unknown:
        raise Invalid(f"{unknown[0][:100]} is not a field of this request.", field=unknown[0][:100])
    query = [pair for name in sorted(tool.parameters) for pair in _pairs(name, arguments.get(name))]
    body = None
    if tool.takes_body:
        body = orjson.dumps({name: value for name, value in arguments.items() if name not in tool.parameters})
    return ToolRequest(tool.method, tool.path, query, body)


def _tool(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> ToolOperation:
    properties: dict[str, Any] = {}
    required: list[str] = []
    parameters = operation.get("parameters", ())
    for parameter in parameters:
        properties[parameter["name"]] = {"description": parameter.get("description", ""), **parameter["schema"]}
        if parameter.get("required"):
            required.append(parameter["name"])
    takes_body = "requestBody" in operation
    if takes_body:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        body = schemas[body["$ref"].removeprefix(_COMPONENTS)] if "$ref" in body else body
        properties |= body["properties"]
        required += body.get("required", ())
    schema = {"type": "object", "properties": _for_model(properties, in_names=True), "additionalProperties": False}
    if required:
        schema["required"] = required
    definitions = _definitions(properties, schemas)
    if definitions:
        schema["$defs"] = {name: _for_model(definition) for name, definition in sorted(definitions.items())}
    return ToolOperation(
        name=operation["operationId"],
        method=method,
        path=path,
        title=operation["summary"],
        description=operation["description"],
        input_schema=schema,
        parameters=frozenset(parameter["name"] for parameter in parameters),
        takes_body=takes_body,
    )


def _definitions(value: Any, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Every schema that `value` refers to, also by way of others."""
    found: dict[str, Any] = {}
    waiting = list(_references(value))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = schemas[name]
            waiting += _references(schemas[name])
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner.removeprefix(_COMPONENTS)
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _for_model(value: Any, *, in_names: bool = False) -> Any:
    """A schema whose references stay inside the tool, without keys that are of no use to a model.

    `in_names` is true of a mapping whose keys are names of fields, where `title` is a field.
    """
    if isinstance(value, list):
        return [_for_model(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "$ref" and not in_names:
            kept[key] = inner.replace(_COMPONENTS, "#/$defs/")
        elif in_names or key not in _OF_NO_USE:
            kept[key] = _for_model(inner, in_names=not in_names and key in {"properties", "$defs"})
    return kept


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """A value as query parameters; None is one that was not sent."""
    if value is None:
        return []
    if isinstance(value, list):
        return [pair for inner in value for pair in _pairs(name, inner)]
    return [(name, value if isinstance(value, str) else orjson.dumps(value).decode())]
