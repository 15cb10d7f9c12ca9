"""The default image: Debian 12 with what an agent's workspace needs, built on this machine.

`atoll serve`, the doctor's remedy and the tests call `ensure_default_image`. It is an ordinary OCI image with a digest,
kept as a layout in the image store, so no registry is needed. Built once for a recipe: when that changes, the next call
builds anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.images.apt_sources import debian_lines
from atoll.drivers.gvisor.images.failures import not_ready
from atoll.drivers.gvisor.images.node_layer import NODE, NPM, build_node_layer
from atoll.drivers.gvisor.images.oci_layout import write_layout
from atoll.drivers.gvisor.images.reference import parse_image_digest
from atoll.drivers.gvisor.images.registry import machine_architecture
from atoll.drivers.gvisor.images.rootfs import SANDBOX_ID
from atoll.drivers.gvisor.images.store import ImageStore
from atoll.drivers.process import ProgramError, run, tied

REPOSITORY = "atoll/default"
CODENAME = "bookworm"
EPOCH = 1_735_689_600
"""Time of every file that the build writes: 2025-01-01."""
BOOTSTRAP_SECONDS = 1800.0
PACKAGES = (
    "build-essential",
    "bzip2",
    "ca-certificates",
    "curl",
    "file",
    "git",
    "jq",
    "less",
    "openssh-client",
    "patch",
    "procps",
    "python3",
    "python3-dev",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "rsync",
    "sqlite3",
    "tree",
    "unzip",
    "vim-tiny",
    "wget",
    "xz-utils",
    "zip",
)
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
_KEPT = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")
# Fixed text: mmdebstrap gives these lines to a shell, with the new root as $1.
_HOOKS = (
    f'chroot "$1" groupadd --gid {SANDBOX_ID} sandbox',
    f'chroot "$1" useradd --uid {SANDBOX_ID} --gid {SANDBOX_ID} --create-home --shell /bin/bash sandbox',
    f'install -d -o {SANDBOX_ID} -g {SANDBOX_ID} "$1/workspace"',
    'ln -s vim.tiny "$1/usr/bin/vim"',
    'rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/var/lib/apt/lists/* "$1"/etc/machine-id "$1"/usr/lib/python3*/test',
    'find "$1/usr/lib" -name __pycache__ -prune -exec rm -rf {} +',
)
# No entrypoint: a sandbox stays up without one, and starting one takes a fifth of the boot.
CONFIG = {
    "Env": [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG=C.UTF-8",
        "PIP_BREAK_SYSTEM_PACKAGES=1",
        "PIP_DISABLE_PIP_VERSION_CHECK=1",
        "NPM_CONFIG_UPDATE_NOTIFIER=false",
    ],
    "WorkingDir": "/workspace",
    "User": str(SANDBOX_ID),
}


def recipe() -> str:
    """A short hash of all that decides what is built, but for the versions that the mirror has on the day."""
    parts = (CODENAME, EPOCH, PACKAGES, _LEFT_OUT, _KEPT, _HOOKS, CONFIG, NODE, NPM, machine_architecture())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def default_image(store: ImageStore) -> str | None:
    """The image digest of the default image when it was built here for the present recipe; None otherwise."""
    try:
        image_digest = (store.root / "local" / f"recipe-{recipe()}").read_text().strip()
    except OSError:
        return None
    return image_digest if store.has_local(parse_image_digest(image_digest)) else None


async def ensure_default_image(store: ImageStore, *, progress: Callable[[str], None]) -> str:
    """Build the default image unless this machine has it, unpack it, and return its image digest.

    Takes a minute or two, needs root, APT sources of Debian and the npm registry. `progress` is told each step with its
    time. A crash leaves nothing. Raises `RuntimeFailure(SANDBOX_NOT_READY)` with a sentence on what failed.
    """
    name = f"default-{recipe()}"
    async with store.lock(name):
        image_digest = default_image(store)
        if image_digest is None:
            began = time.monotonic()
            image_digest = await _build(store, name, progress)
            progress(f"built {image_digest} in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    try:
        image = await store.ensure(image_digest)
    except RuntimeFailure as failure:
        if failure.code is ErrorCode.INVALID_REQUEST:
            # It was built whole, so its layout was damaged since, by a power cut for one: the next call builds it anew.
            store.forget_local(parse_image_digest(image_digest))
            raise not_ready("The default image was damaged on the disk and has to be built again.") from failure
        raise
    if (took := time.monotonic() - began) > 0.5:
        progress(f"unpacked it, {image.bytes / 1e6:.0f} MB, in {took:.1f} s")
    return image_digest


async def _build(store: ImageStore, name: str, progress: Callable[[str], None]) -> str:
    lines = debian_lines(CODENAME)
    if not lines:
        raise not_ready("The default image needs APT sources of Debian on the sandbox machine.")
    await store.clear(name)
    work = store.workspace(name)
    try:
        progress(
            f"fetching and setting up Debian 12 with {len(PACKAGES)} packages, and Node.js {NODE} (a minute or so)"
        )
        async with asyncio.TaskGroup() as steps:
            base = steps.create_task(_bootstrap(work, lines, progress))
            node = steps.create_task(_node(work, progress))
        digest = await asyncio.to_thread(
            write_layout,
            work / "layout",
            [base.result(), node.result()],
            CONFIG,
            architecture=machine_architecture(),
            created=datetime.fromtimestamp(EPOCH, UTC),
        )
        image_digest = f"{REPOSITORY}@{digest}"
        store.add_local(work / "layout", parse_image_digest(image_digest))
        pointer = work / "recipe"
        pointer.write_text(image_digest)
        pointer.rename(store.root / "local" / f"recipe-{recipe()}")
        return image_digest
    except ExceptionGroup as group:
        failures, others = group.split(ProgramError)
        if others is not None or failures is None:
            raise
        error = failures.exceptions[0]
        assert isinstance(error, ProgramError)  # noqa: S101 - split by this type
        raise not_ready(f"The default image could not be built: {error.program} failed.") from error
    finally:
        await store.clear(name)


async def _node(work: Path, progress: Callable[[str], None]) -> Path:
    began = time.monotonic()
    target = work / "node.tar"
    (work / "npm").mkdir()
    await build_node_layer(target, work / "npm", architecture=machine_architecture(), epoch=EPOCH, progress=progress)
    progress(f"Node.js {NODE} and npm {NPM} are here after {time.monotonic() - began:.0f} s")
    return target


async def _bootstrap(work: Path, lines: list[str], progress: Callable[[str], None]) -> Path:
    began = time.monotonic()
    target = work / "base.tar"
    sources = "\n".join(lines) + "\n"
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options += [f"--dpkgopt=path-include={pattern}" for pattern in _KEPT]
    options += [f"--customize-hook={hook}" for hook in _HOOKS]
    await run(
        tied(
            [
                "mmdebstrap",
                "--quiet",
                "--mode=root",
                "--variant=minbase",
                "--format=tar",
                f"--include={','.join(PACKAGES)}",
                *options,
                CODENAME,
                str(target),
                "-",
            ]
        ),
        timeout=BOOTSTRAP_SECONDS,
        input=sources.encode(),
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "TMPDIR": str(work), "LC_ALL": "C.UTF-8"},
    )
    progress(f"Debian is set up, {target.stat().st_size / 1e6:.0f} MB, after {time.monotonic() - began:.0f} s")
    return target
