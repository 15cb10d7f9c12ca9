"""A real registry on loopback, and small images to push to it.

Used by the tests of this folder through `conftest.py`. Images are made of tar members, so that hostile ones are as easy
to write down as good ones.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atoll.drivers.gvisor.images.config import blob_path
from atoll.drivers.gvisor.images.oci_layout import write_layout
from atoll.drivers.gvisor.images.registry import machine_architecture

CONFIG: dict[str, Any] = {
    "Entrypoint": ["/bin/tool"],
    "Cmd": ["--serve"],
    "Env": ["PATH=/bin", "MODE=a=b"],
    "WorkingDir": "/srv",
    "User": "1001:1001",
}
USER, PASSWORD = "puller", "open sesame"
_PASSWORD_HASH = "$2b$04$UWBms3JOHy.00DD8co2j8uNkkpOmwdWgLG05zXNlFmfUpwqTgvtge"


@dataclass(frozen=True)
class Entry:
    """One member of a layer."""

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    attributes: Mapping[str, str] | None = None


def write_layer(path: Path, entries: Sequence[Entry]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.linkname, info.size, info.mode = entry.kind, entry.link, len(entry.data), entry.mode
            if entry.kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
                info.devmajor, info.devminor = 1, 3
            info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in (entry.attributes or {}).items()}
            layer.addfile(info, io.BytesIO(entry.data))
    return path


def make_layout(
    folder: Path,
    layers: Sequence[Sequence[Entry]],
    *,
    config: Mapping[str, Any] = CONFIG,
    architecture: str | None = None,
) -> tuple[Path, str]:
    """An OCI layout and its digest."""
    folder.mkdir(parents=True)
    tars = [write_layer(folder / f"{number}.tar", entries) for number, entries in enumerate(layers)]
    layout = folder / "oci"
    created = datetime(2025, 1, 1, tzinfo=UTC)
    digest = write_layout(layout, tars, config, architecture=architecture or machine_architecture(), created=created)
    return layout, digest


def repack_with_zstd(layout: Path) -> None:
    """Turn every layer of a layout into a zstd one, and the manifest with them."""

    def add(data: bytes) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        (layout / "blobs/sha256" / name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob_path(layout, index["manifests"][0]["digest"]).read_text())
    for layer in manifest["layers"]:
        tar = gzip.decompress(blob_path(layout, layer["digest"]).read_bytes())
        packed = subprocess.run(["zstd", "-c"], input=tar, capture_output=True, check=True, timeout=60).stdout
        layer.update(add(packed), mediaType="application/vnd.oci.image.layer.v1.tar+zstd")
    index["manifests"][0].update(add(json.dumps(manifest).encode()))
    (layout / "index.json").write_text(json.dumps(index))


@dataclass(frozen=True)
class RegistryServer:
    """A running registry."""

    address: str
    """`127.0.0.1:port`."""
    storage: Path
    auth_file: Path | None

    def push(self, layout: Path, name: str, *options: str) -> str:
        """Push the image of a layout and return its image digest there."""
        digest_file = layout.parent / "digest"
        auth = ["--authfile", str(self.auth_file)] if self.auth_file else []
        subprocess.run(
            [
                *("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", *auth, *options),
                f"--digestfile={digest_file}",
                f"oci:{layout}:image",
                f"docker://{self.address}/{name}",
            ],
            check=True,
            timeout=60,
            capture_output=True,
        )
        return f"{self.address}/{name.partition(':')[0]}@{digest_file.read_text().strip()}"

    def raw_manifest(self, image_digest: str) -> str:
        """The manifest as the registry has it."""
        auth = ["--authfile", str(self.auth_file)] if self.auth_file else []
        argv = ["skopeo", "inspect", "--raw", "--tls-verify=false", *auth, f"docker://{image_digest}"]
        return subprocess.run(argv, check=True, timeout=60, capture_output=True, text=True).stdout


@contextmanager
def running_registry(folder: Path, *, with_password: bool = False) -> Iterator[RegistryServer]:
    """Debian's `docker-registry` on a free port of loopback, ended with everything it stored."""
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    storage = folder / "storage"
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    auth_file = None
    if with_password:
        (folder / "htpasswd").write_text(f"{USER}:{_PASSWORD_HASH}\n")
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
        auth_file = write_auth_file(folder / "auth.json", address, PASSWORD)
    # JSON is YAML too.
    (folder / "config.yml").write_text(json.dumps(config))
    process = subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(address, process)
        yield RegistryServer(address, storage, auth_file)
    finally:
        process.kill()
        process.wait(timeout=10)


def write_auth_file(path: Path, address: str, password: str) -> Path:
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {address: {"auth": token}}}))
    return path


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        assert process.poll() is None, "the registry ended at once"
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the registry does not listen")
