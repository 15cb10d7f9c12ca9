"""How fast a background command's output reaches a client, and that a flood of it does not grow the server."""

from __future__ import annotations

import time
from dataclasses import dataclass

import orjson
from tests import leaks
from tests.client import API, Client, Output

from bench.figures import Result
from bench.setting import Setting

DELIVERED_MB_S = 100.0
GROWTH_MB = 64.0
"""Answers under way, each about 1.4 MB of JSON, and what Python's heap makes of them; far below the gigabyte."""
_MB = 1_000_000
_GIGABYTE = 1_000_000_000
_ENDLESS = ["cat", "/dev/zero"]


@dataclass(slots=True)
class _Flood:
    """What was delivered in one look."""

    delivered: int = 0
    dropped: int = 0
    seconds: float = 0.0

    @property
    def megabytes_a_second(self) -> float:
        """Decoded bytes of stdout per second."""
        return self.delivered / _MB / self.seconds


def _read_flood(client: Client, sandbox_id: str, seconds: float) -> _Flood:
    """Follow an endless command for a while. Base64 is counted, not decoded, so that the client is not what is
    measured; the first page is decoded and looked at."""
    execution_id = client.start(sandbox_id, _ENDLESS)
    flood, next_seq, checked = _Flood(), 0, False
    account = client.access.account_id
    path = f"{API}/sandbox/command?accountId={account}&sandboxId={sandbox_id}&executionId={execution_id}&waitSeconds=5"
    began = time.perf_counter()
    while flood.seconds < seconds:
        status, body = client.raw("GET", f"{path}&from={next_seq}")
        if status != 200:
            raise RuntimeError(f"get a command answered {status}")
        command = orjson.loads(body)["command"]  # as a fast client does
        for event in command["events"]:
            text = event.get("stdout", "")
            flood.delivered += len(text) // 4 * 3 - text[-2:].count("=")
            flood.dropped += event.get("truncated", {}).get("droppedBytes", 0)
        if not checked and command["events"]:
            page = Output()
            page.take(command)
            if page.stdout.strip(b"\0"):
                raise RuntimeError("the output is not the command's")
            checked = True
        next_seq = command["nextSeq"]
        flood.seconds = time.perf_counter() - began
    client.kill(sandbox_id, execution_id, "SIGKILL")
    return flood


def output(setting: Setting) -> Result:
    """An endless command, followed by Get a command, in the default size and in a larger one."""
    result = Result("output", "Standard output of a background command, sandbox → HTTP client")
    seconds = 5.0 if not setting.quick else 1.5
    with setting.server("output") as server, server.client() as client:
        sizes = {"a sandbox of 1 zCloud": None, "a sandbox of 4 zClouds": client.make_template("four", zClouds=4)}
        sandboxes = {name: client.ready(f"output-{name}", template_id=template) for name, template in sizes.items()}
        floods: dict[str, list[_Flood]] = {name: [] for name in sizes}
        for _ in range(setting.rounds(4, 2)):
            for name, sandbox_id in sandboxes.items():
                floods[name].append(_read_flood(client, sandbox_id, seconds))
    for name, seen in floods.items():
        dropped = sum(flood.dropped for flood in seen) / _MB
        rates = [flood.megabytes_a_second for flood in seen[1:] or seen]
        note = f"{dropped:,.0f} MB were written faster than read, and dropped" if dropped else "nothing dropped"
        rate = result.samples(name, "MB/s", rates, note).p50
        target = f"stdout of a background command of {name} ≥ {DELIVERED_MB_S:g} MB/s"
        result.target(target, f"{rate:.0f} MB/s", met=rate >= DELIVERED_MB_S)
    result.notes.append("1 zCloud is half a processor, which gVisor and the agent share with the command; 4 are two")
    return result


def gigabyte(setting: Setting) -> Result:
    """A gigabyte that nobody reads, one that is read, and one by execute; the server's peak while they last."""
    size = _GIGABYTE if not setting.quick else _GIGABYTE // 8
    argv = ["head", "-c", str(size), "/dev/zero"]
    result = Result("gigabyte", f"{size / _MB:,.0f} MB of output")
    with setting.server("gigabyte") as server, server.client() as client:
        sandbox_id = client.ready("gigabyte", template_id=client.make_template("four", zClouds=4))
        client.follow(sandbox_id, client.start(sandbox_id, ["head", "-c", "8000000", "/dev/zero"]))
        client.execute(sandbox_id, ["head", "-c", "8000000", "/dev/zero"])
        before = leaks.resources(server.pid).resident_kb / 1024
        leaks.reset_peak_resident(server.pid)
        unread = client.start(sandbox_id, argv)
        client.until(sandbox_id, "READY", seconds=120)
        late = client.follow(sandbox_id, unread, seconds=120)
        followed = client.follow(sandbox_id, client.start(sandbox_id, argv), seconds=120)
        executed = client.execute(sandbox_id, argv)
        peak = leaks.peak_resident_kb(server.pid) / 1024
    result.value("server before", "MB RSS", before)
    result.value("server at its peak", "MB RSS", peak, "output that nobody read, output that was followed, and execute")
    result.value("dropped of what nobody read", "MB", late.dropped_bytes / _MB, f"{len(late.stdout) / _MB:.1f} MB kept")
    result.value(
        "dropped of what was followed", "MB", followed.dropped_bytes / _MB, f"{len(followed.stdout) / _MB:.0f} MB read"
    )
    result.value("kept of execute's", "MB", len(executed.stdout) / _MB, "the rest is cut, and said so")
    accounted = all(len(seen.stdout) + seen.dropped_bytes == size for seen in (late, followed))
    result.target("every byte is delivered or counted as dropped", "yes" if accounted else "no", met=accounted)
    result.target(
        f"{size / _MB:,.0f} MB of output grow the server by no more than {GROWTH_MB:g} MB",
        f"{peak - before:.0f} MB",
        met=peak - before <= GROWTH_MB and executed.stdout_truncated,
    )
    return result
