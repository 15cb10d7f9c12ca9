"""Nothing undocumented is served, nothing specified is missing, and the document describes all of it."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import WebSocketRoute
from tests.inventory.operations import PLANNED, operations, specified
from tests.plane import Plane, expect

from atoll.api import mcp

OPERATION = {"/healthz", "/readyz"}


@pytest.mark.spec("SA-080", "SA-081")
async def test_the_app_serves_what_the_specification_names_and_nothing_else(plane: Plane) -> None:
    document = plane.app.openapi()
    served = {(operation.method, operation.path) for operation in operations(document)}
    named = set(specified())
    assert served - named == set(), "served, but neither in the specification nor among the contract's extensions"
    assert named - served - set(PLANNED) == set(), "specified, but not served"
    assert served & set(PLANNED) == set(), "built by now: take it off PLANNED"
    assert {path for path in document["paths"] if not path.startswith(("/api/", "/gateway/"))} == OPERATION


async def test_every_route_of_the_app_is_in_the_document(plane: Plane) -> None:
    document = plane.app.openapi()
    routes: list[Any] = list(plane.app.routes)
    seen = 0
    while routes:
        route = routes.pop()
        routes += list(getattr(getattr(route, "original_router", route), "routes", None) or ())
        path = getattr(route, "path", None)
        if path is None or path in {"", "/openapi.json", mcp.PATH} or isinstance(route, WebSocketRoute):
            continue
        methods = {method.lower() for method in getattr(route, "methods", None) or ()} - {"head"}
        assert methods <= set(document["paths"][getattr(route, "path_format", path)]), path
        seen += 1
    assert seen >= len(OPERATION) + 12


async def test_the_document_is_complete(plane: Plane) -> None:
    document = expect(await plane.client.get("/openapi.json"), 200)
    ids = set()
    for operation in operations(document):
        spec = operation.spec
        assert spec["summary"], operation
        assert spec["description"], operation
        assert spec["tags"], operation
        assert spec["security"] == [{"token": []}], operation
        ids.add(spec["operationId"])
        answers = spec["responses"]
        assert {"400", "401", "403", "500"} <= set(answers), operation
        assert "422" not in answers, operation
        assert [status for status in answers if status.startswith("2")], operation
        for status, answer in answers.items():
            schema = answer["content"]["application/json"]["schema"]
            assert schema.get("$ref", "").endswith("/ErrorAnswer") is (status >= "400"), f"{operation} {status}"
        if operation.body_schema is not None:
            assert {"413"} <= set(answers), operation
            assert operation.body_schema["additionalProperties"] is False, operation
        for name, parameter in operation.parameters.items():
            assert parameter.get("description"), f"{operation} {name}"
    assert len(ids) == len(operations(document))
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


async def test_every_example_of_the_document_is_valid(plane: Plane) -> None:
    document = plane.app.openapi()
    examples = 0
    for name, schema in document["components"]["schemas"].items():
        whole = {**schema, "components": document["components"]}
        if "example" in schema:
            jsonschema_rs.Draft202012Validator(whole).validate(schema["example"])
            examples += 1
        for field, inner in schema.get("properties", {}).items():
            for example in inner.get("examples", ()):
                validator = jsonschema_rs.Draft202012Validator({**inner, "components": document["components"]})
                assert validator.is_valid(example), f"{name}.{field}: {example!r}"
    assert examples >= 8
    for operation in operations(document):
        if operation.body_schema is not None:
            assert "example" in operation.body_schema, operation


async def test_no_page_loads_anything_from_elsewhere(plane: Plane) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert (await plane.client.get(path)).status_code == 404
