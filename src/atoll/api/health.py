"""`/healthz` and `/readyz`: whether this process can take work, and what it waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

Readiness = Callable[[], Awaitable[Mapping[str, str | None]]]
"""Per dependency why it is not ready, or None when it is."""

router = APIRouter(tags=["Operation"])


@router.get("/healthz", operation_id="health", summary="Tell whether work is taken", response_class=Response)
async def health(request: Request) -> Response:
    """200 once this process can take work, 503 before and while something that it needs is missing."""
    waiting = {name: why for name, why in (await request.app.state.readiness()).items() if why is not None}
    if waiting:
        return _answer(503, {"success": False, "error": f"Not ready: {', '.join(sorted(waiting))}."})
    return _answer(200, {"success": True, "status": "ok"})


@router.get("/readyz", operation_id="readiness", summary="Tell what is not ready", response_class=Response)
async def readiness(request: Request) -> Response:
    """Every dependency with `ready`, or with what it waits for; 503 while there is one that is not ready."""
    found = await request.app.state.readiness()
    dependencies = {name: why or "ready" for name, why in found.items()}
    if any(why is not None for why in found.values()):
        error = "; ".join(f"{name}: {why}" for name, why in found.items() if why is not None)
        return _answer(503, {"success": False, "error": f"Not ready: {error}.", "dependencies": dependencies})
    return _answer(200, {"success": True, "dependencies": dependencies})


def _answer(status: int, body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
