"""Fifty creates at once, and what is left of them after their end."""

from __future__ import annotations

import time

from tests import leaks
from tests.crowd import create_at_once, terminate_at_once

from bench.figures import Result
from bench.setting import Setting

_GONE_SECONDS = 120.0


def burst(setting: Setting) -> Result:
    """Create, run one command in each, terminate, look."""
    count = setting.rounds(50, 12)
    result = Result("burst", f"{count} creates at once")
    with setting.server("burst") as server:
        before = leaks.snapshot(server.data_dir)
        began = time.perf_counter()
        created = create_at_once(server, [f"burst-{number}" for number in range(count)])
        whole = time.perf_counter() - began
        ready = [it.sandbox["sandboxId"] for it in created if it.sandbox["status"] == "READY"]
        with server.client() as client:
            working = sum(client.execute(sandbox_id, ["true"]).exit_code == 0 for sandbox_id in ready)
        began = time.perf_counter()
        terminate_at_once(server, [it.sandbox["sandboxId"] for it in created])
        ended = time.perf_counter() - began
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := leaks.left_over(before, leaks.snapshot(server.data_dir))) and time.monotonic() < deadline:
            time.sleep(0.1)
        gone = time.perf_counter() - began
    result.samples("create → READY, each", "ms", [it.milliseconds for it in created])
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
