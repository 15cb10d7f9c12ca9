"""The operations of the application and of the specification, and a valid request for each, made from the OpenAPI
document alone: so that a new route is held to every rule of this folder without a line written for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.plane import PREFIX

from atoll.domain.identity import Scope

DOCS = Path(__file__).parents[2] / "docs"
_OPERATION = re.compile(rf"(GET|POST|PUT|PATCH|DELETE) ({PREFIX}/[a-z/-]+)")
_CONTRACT_OPERATION = re.compile(r"`(GET|POST|PUT|PATCH|DELETE) (/(?:shared-volume|storage-server|audit)[a-z/-]*)[`?]")
_SCOPE = re.compile(r"scope (quave:[a-z]+(?::[a-z]+)?)")
_FILLERS: dict[str, Any] = {"string": "x", "integer": 1, "boolean": True, "array": [], "object": {}}

PLANNED: dict[tuple[str, str], str] = {}
"""Operations of the specification that are not built yet, and why not."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the Sandbox API as the document describes it."""

    method: str
    path: str
    spec: dict[str, Any]
    document: dict[str, Any]

    @property
    def body_schema(self) -> dict[str, Any] | None:
        """The schema of the body, resolved."""
        if "requestBody" not in self.spec:
            return None
        return self.resolve(self.spec["requestBody"]["content"]["application/json"]["schema"])

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """The query parameters by name."""
        return {parameter["name"]: parameter for parameter in self.spec.get("parameters", ())}

    @property
    def is_write(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET"

    @property
    def names_account(self) -> bool:
        """Whether it is about an account; AI subscriptions are about their owner."""
        schema = self.body_schema
        return "accountId" in self.parameters or (schema is not None and "accountId" in schema["properties"])

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Follow a reference."""
        if "$ref" not in schema:
            return schema
        found: dict[str, Any] = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found

    def body(self, account_id: str) -> dict[str, Any] | None:
        """A valid body, of an account that exists and of things that do not: the document's own example."""
        schema = self.body_schema
        if schema is None:
            return None
        example = dict(schema["example"])
        if "accountId" in schema["properties"]:
            example["accountId"] = account_id
        return example

    def query(self, account_id: str) -> dict[str, str]:
        """Valid values of the required parameters."""
        values = {
            name: str(_FILLERS[self.resolve(parameter["schema"]).get("type", "string")])
            for name, parameter in self.parameters.items()
            if parameter.get("required")
        }
        return values | ({"accountId": account_id} if "accountId" in self.parameters else {})

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations(document: dict[str, Any]) -> list[Operation]:
    """Every operation of the Sandbox API in a document."""
    return [
        Operation(method.upper(), path, spec, document)
        for path, methods in document["paths"].items()
        if path.startswith(PREFIX)
        for method, spec in methods.items()
    ]


def specified() -> dict[tuple[str, str], Scope | None]:
    """Every operation that the rules and the contract name, with its scope where a rule gives one."""
    found: dict[tuple[str, str], Scope | None] = {}
    for rule in yaml.safe_load((DOCS / "rules/sandbox-api.yaml").read_text()):
        scope = _SCOPE.search(rule["rule"])
        for method, path in _OPERATION.findall(rule["rule"]):
            known = found.get((method, path))
            found[method, path] = known or (Scope(scope.group(1)) if scope else None)
    for method, path in _CONTRACT_OPERATION.findall((DOCS / "contract.md").read_text()):
        found.setdefault((method, PREFIX + path), None)
    return found
