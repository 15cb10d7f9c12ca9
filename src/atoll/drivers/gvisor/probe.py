"""Finds out what the installed runsc can do by booting one trivial sandbox with it.

The gVisor driver calls it once at its start and keeps the answer; the doctor shows it. It leaves nothing running and no
file behind. Workarounds are decided here and nowhere else, by what was seen and not by version numbers.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.process import ProgramError, ProgramFailed, ProgramTimeout, run

PLATFORM = "systrap"
OLDEST_VERSION = 20230801
"""Release dates; systrap is there and the default since the summer of 2023."""
BOOT_SECONDS = 20.0
_VERSION_SECONDS = 10.0
_DELETE_SECONDS = 20.0
_RELEASE = re.compile(r"(?:release-|~|\b)(20\d{6})\b")
_NETWORK_REFUSED = "cannot run with network enabled in root network namespace"
# Fixed text; the command line follows as arguments. The namespace is private, so the mount is seen by nobody else.
_HIDE_PROC_SYS_NET = 'mount -t tmpfs -o ro,nosuid,nodev,noexec,size=0 none /proc/sys/net && exec "$@"'


@dataclass(frozen=True, slots=True)
class RunscTraits:
    """What the driver must know of runsc on this machine."""

    version: str
    """As runsc names it, e.g. `release-20240729.0`."""
    platform: str
    hide_proc_sys_net: bool
    """It takes any network namespace for the machine's own unless `/proc/sys/net` is empty (Linux ≥ 6.17)."""


async def runsc_version(runsc: Path) -> str:
    """The version. Raises `RuntimeFailure(SANDBOX_NOT_READY)` when there is no runsc, or one too old for systrap."""
    try:
        completed = await run([str(runsc), "--version"], timeout=_VERSION_SECONDS)
    except ProgramError as error:
        raise _failure("runsc is not installed, or does not work; atoll doctor says how to mend it.") from error
    text = completed.stdout.decode("utf-8", "replace")
    words = text.splitlines()[0].split() if text else []
    version = words[-1] if words else "unknown"
    release = _RELEASE.search(version)
    # gVisor's own builds between releases have no date in their version; the boot below judges those.
    if release and int(release[1]) < OLDEST_VERSION:
        raise _failure(f"runsc {version} is too old: it has no {PLATFORM} platform.")
    return version


async def probe_runsc(runsc: Path) -> RunscTraits:
    """Boot a sandbox that ends at once, with the workaround only if it fails without. Takes a quarter of a second.

    Raises `RuntimeFailure(SANDBOX_NOT_READY)` with a sentence that says what is wrong; the cause has runsc's own words.
    """
    version = await runsc_version(runsc)
    try:
        await _boot(runsc, hide_proc_sys_net=False)
    except ProgramFailed as error:
        if _NETWORK_REFUSED.encode() not in error.completed.stderr:
            raise _failure(f"runsc {version} cannot start a sandbox on this machine.") from error
    except ProgramError as error:
        raise _failure(f"runsc {version} did not start a sandbox in {BOOT_SECONDS:g} s.") from error
    else:
        return RunscTraits(version, PLATFORM, hide_proc_sys_net=False)
    try:
        await _boot(runsc, hide_proc_sys_net=True)
    except ProgramError as error:
        raise _failure(f"runsc {version} cannot start a sandbox with a network on this version of Linux.") from error
    return RunscTraits(version, PLATFORM, hide_proc_sys_net=True)


async def _boot(runsc: Path, *, hide_proc_sys_net: bool) -> None:
    work = Path(tempfile.mkdtemp(prefix="atoll-probe-"))
    try:
        (work / "config.json").write_text(json.dumps(_bundle()))
        base = [
            str(runsc),
            f"--root={work / 'state'}",
            f"--platform={PLATFORM}",
            "--network=sandbox",
            "--ignore-cgroups",
        ]
        argv = [*base, "run", f"--bundle={work}", "probe"]
        if hide_proc_sys_net:
            argv = ["unshare", "--mount", "--", "sh", "-c", _HIDE_PROC_SYS_NET, "sh", *argv]
        try:
            await run(argv, timeout=BOOT_SECONDS)
        except (ProgramFailed, ProgramTimeout):
            # The sandbox has a session of its own, which outlives the command that was killed.
            with contextlib.suppress(ProgramError):
                await run([*base, "delete", "--force", "probe"], timeout=_DELETE_SECONDS)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _bundle() -> dict[str, object]:
    """The machine's own root, read only, no capability, a network namespace of its own, and `true`."""
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 65534, "gid": 65534},
            "args": ["true"],
            "env": ["PATH=/bin:/usr/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "/", "readonly": True},
        "hostname": "probe",
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
    }


def _failure(sentence: str) -> RuntimeFailure:
    return RuntimeFailure(sentence, code=ErrorCode.SANDBOX_NOT_READY)
