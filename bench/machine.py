"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROGRAM_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as far as the figures depend on it."""

    processor: str
    cores: int
    memory_gb: float
    kernel: str
    cgroups: str
    runsc: str

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.cores} cores ({self.processor}), {self.memory_gb:.0f} GB, Linux {self.kernel}, "
            f"cgroup {self.cgroups}, runsc {self.runsc}"
        )


def examine() -> Machine:
    """Look."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    return Machine(
        processor=_first(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(), platform.machine()),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=int(_first(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), "0")) / 1024 / 1024,
        kernel=platform.release(),
        cgroups="v2" if unified.exists() else "v1",
        runsc=_first(r"version\s+(\S+)", _output("runsc", "--version"), "unknown"),
    )


def _first(pattern: str, text: str, otherwise: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else otherwise


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, timeout=_PROGRAM_SECONDS, check=False)
    return done.stdout.decode("utf-8", "replace")
