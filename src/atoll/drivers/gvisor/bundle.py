"""What a sandbox is made of: the OCI configuration, the command line of runsc and the one of the shim. Pure.

`config` is the literal to read when asking what a sandbox may do. Called by the driver; does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.drivers.base import HostMount, InstanceSpec
from atoll.drivers.gvisor.images import Image
from atoll.drivers.gvisor.layout import InstancePaths

AGENT_IN_SANDBOX = "/.atoll/agent"
WORKSPACE = "/workspace"
TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - inside the sandbox
COMMAND_ID = 1001
"""uid and gid of every command (SA-091)."""
CONTAINER_ID = "sandbox"
"""Its name to runsc; each instance has a `--root` of its own, so the name can be short and the same."""
HIDDEN_PREFIXES = ("SANDBOX_AGENT_", "ATOLL_")
"""Variables no command may see (SA-098)."""
_REMEMBER_NO_NAMES = "dcache=0"
"""gVisor holds a file of the machine open after the program has closed it, for as long as it remembers the name. A
mount with a cache stores a file when it is closed, so nothing may be remembered there; many small files cost a third
more."""

AGENT_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
)
"""Of PID 1 inside the sandbox: it makes files for 1001, becomes 1001, drops the bounding set, and signals. Commands
have none."""

_DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Files of the machine that every sandbox sees read-only."""

    agent: Path
    resolv_conf: Path
    hosts: Path


def environment(image: Image) -> list[str]:
    """Defaults, overridden by the image's, without the variables that no command may see (SA-098)."""
    merged = _DEFAULT_ENVIRONMENT | {"HOME": image.home}
    for item in image.env:
        name, separator, value = item.partition("=")
        if name and separator and not name.startswith(HIDDEN_PREFIXES):
            merged[name] = value
    return [f"{name}={value}" for name, value in merged.items()]


def entrypoint(spec: InstanceSpec, image: Image) -> tuple[str, ...]:
    """The revision's command, or the image's entrypoint with its arguments (SA-203, SA-204)."""
    return spec.command if spec.command is not None else image.entrypoint + image.cmd


def agent_argv(spec: InstanceSpec, image: Image, *, pid_limit: int, memory_limit: int) -> list[str]:
    """PID 1 of the sandbox. Its working directory is the default one of commands (SA-205)."""
    return [
        AGENT_IN_SANDBOX,
        "agent",
        *("--uid", str(COMMAND_ID)),
        *("--gid", str(COMMAND_ID)),
        *("--nproc", str(pid_limit)),
        *("--workdir", spec.working_dir or WORKSPACE),
        *("--cgroup-limit", str(memory_limit)),
        "--",
        *entrypoint(spec, image),
    ]


def config(
    argv: Sequence[str],
    image: Image,
    paths: InstancePaths,
    shared: SharedFiles,
    *,
    namespace: Path,
    hostname: str,
    pid_limit: int,
    mounts: Sequence[HostMount] = (),
) -> dict[str, Any]:
    """The OCI configuration.

    The image is the read-only lower layer of gVisor's own overlay, so it is shared and never written to; `readonly`
    is False because it speaks of the overlay. There is no host path but the files named here, no device, no control
    group visible, and no way to gain a privilege.
    """
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": environment(image),
            "cwd": "/",
            "noNewPrivileges": True,
            # For the agent's uid; it sets the same for the uid of the commands, which is counted apart (SA-406).
            "rlimits": [{"type": "RLIMIT_NPROC", "soft": pid_limit, "hard": pid_limit}],
            "capabilities": {
                "bounding": list(AGENT_CAPABILITIES),
                "effective": list(AGENT_CAPABILITIES),
                "permitted": list(AGENT_CAPABILITIES),
                "inheritable": [],
                "ambient": [],
            },
        },
        "root": {"path": str(image.rootfs), "readonly": False},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"]},
            {
                "destination": SHM,
                "type": "tmpfs",
                "source": "shm",
                "options": ["nosuid", "nodev", "mode=1777", "size=64m"],
            },
            {"destination": TMP, "type": "bind", "source": str(paths.tmp_dir), "options": ["rw", "nosuid", "nodev"]},
            _read_only(AGENT_IN_SANDBOX, shared.agent),
            _read_only("/etc/resolv.conf", shared.resolv_conf),
            _read_only("/etc/hosts", shared.hosts),
            *(_writable(mount) for mount in mounts),
        ],
        # /tmp becomes a tmpfs of the sandbox's own kernel whose pages lie in a file under `tmp_dir`: it costs disk,
        # which the disk limit counts, and not memory; nothing of the host's folder can be seen through it.
        "annotations": {
            "dev.gvisor.spec.mount.tmp.source": str(paths.tmp_dir),
            "dev.gvisor.spec.mount.tmp.type": "tmpfs",
            "dev.gvisor.spec.mount.tmp.share": "container",
            "dev.gvisor.spec.mount.tmp.options": "rw,nosuid,nodev",
        },
        "linux": {
            "namespaces": [
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "mount"},
                {"type": "network", "path": str(namespace)},
            ],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }


