"""The HTTP application over one control plane. It serves requests; `atoll.compose` makes services and workers."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atoll.api import health, mcp
from atoll.api.envelope import RequestEnvelope
from atoll.api.errors import INTERNAL, NO_SUCH_ROUTE, Failure, failure_of, invalid_fields, render
from atoll.api.gateway import archive, files, port_socket, ports, processes, status, stream
from atoll.api.health import Readiness
from atoll.api.mcp import McpEndpoint
from atoll.api.openapi import document
from atoll.api.sandbox import ai_subscriptions, audit, commands, pause, sandboxes, sessions, templates, usage, volumes
from atoll.domain.errors import AtollError
from atoll.ops.services import Services


def create_app(services: Services, *, readiness: Readiness) -> FastAPI:
    """Make the application. `readiness` says per dependency what is not ready."""
    app = FastAPI(
        title="Atoll",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.readiness = readiness
    for routes in (
        health.router,
        sandboxes.router,
        pause.router,
        commands.router,
        sessions.router,
        templates.router,
        volumes.router,
        ai_subscriptions.router,
        usage.router,
        audit.router,
        status.router,
        processes.router,
        stream.router,
        files.router,
        archive.router,
        ports.router,
        port_socket.router,
    ):
        app.include_router(routes)
    app.router.routes.append(Route(mcp.PATH, McpEndpoint(app), include_in_schema=False))
    app.add_exception_handler(AtollError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_fields)
    app.add_exception_handler(WebSocketRequestValidationError, _refuse_fields)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_middleware(RequestEnvelope, new_id=services.new_id)
    app.openapi = partial(document, app)  # type: ignore[method-assign]  # the way that FastAPI documents
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    del request
    if not isinstance(error, AtollError):
        raise error
    failure = failure_of(error)
    if failure is INTERNAL:
        raise error  # the envelope logs it and answers
    return render(failure)


async def _refuse_fields(request: Request, error: Exception) -> Response:
    del request
    if not isinstance(error, RequestValidationError | WebSocketRequestValidationError):
        raise error
    return render(invalid_fields(error.errors()))


async def _refuse_route(request: Request, error: Exception) -> Response:
    """The framework's own refusals: an unknown route, a method that a route does not have."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404:
        return render(NO_SUCH_ROUTE)
    if error.status_code == 405:
        message = f"The operation does not take the method {request.method}."
        return render(Failure(405, message), error.headers)
    return render(Failure(error.status_code, "The request cannot be honoured."), error.headers)
