"""The measures by name, in the order in which they run. Each starts and ends what it needs."""

from __future__ import annotations

from collections.abc import Callable

from bench.figures import Result
from bench.measures import burst, claims, create, egress, execute, files, memory, output, pause, pty
from bench.setting import Setting

Measure = Callable[[Setting], Result]

MEASURES: dict[str, Measure] = {
    "cold": create.cold,
    "warm": create.warm,
    "execute": execute.execute,
    "many": execute.many,
    "burst": burst.burst,
    "claims": claims.claims,
    "memory": memory.memory,
    "output": output.output,
    "gigabyte": output.gigabyte,
    "pause": pause.pause,
    "pty": pty.pty,
    "files": files.files,
    "egress": egress.egress,
}
