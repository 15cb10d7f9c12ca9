"""How long a command takes, beside the peers, and what ten thousand of them leave behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests import holdings
from tests.client import Client

from bench.figures import Result
from bench.peers.bwrap import Bwrap
from bench.peers.docker import Docker, DockerMissing
from bench.peers.runsc import Runsc
from bench.setting import Setting, timed

EXECUTE_MS = 12.0
EXECUTE_RATIO = 0.4
_WARM_UP = 10
_ATOLL, _RUNSC = "Atoll execute over HTTP", "runsc exec"


def execute(setting: Setting) -> Result:
    """`true` in a sandbox that stays, beside `runsc exec`, `docker exec` and a new bwrap box."""
    result = Result("execute", "Execute `true`")
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        peers: dict[str, Callable[[], float]] = {_RUNSC: stack.enter_context(Runsc(setting)).exec_true}
        server = stack.enter_context(setting.server("execute"))
        client = stack.enter_context(server.client())
        sandbox_id = client.ready("execute")
        peers[_ATOLL] = lambda: timed(lambda: _true(client, sandbox_id))
        if missing := Bwrap.missing():
            result.notes.append(f"bwrap left out: {missing}")
        else:
            peers["bwrap around `true`, a new box"] = Bwrap(setting).run_true
        try:
            peers["docker exec"] = stack.enter_context(Docker(setting)).exec_true
        except DockerMissing as reason:
            result.notes.append(f"Docker left out: {reason}")
        for turn in range(setting.rounds(200, 30) + _WARM_UP):
            for name, peer in peers.items():
                took = peer()
                if turn >= _WARM_UP:
                    samples.setdefault(name, []).append(took)
    summaries = {name: result.samples(name, "ms", values) for name, values in samples.items()}
    ours, ratio = summaries[_ATOLL].p50, summaries[_ATOLL].p50 / summaries[_RUNSC].p50
    result.target(f"execute `true` over HTTP: p50 ≤ {EXECUTE_MS:g} ms", f"{ours:.1f} ms", met=ours <= EXECUTE_MS)
    result.target(f"execute ≤ {EXECUTE_RATIO} of `runsc exec`", f"{ratio:.2f}", met=ratio <= EXECUTE_RATIO)
    return result


def _true(client: Client, sandbox_id: str) -> None:
    if client.execute(sandbox_id, ["true"]).exit_code:
        raise RuntimeError("`true` failed")


def many(setting: Setting) -> Result:
    """Ten thousand executes in one sandbox, one after the other."""
    count = setting.rounds(10_000, 500)
    result = Result("many", f"{count:,} executes in one sandbox, without a pause")
    with setting.server("many") as server, server.client() as client:
        sandbox_id = client.ready("many")
        for _ in range(min(500, count)):
            _true(client, sandbox_id)
        before, database = holdings.look(server, client, sandbox_id), _database_bytes(server.data_dir)
        took = [timed(lambda: _true(client, sandbox_id)) for _ in range(count)]
        after = holdings.look(server, client, sandbox_id)
        grown_bytes = _database_bytes(server.data_dir) - database
    result.samples("execute `true`, back to back", "ms", took, "the sandbox has half a processor")
    for name in holdings.ALLOWED_GROWTH:
        result.value(f"growth: {name}", "", after[name] - before[name], f"from {before[name]:,.0f}")
    result.value("growth: database, per execute", "bytes", grown_bytes / count, "the record of each command")
    beyond = holdings.growth_beyond(before, after)
    result.target(
        f"{count:,} executes in one sandbox leak nothing",
        "nothing" if not beyond else ", ".join(f"{name} +{more:,.0f}" for name, more in beyond.items()),
        met=not beyond,
    )
    return result


def _database_bytes(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in data_dir.glob("atoll.db*"))
