"""Docker Engine with runc: a daemon of the bench's own, with folders, socket and control group of its own, no network.

It touches no other daemon, no bridge and no packet rule. Where it cannot be started it is left out, with the reason.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.setting import Setting, compile_program, time_to_first_byte, timed

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_IMPORT_SECONDS = 600.0
_PROGRAM_SECONDS = 60.0
_IMAGE = "atoll-bench:latest"
_CGROUP = "atoll-bench-docker"


class DockerMissing(Exception):  # noqa: N818 - says what it means
    """It cannot be measured here; the sentence says why."""


class Docker:
    """`docker run` to the first byte, and `docker exec` in one container that stays."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        # Short: a socket's path may have 107 characters.
        self._work = setting.work / "docker"
        self._socket = self._work / "d.sock"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._container: str | None = None
        self._program = Path()

    def __enter__(self) -> Self:
        """Start the daemon and import the image. Raises `DockerMissing`."""
        if not shutil.which("dockerd") or not shutil.which("docker"):
            raise DockerMissing("dockerd or docker is not installed")
        self._work.mkdir()
        try:
            self._program = compile_program("first_byte", self._work)
            self._start_daemon()
            self._import_image()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End containers and daemon, and delete all of it."""
        self._end()

    def run_to_first_byte(self) -> float:
        """Milliseconds of one `docker run`."""
        argv = [*self._docker("run"), "--rm", "--interactive", "--network=none", f"--cgroup-parent=/{_CGROUP}"]
        return time_to_first_byte([*argv, f"--volume={self._program}:/first_byte:ro", _IMAGE, "/first_byte"])

    def exec_true(self) -> float:
        """Milliseconds of `docker exec` of `true`."""
        if self._container is None:
            argv = [*self._docker("run"), "--detach", "--network=none", f"--cgroup-parent=/{_CGROUP}", "--init"]
            self._container = _output([*argv, _IMAGE, "sleep", "infinity"]).strip()
        argv = [*self._docker("exec"), self._container, "true"]
        return timed(lambda: subprocess.run(argv, check=True, timeout=_PROGRAM_SECONDS, stdin=subprocess.DEVNULL))

    def _docker(self, command: str) -> list[str]:
        return ["docker", "--host", f"unix://{self._socket}", command]

    def _start_daemon(self) -> None:
        argv = ["dockerd", f"--host=unix://{self._socket}", f"--data-root={self._work / 'data'}"]
        argv += [f"--exec-root={self._work / 'exec'}", f"--pidfile={self._work / 'pid'}", "--bridge=none"]
        argv += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
        argv += ["--userland-proxy=false", "--log-level=error", "--storage-driver=overlay2"]
        log_file = self._work / "log"
        with log_file.open("wb") as log:
            self._daemon = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            version = [*self._docker("version"), "--format", "{{.Server.Version}}"]
            if subprocess.run(version, capture_output=True, timeout=_PROGRAM_SECONDS, check=False).returncode == 0:
                return
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                last = (log_file.read_text(errors="replace").strip().splitlines() or ["no word of why"])[-1]
                raise DockerMissing(f"dockerd does not start: {last[:300]}")
            time.sleep(0.2)

    def _import_image(self) -> None:
        self._setting.say("importing the image into Docker")
        pack = ["tar", "--create", f"--directory={self._setting.image.rootfs}", "--one-file-system", "."]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
            try:
                subprocess.run(
                    [*self._docker("import"), "-", _IMAGE],
                    stdin=tar.stdout,
                    capture_output=True,
                    timeout=_IMPORT_SECONDS,
                    check=True,
                )
            except subprocess.CalledProcessError as error:
                raise DockerMissing(f"docker import: {error.stderr.decode(errors='replace')[-300:]}") from error
            finally:
                tar.kill()

    def _end(self) -> None:
        daemon = self._daemon
        if daemon is not None and daemon.poll() is None:
            with suppress(subprocess.SubprocessError):
                listed = _output([*self._docker("ps"), "--all", "--quiet"]).split()
                if listed:
                    _output([*self._docker("rm"), "--force", *listed])
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(_STOP_SECONDS)
        self._kill_children()
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in reversed([point for point in points if point.startswith(f"{self._work}/")]):
            subprocess.run(["umount", "--lazy", point], capture_output=True, timeout=_PROGRAM_SECONDS, check=False)
        for group in [*Path("/sys/fs/cgroup").glob(f"*/{_CGROUP}"), Path("/sys/fs/cgroup") / _CGROUP]:
            with suppress(OSError):
                group.rmdir()
        shutil.rmtree(self._work, ignore_errors=True)

    def _kill_children(self) -> None:
        """What a daemon that had to be killed left: its containerd and shims, known by the folder they name."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{self._work}/".encode() in (process / "cmdline").read_bytes():
                    subprocess.run(["kill", "-KILL", process.name], timeout=5, check=False)


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, timeout=_PROGRAM_SECONDS, check=True).stdout.decode()
