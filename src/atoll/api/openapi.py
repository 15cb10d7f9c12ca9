"""The OpenAPI document: what FastAPI derives from the routes, with our security scheme and our one error shape.

Routes name with `errors` the statuses of their own; those that every authenticated call can answer with are added here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from atoll import __version__
from atoll.api.sandbox.answers import ErrorAnswer

SANDBOX_API = "/api/public/v1"
GATEWAY_API = "/gateway/"
_SECURITY_SCHEME = "token"
_GATEWAY_SCHEME = "gatewayToken"
_DESCRIPTION = """Atoll gives AI agents isolated gVisor sandboxes over REST.

Every call names its account by `accountId` and carries a token: `Authorization: Bearer TOKEN`, or the token alone.
Fields that a body does not know are refused, query parameters that are not known are ignored. Each answer carries
`X-Request-Id`; send one of your own (letters, digits, `.`, `_`, `:`, `-`, at most 64) to find a request in the log.
"""
_MEANINGS = {
    400: "The request is malformed; the error names the field.",
    401: "There is no token, or it is not known.",
    403: "The token, its kind, its scope or its holder's role does not allow this, or the account is not theirs.",
    404: "It does not exist in this account.",
    409: "The present state does not allow it; `data.retryable` says whether waiting helps.",
    413: "The body is longer than 10 MiB.",
    426: "The operation is a WebSocket.",
    429: "A ceiling is reached; retry after the delay.",
    500: "A fault of the server.",
    502: "The sandbox's machine failed in a way without a name.",
    503: "The sandbox's agent cannot be reached for now; retry after the delay.",
    504: "The sandbox's snapshot was not finished in time; the sandbox goes on.",
}
_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait, where waiting helps.", "schema": {"type": "integer", "minimum": 0}}
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of an operation, for `responses` of its route."""
    return {status: _error(status) for status in (400, 401, 403, *statuses, 500)}


def document(app: FastAPI) -> dict[str, Any]:
    """Build the document once."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    schema = get_openapi(title="Atoll", version=__version__, description=_DESCRIPTION, routes=app.routes)
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {
        _SECURITY_SCHEME: {"type": "http", "scheme": "bearer", "description": "A token of a user or of an OAuth app."},
        _GATEWAY_SCHEME: {"type": "http", "scheme": "bearer", "description": "The token of a gateway session."},
    }
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            # FastAPI's own shape of a validation error; ours is 400 in the one shape.
            operation["responses"].pop("422", None)
            if path.startswith((SANDBOX_API, GATEWAY_API)):
                scheme = _GATEWAY_SCHEME if path.startswith(GATEWAY_API) else _SECURITY_SCHEME
                operation["security"] = [{scheme: []}]
                if "requestBody" in operation:
                    operation["responses"]["413"] = _rendered_error(413)
    app.openapi_schema = schema
    return schema


def _error(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"model": ErrorAnswer, "description": _MEANINGS[status]}
    if status in {409, 429, 503}:
        answer["headers"] = _RETRY_AFTER
    return answer


def _rendered_error(status: int) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}
    return {"description": _MEANINGS[status], "content": {"application/json": {"schema": reference}}}
