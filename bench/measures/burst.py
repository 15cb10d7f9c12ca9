"""Fifty creates at once, and what is left of them after their end."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tests import leaks
from tests.server import AtollServer

from bench.figures import Result
from bench.setting import Setting

_SETTLE_SECONDS = 300.0
_GONE_SECONDS = 120.0


def create_at_once(
    server: AtollServer, count: int, *, seconds: float = _SETTLE_SECONDS
) -> list[tuple[str, str, float]]:
    """Create `count` sandboxes from as many connections at the same moment: id, status at the end, milliseconds."""
    barrier = Barrier(count)

    def create(number: int) -> tuple[str, str, float]:
        with server.client() as client:
            client.call("GET", "/sandbox-templates")
            barrier.wait(60)
            began = time.perf_counter()
            sandbox = client.settled(client.create(f"burst-{number}")["sandboxId"], seconds=_SETTLE_SECONDS)
            return sandbox["sandboxId"], sandbox["status"], (time.perf_counter() - began) * 1000

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(create, range(count)))


def terminate_at_once(server: AtollServer, sandbox_ids: list[str]) -> None:
    """Terminate them from ten connections."""

    def terminate(sandbox_id: str) -> None:
        with server.client() as client:
            client.terminate(sandbox_id)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(terminate, sandbox_ids))


def burst(setting: Setting) -> Result:
    """Create, run one command in each, terminate, look."""
    count = setting.rounds(50, 12)
    result = Result("burst", f"{count} creates at once")
    with setting.server("burst") as server:
        before = leaks.snapshot(server.data_dir)
        began = time.perf_counter()
        created = create_at_once(server, count)
        whole = time.perf_counter() - began
        ready = [sandbox_id for sandbox_id, status, _ in created if status == "READY"]
        with server.client() as client:
            working = sum(client.execute(sandbox_id, ["true"]).exit_code == 0 for sandbox_id in ready)
        began = time.perf_counter()
        terminate_at_once(server, [sandbox_id for sandbox_id, _, _ in created])
        ended = time.perf_counter() - began
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := leaks.left_over(before, leaks.snapshot(server.data_dir))) and time.monotonic() < deadline:
            time.sleep(0.1)
        gone = time.perf_counter() - began
    result.samples("create → READY, each", "ms", [took for _, _, took in created])
    result.value("all of them READY", "s", whole)
    result.value("all of them terminated", "s", ended)
    result.value("nothing left on the machine", "s", gone, "counted from the first terminate")
    result.target(
        f"{count} creates at once: none fails",
        f"{count - len(ready)} failed, {working} ran a command",
        met=working == count,
    )
    result.target(
        "no process, namespace, mount, cgroup or file left after terminating them",
        "nothing" if not left else "; ".join(f"{len(names)} {kind}" for kind, names in left.items()),
        met=not left,
    )
    return result
