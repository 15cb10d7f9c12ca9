"""Raw runsc: the driver's own OCI configuration and flags, without the control plane, agent, limits or shim."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from atoll.drivers.gvisor import bundle
from atoll.drivers.gvisor.layout import InstancePaths
from bench.setting import Setting, compile_program, end, time_to_first_byte, timed

_PROGRAM_SECONDS = 30.0
_NAMESPACE = "atoll-bench-"


class Runsc:
    """`runsc run` to the first byte, and `runsc exec` in one container that stays."""

    def __init__(self, setting: Setting) -> None:
        self._image = setting.image
        self._work = setting.work / "runsc"
        self._work.mkdir()
        self._program = compile_program("first_byte", self._work)
        self._launcher = [str(compile_program("without_proc_sys_net", self._work))] if setting.hide_proc_sys_net else []
        for name in ("resolv.conf", "hosts"):
            (self._work / name).touch()
        self._runsc = Path(shutil.which("runsc") or "runsc")
        self._count = 0
        self._kept: tuple[InstancePaths, subprocess.Popen[bytes]] | None = None

    def __enter__(self) -> Self:
        """Enter a block that ends everything."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the container that stays, whatever still runs, and the namespaces."""
        if self._kept is not None:
            end(self._kept[1], seconds=_PROGRAM_SECONDS)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.fsencode(self._work) in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
        for number in range(self._count):
            _ip("netns", "del", f"{_NAMESPACE}{number}", check=False)
        shutil.rmtree(self._work, ignore_errors=True)

    def run_to_first_byte(self) -> float:
        """Milliseconds of one cold start. The namespace and the bundle are made before the clock starts."""
        paths = self._prepare()
        return time_to_first_byte([*self._launcher, *bundle.runsc_argv(self._runsc, paths)])

    def exec_true(self) -> float:
        """Milliseconds of `runsc exec` of `true`."""
        if self._kept is None:
            paths = self._prepare()
            argv = [*self._launcher, *bundle.runsc_argv(self._runsc, paths)]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self._kept = paths, process
            assert process.stdout is not None
            process.stdout.read(1)
        argv = ["runsc", f"--root={self._kept[0].runsc_root}", "exec", bundle.CONTAINER_ID, "/bin/true"]
        return timed(lambda: subprocess.run(argv, check=True, timeout=_PROGRAM_SECONDS, stdin=subprocess.DEVNULL))

    def _prepare(self) -> InstancePaths:
        number, self._count = self._count, self._count + 1
        name = f"{_NAMESPACE}{number}"
        _ip("netns", "del", name, check=False)
        _ip("netns", "add", name)
        _ip("link", "add", f"atbench{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", name, "addr", "add", "10.191.255.2/30", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "route", "add", "default", "via", "10.191.255.1")
        paths = InstancePaths(f"bench{number}", self._work / str(number), self._work / f"{number}.disk")
        for folder in (paths.bundle, paths.runsc_root, paths.overlay_dir, paths.tmp_dir):
            folder.mkdir(parents=True)
        shared = bundle.SharedFiles(self._program, self._work / "resolv.conf", self._work / "hosts")
        config = bundle.config(
            [bundle.AGENT_IN_SANDBOX],
            self._image,
            paths,
            shared,
            namespace=Path("/run/netns") / name,
            hostname="bench",
            pid_limit=4_096,
        )
        (paths.bundle / "config.json").write_text(json.dumps(config))
        return paths


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, timeout=_PROGRAM_SECONDS, capture_output=True)
