"""The default image: an ordinary image, built here once, with what an agent's workspace needs."""

from __future__ import annotations

import asyncio
import stat
import subprocess
from pathlib import Path

import pytest
from tests.contract.images.registry_server import RegistryServer
from tests.images import default_image, default_image_digest, default_image_store

from atoll.drivers.gvisor.images import Image
from atoll.drivers.gvisor.images.default_image import default_image as built_digest
from atoll.drivers.gvisor.images.default_image import ensure_default_image


@pytest.fixture(scope="module")
def image() -> Image:
    return default_image()


def in_image(image: Image, *argv: str) -> str:
    """Run a program of the image as the sandbox's user, in a private mount namespace where the image is read-only."""
    mounts = 'mount --bind -o ro "$1" "$1" && mount -t proc none "$1/proc" && mount --bind /dev "$1/dev"'
    script = f'{mounts} && shift && exec "$@"'
    chroot = ["chroot", "--userspec=1001:1001", str(image.rootfs), "/usr/bin/env", "-i", *image.env]
    argv = ("unshare", "--mount", "--", "sh", "-c", script, "sh", str(image.rootfs), *chroot, *argv)
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_it_waits_in_the_workspace_as_the_sandboxs_user(image: Image) -> None:
    assert (image.entrypoint, image.cmd) == ((), ())
    assert (image.working_dir, image.user, image.home) == ("/workspace", "1001", "/home/sandbox")
    workspace = (image.rootfs / "workspace").stat()
    assert (workspace.st_uid, workspace.st_gid, stat.S_ISDIR(workspace.st_mode)) == (1001, 1001, True)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("cat", "/etc/debian_version"), "12."),
        (("python3", "--version"), "Python 3.11"),
        (("python3", "-m", "pip", "--version"), "pip "),
        (("python3", "-c", "import venv, ensurepip, ssl, sqlite3; print('fine')"), "fine"),
        (("node", "--version"), "v22."),
        (("npm", "--version"), "10."),
        (("npx", "--version"), "10."),
        (("git", "--version"), "git version"),
        (("curl", "--version"), "curl "),
        (("gcc", "--version"), "gcc"),
        (("make", "--version"), "GNU Make"),
        (("ps", "--version"), "ps from procps"),
        (("id", "-un"), "sandbox"),
        (("cat", "/etc/ssl/certs/ca-certificates.crt"), "BEGIN CERTIFICATE"),
    ],
)
def test_it_has_what_a_workspace_needs(image: Image, argv: tuple[str, ...], expected: str) -> None:
    assert expected in in_image(image, *argv)


def test_its_apt_sources_are_those_of_debian_12_and_hold_no_password(image: Image) -> None:
    sources = image.rootfs / "etc/apt"
    text = "".join(file.read_text() for file in sources.rglob("*") if file.name.endswith((".list", ".sources")))
    assert "bookworm" in text
    assert "@" not in text


def test_it_is_built_once(image: Image) -> None:
    lines: list[str] = []
    digest = asyncio.run(ensure_default_image(default_image_store(), progress=lines.append))
    assert digest == default_image_digest() == built_digest(default_image_store())
    assert lines == []


def test_it_can_be_pushed_to_a_registry_like_any_other(image: Image, registry: RegistryServer, tmp_path: Path) -> None:
    layout = default_image_store().root / "local" / image.digest.removeprefix("sha256:")
    (tmp_path / "layout").symlink_to(layout)
    pushed = registry.push(tmp_path / "layout", "team/default")
    assert pushed.endswith(image.digest)
