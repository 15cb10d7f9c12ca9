"""A hundred creates at once from a full pool."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from tests.client import Client
from tests.crowd import create_at_once, terminate_at_once
from tests.server import AtollServer, wait_until

from bench.figures import Result
from bench.setting import Setting

READY_SECONDS = 1.0
_FILL_SECONDS = 400.0
_REST_SECONDS = 2.0
"""After the last boot of the pool."""


def claims(setting: Setting) -> Result:
    """Fill a pool, create as many as wait in it at the same moment, and wait for the last to be READY."""
    count = setting.rounds(100, 12)
    result = Result("claims", f"{count} claims at once from a full pool")
    with setting.server("claims") as server, server.client() as client:
        template_id = _pooled_template(client, count)
        _wait_for_pool(server, count)
        began = time.perf_counter()
        created = create_at_once(server, [f"claim-{number}" for number in range(count)], template_id=template_id)
        whole = time.perf_counter() - began
        terminate_at_once(server, [it.sandbox["sandboxId"] for it in created])
    warm = sum(it.sandbox["status"] == "READY" and it.sandbox["isWarmAllocation"] for it in created)
    slowest = max(it.milliseconds for it in created) / 1_000
    result.samples("create → READY, each, all at once", "ms", [it.milliseconds for it in created])
    result.value("all of them, with the start of the clients", "s", whole)
    result.target(
        f"{count} claims at once from a full pool: all READY within {READY_SECONDS:g} s",
        f"{warm} warm, the last after {slowest:.2f} s",
        met=warm == count and slowest <= READY_SECONDS,
    )
    return result


def _pooled_template(client: Client, count: int) -> str:
    return client.make_template("claims", warmPool={"desired": count, "min": 0, "max": count})


def _wait_for_pool(server: AtollServer, count: int) -> None:
    """The API does not tell how full a pool is; the database does."""
    with closing(sqlite3.connect(f"file:{server.data_dir / 'atoll.db'}?mode=ro", uri=True)) as database:
        query = "SELECT count(*) FROM warm_instances WHERE state = 'WAITING'"
        wait_until(lambda: database.execute(query).fetchone()[0] >= count, seconds=_FILL_SECONDS, what="the warm pool")
    time.sleep(_REST_SECONDS)
