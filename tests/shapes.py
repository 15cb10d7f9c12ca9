"""Holds answers against the OpenAPI document: nothing undocumented is answered, nothing documented looks different."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema_rs
from fastapi import FastAPI

_MAY_BE_NULL = {"currentRevision"}
_FRAMEWORK_STATUSES = {404, 405}
"""What an unknown path or method answers, without being in the document."""


_validators: dict[tuple[str, str, int], Any] = {}
"""By path, method and status; the document is the same for every application of this process."""


class ShapeChecker:
    """The document of one application, as validators."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def check(self, answer: httpx.Response) -> None:
        """Fail for an answer that the document does not describe, and for any 500."""
        assert answer.status_code != 500, answer.text
        assert answer.headers["x-request-id"]
        path = answer.request.url.path
        if path == "/openapi.json":
            return
        body = answer.json()
        if not path.startswith("/api/"):
            return
        if answer.status_code >= 400:
            self._check_error(answer, body)
        self._check_no_null(body)
        operation = self._app.openapi()["paths"].get(path, {}).get(answer.request.method.lower())
        if operation is None:
            assert answer.status_code in _FRAMEWORK_STATUSES, answer.text
            return
        assert str(answer.status_code) in operation["responses"], f"{path} {answer.status_code} is not documented"
        self._validator(path, answer.request.method.lower(), answer.status_code).validate(body)

    def _check_error(self, answer: httpx.Response, body: Any) -> None:
        assert set(body) <= {"success", "error", "errorCode", "data"}, body
        assert body["success"] is False
        assert isinstance(body["error"], str)
        assert body["error"]
        data = body.get("data", {})
        assert set(data) <= {"retryable", "retryAfterSeconds", "reason"}, body
        assert data or "data" not in body
        delay = data.get("retryAfterSeconds")
        assert answer.headers.get("retry-after") == (None if delay is None else str(delay))

    def _check_no_null(self, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                assert inner is not None or key in _MAY_BE_NULL, f"{key} is null"
                self._check_no_null(inner)
        elif isinstance(value, list):
            for inner in value[:50]:
                self._check_no_null(inner)

    def _validator(self, path: str, method: str, status: int) -> Any:
        key = (path, method, status)
        if key not in _validators:
            document = self._app.openapi()
            answer = document["paths"][path][method]["responses"][str(status)]
            schema = answer["content"]["application/json"]["schema"]
            _validators[key] = jsonschema_rs.Draft202012Validator(
                {**schema, "components": document["components"]}, validate_formats=True
            )
        return _validators[key]
