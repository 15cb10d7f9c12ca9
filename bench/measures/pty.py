"""How long a keystroke's echo takes on a terminal through the gateway, and how much output goes through a stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx
from tests.gateway_client import Stream, stream

from bench.figures import Result
from bench.setting import Setting

ECHO_MS = 8.0
_WARM_UP = 20
_OUTPUT_BYTES = 200_000_000
_SETTLE_SECONDS = 0.3
_TERMINAL = {"pty": {"rows": 40, "cols": 120}}


@dataclass(frozen=True, slots=True)
class _Figures:
    cooked: list[float]
    raw: list[float]
    quiet: list[float]
    seconds: float


def pty(setting: Setting) -> Result:
    """Keystrokes on a terminal that echoes them, one after the other, and a loud process."""
    result = Result("pty", "Terminals and streams through the gateway")
    with setting.server("pty") as server, server.client() as client:
        sandbox_id = client.ready("pty")
        session = client.call("POST", "/sandbox/session", {"sandboxId": sandbox_id, "scopes": ["exec", "pty"]})
        figures = asyncio.run(_measure(session, setting))
    summary = result.samples("echo of a keystroke by the terminal", "ms", figures.cooked, "WebSocket, gVisor, and back")
    result.samples("echo of a keystroke by a program in raw mode", "ms", figures.raw, "`cat` in the place of an editor")
    result.samples("echo of a keystroke after 0.1 s of silence", "ms", figures.quiet)
    megabytes = _OUTPUT_BYTES / 1e6
    result.value(
        "output through a stream", "MB/s", megabytes / figures.seconds, f"{megabytes:,.0f} MB, lossy by design"
    )
    result.target(f"echo of a keystroke: p50 ≤ {ECHO_MS:g} ms", f"{summary.p50:.1f} ms", met=summary.p50 <= ECHO_MS)
    return result


async def _measure(session: dict[str, str], setting: Setting) -> _Figures:
    cooked = await _echoes(session, {"command": ["cat"], **_TERMINAL}, setting.rounds(1_000, 100))
    program = ["sh", "-c", "stty raw -echo; exec cat"]
    raw = await _echoes(session, {"command": program, **_TERMINAL}, setting.rounds(1_000, 100))
    quiet = await _echoes(session, {"command": ["cat"], **_TERMINAL}, setting.rounds(50, 10), pause=0.1)
    loud = {"command": ["head", "-c", str(_OUTPUT_BYTES), "/dev/zero"]}
    began = time.perf_counter()
    async with stream(session["endpoint"], session["token"], await _start(session, loud), max_size=None) as output:
        await output.drain(seconds=120)
    return _Figures(cooked, raw, quiet, time.perf_counter() - began)


async def _echoes(session: dict[str, str], body: dict[str, object], rounds: int, *, pause: float = 0) -> list[float]:
    async with stream(session["endpoint"], session["token"], await _start(session, body)) as terminal:
        await terminal.step()
        await asyncio.sleep(_SETTLE_SECONDS)
        samples = []
        for turn in range(_WARM_UP + rounds):
            if pause:
                await asyncio.sleep(pause)
            took = await _echo(terminal)
            if turn >= _WARM_UP:
                samples.append(took)
        return samples


async def _echo(terminal: Stream) -> float:
    """One keystroke; milliseconds until it is on the screen."""
    seen = len(terminal.received.stdout)
    began = time.perf_counter()
    await terminal.stdin(b"x")
    while len(terminal.received.stdout) == seen:
        await terminal.step()
    return (time.perf_counter() - began) * 1000


async def _start(session: dict[str, str], body: dict[str, object]) -> str:
    async with httpx.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {session['token']}"}) as caller:
        answer = await caller.post(f"{session['endpoint']}/processes", json=body)
    answer.raise_for_status()
    return str(answer.json()["execution"]["executionId"])