def _read_only(destination: str, source: Path) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["ro", "bind", "nosuid", "nodev"],
    }


def _writable(mount: HostMount) -> dict[str, Any]:
    """A workspace or a volume (SA-070, SA-072). gVisor resolves the links in there by itself, inside the sandbox."""
    return {
        "destination": mount.target,
        "type": "bind",
        "source": mount.source,
        "options": ["rw", "rbind", "nosuid", "nodev", *([] if mount.cache is None else [_REMEMBER_NO_NAMES])],
    }


def runsc_argv(runsc: Path, paths: InstancePaths) -> list[str]:
    """The command line of runsc. The driver places the processes into cgroups itself, hence `--ignore-cgroups`."""
    return [
        str(runsc),
        f"--root={paths.runsc_root}",
        "--platform=systrap",
        "--network=sandbox",
        "--net-raw=false",
        "--host-uds=none",
        "--host-fifo=none",
        "--oci-seccomp=false",
        "--ignore-cgroups",
        "--file-access=exclusive",
        f"--overlay2=root:dir={paths.overlay_dir}",
        "run",
        f"--bundle={paths.bundle}",
        CONTAINER_ID,
    ]


def meminfo(memory_bytes: int) -> str:
    """What runsc is to read as the machine's /proc/meminfo."""
    kib = memory_bytes // 1024
    return f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n"


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """What the shim watches so that a greedy process dies and not the sandbox."""

    version: str
    """`v1` or `v2`."""
    cgroup: Path
    limit_bytes: int
    reserve_bytes: int


def shim_argv(
    agent: Path,
    folder: Path,
    command: Sequence[str],
    *,
    hide_proc_sys_net: bool = False,  # a switch of the shim, handed through
    meminfo: Path | None = None,
    join: Sequence[Path] = (),
    kill: Sequence[Path] = (),
    memory: MemoryWatch | None = None,
) -> list[str]:
    """The command line of the shim around `command` (docs/agent-protocol.md)."""
    argv = [str(agent), "shim", "--dir", str(folder)]
    if hide_proc_sys_net:
        argv.append("--hide-proc-sys-net")
    if meminfo is not None:
        argv += ["--meminfo", str(meminfo)]
    for procs_file in join:
        argv += ["--join", str(procs_file)]
    if memory is not None:
        argv += ["--memory", memory.version, "--memory-cgroup", str(memory.cgroup)]
        argv += ["--memory-limit", str(memory.limit_bytes), "--memory-reserve", str(memory.reserve_bytes)]
    for cgroup in kill:
        argv += ["--kill-cgroup", str(cgroup)]
    if kill:
        argv += ["--calm-idle", str(kill[0])]
    return [*argv, "--", *command]
