"""How long a sandbox takes: cold, beside the peers, and from the warm pool to the first command's result."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from tests.client import Client
from tests.server import AtollServer, wait_until

from bench.figures import Result
from bench.peers.bwrap import Bwrap
from bench.peers.docker import Docker, DockerMissing
from bench.peers.runsc import Runsc
from bench.setting import Setting, timed, wait_until_gone

COLD_RATIO = 1.5
WARM_MS = 25.0
_WARM_UP = 2
_POOL = 2
_POOL_SECONDS = 60.0
_REST_SECONDS = 0.1
"""After a boot of the pool, so that its last work is not measured as somebody else's."""


def cold(setting: Setting) -> Result:
    """Create → READY over HTTP, image cached, no pool, beside raw starts to a program's first byte."""
    result = Result("cold", "Cold start")
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        peers: dict[str, Callable[[], float]] = {}
        runsc = stack.enter_context(Runsc(setting))
        peers["runsc run, to the first byte"] = runsc.run_to_first_byte
        server = stack.enter_context(setting.server("cold"))
        client = stack.enter_context(server.client())
        creates = _ColdCreates(client, server.data_dir)
        peers["Atoll create → READY over HTTP"] = creates.one
        if missing := Bwrap.missing():
            result.notes.append(f"bwrap left out: {missing}")
        else:
            peers["bwrap, to the first byte"] = Bwrap(setting).run_to_first_byte
        try:
            docker = stack.enter_context(Docker(setting))
            peers["docker run, to the first byte"] = docker.run_to_first_byte
        except DockerMissing as reason:
            result.notes.append(f"Docker left out: {reason}")
        for turn in range(setting.rounds(40, 8) + _WARM_UP):
            for name, peer in peers.items():
                took = peer()
                if turn >= _WARM_UP:
                    samples.setdefault(name, []).append(took)
                creates.clean_up()
    summaries = {name: result.samples(name, "ms", values) for name, values in samples.items()}
    ratio = summaries["Atoll create → READY over HTTP"].p50 / summaries["runsc run, to the first byte"].p50
    result.target(
        f"cold create → READY ≤ {COLD_RATIO} of raw `runsc run` to its first byte",
        f"{ratio:.2f}",
        met=ratio <= COLD_RATIO,
    )
    return result


class _ColdCreates:
    def __init__(self, client: Client, data_dir: Path) -> None:
        self._client = client
        self._data_dir = data_dir
        self._count = 0
        self._last: str | None = None

    def one(self) -> float:
        self._count += 1

        def create() -> None:
            self._last = self._client.ready(f"cold-{self._count}")

        return timed(create)

    def clean_up(self) -> None:
        if self._last is not None:
            self._client.terminate(self._last)
            self._last = None
            wait_until_gone(self._data_dir)


def warm(setting: Setting) -> Result:
    """Create → READY → `true` executed, each a call over HTTP, with a pool of booted sandboxes."""
    result = Result("warm", "Warm create to the first command's result")
    whole: list[float] = []
    created: list[float] = []
    missed = 0
    with setting.server("warm", warm_pool_size=str(_POOL)) as server, server.client() as client:
        rounds = setting.rounds(40, 8)
        for turn in range(rounds + _WARM_UP):
            _wait_for_pool(server)
            began = time.perf_counter()
            sandbox = client.settled(client.create(f"warm-{turn}")["sandboxId"])
            ready = (time.perf_counter() - began) * 1000
            done = client.execute(sandbox["sandboxId"], ["true"])
            took = (time.perf_counter() - began) * 1000
            if done.exit_code:
                raise RuntimeError("`true` failed")
            if turn >= _WARM_UP:
                whole.append(took)
                created.append(ready)
                missed += not sandbox["isWarmAllocation"]
            client.terminate(sandbox["sandboxId"])
    if missed:
        result.notes.append(f"{missed} of {rounds} creates found the pool empty and booted; they are in the figures")
    result.samples("create → READY", "ms", created)
    summary = result.samples("create → READY → result of `true`", "ms", whole)
    result.target(
        f"warm create → first command's result: p50 ≤ {WARM_MS:g} ms",
        f"{summary.p50:.1f} ms",
        met=summary.p50 <= WARM_MS,
    )
    return result


def _wait_for_pool(server: AtollServer) -> None:
    """The API does not tell how full a pool is; the database does."""
    address = f"file:{server.data_dir / 'atoll.db'}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as database:
        query = "SELECT count(*) FROM warm_instances WHERE state = 'WAITING'"
        wait_until(lambda: database.execute(query).fetchone()[0] >= _POOL, seconds=_POOL_SECONDS, what="the warm pool")
    time.sleep(_REST_SECONDS)
