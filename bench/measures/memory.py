"""What idle sandboxes and their server hold of the machine's memory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import leaks
from tests.crowd import terminate_at_once
from tests.server import AtollServer

from bench.figures import Result
from bench.setting import Setting

IDLE_MB = 45.0
SERVER_MB = 250.0
_REST_SECONDS = 2.0
"""After a boot, so that what it needed for a moment has been given back."""


def memory(setting: Setting) -> Result:
    """One alone, then a hundred alive at once."""
    count = setting.rounds(100, 10)
    result = Result("memory", f"Memory of {count} idle sandboxes")
    with setting.server("memory") as server:
        with server.client() as client:
            first = client.ready("memory-first")
            time.sleep(_REST_SECONDS)
            alone = _sandboxes_mb(server)[0]
            client.terminate(first)
        available = _available_mb()

        def create(number: int) -> str:
            with server.client() as own:
                return own.ready(f"memory-{number}", seconds=300)

        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(create, range(count)))
        time.sleep(_REST_SECONDS)
        together = _sandboxes_mb(server)
        taken = available - _available_mb()
        held = leaks.resources(server.pid)
        with server.client() as client:
            answering = sum(client.execute(sandbox_id, ["true"]).exit_code == 0 for sandbox_id in ids)
        terminate_at_once(server, ids)
    result.value("one idle sandbox alone", "MB PSS", alone, "shim, runsc, gVisor and its stubs")
    summary = result.samples(f"each of {count} idle sandboxes", "MB PSS", together)
    result.value(f"taken from the machine by {count} sandboxes, each", "MB", taken / count, "MemAvailable")
    result.value(f"server with {count} sandboxes", "MB RSS", held.resident_kb / 1024)
    result.target(f"an idle sandbox ≤ {IDLE_MB:g} MB", f"{max(alone, summary.p50):.1f} MB", met=alone <= IDLE_MB)
    result.target(f"{count} alive at once", f"{answering} ran a command", met=answering == count)
    server_mb = held.resident_kb / 1024
    result.target(f"server at {count} sandboxes ≤ {SERVER_MB:g} MB", f"{server_mb:.0f} MB", met=server_mb <= SERVER_MB)
    return result


def _sandboxes_mb(server: AtollServer) -> list[float]:
    found = leaks.instances(server.data_dir)
    return [leaks.pss_kb(leaks.instance_processes(server.data_dir, name)) / 1024 for name in found]


def _available_mb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the machine does not say how much memory is available")
