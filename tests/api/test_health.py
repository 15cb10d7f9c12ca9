"""Whether work is taken."""

from __future__ import annotations

import httpx
from tests.plane import Plane, expect

from atoll.api.app import create_app


async def test_a_control_plane_that_runs_is_healthy_and_ready_without_a_token(plane: Plane) -> None:
    assert expect(await plane.client.get("/healthz"), 200) == {"success": True, "status": "ok"}
    ready = expect(await plane.client.get("/readyz"), 200)
    assert set(ready["dependencies"].values()) == {"ready"}
    assert "database" in ready["dependencies"]


async def test_what_is_not_ready_is_named_and_no_work_is_taken(plane: Plane) -> None:
    async def trouble() -> dict[str, str | None]:
        return {"database": None, "image": "is being built"}

    app = create_app(plane.services, readiness=trouble)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://atoll.test") as client:
        health = expect(await client.get("/healthz"), 503)
        assert health == {"success": False, "error": "Not ready: image."}
        ready = expect(await client.get("/readyz"), 503)
        assert ready["dependencies"] == {"database": "ready", "image": "is being built"}
        assert "image: is being built" in ready["error"]
