"""Bubblewrap: namespaces of the machine's own kernel, no gVisor; the floor of what a process in a box costs."""

from __future__ import annotations

import shutil
import subprocess

from bench.setting import Setting, compile_program, time_to_first_byte, timed

_PROGRAM_SECONDS = 30.0


class Bwrap:
    """`bwrap` to the first byte, and around `true` to its end."""

    def __init__(self, setting: Setting) -> None:
        work = setting.work / "bwrap"
        work.mkdir(exist_ok=True)
        self._program = compile_program("first_byte", work)
        self._base = ["bwrap", "--ro-bind", str(setting.image.rootfs), "/", "--proc", "/proc", "--dev", "/dev"]
        self._base += ["--tmpfs", "/tmp", "--unshare-all", "--cap-drop", "ALL", "--new-session", "--die-with-parent"]

    @staticmethod
    def missing() -> str | None:
        """Why it cannot be measured here."""
        return None if shutil.which("bwrap") else "bwrap is not installed"

    def run_to_first_byte(self) -> float:
        """Milliseconds of one start."""
        return time_to_first_byte([*self._base, "--ro-bind", str(self._program), "/tmp/first_byte", "/tmp/first_byte"])

    def run_true(self) -> float:
        """Milliseconds of a start of `true` to its end; there is nothing to enter, so each is a new box."""
        argv = [*self._base, "/bin/true"]
        return timed(lambda: subprocess.run(argv, check=True, timeout=_PROGRAM_SECONDS, stdin=subprocess.DEVNULL))
