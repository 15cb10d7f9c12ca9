"""Fetching images by digest from a real registry, with and without a password, and every way in which it fails."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.images.conftest import SMALL
from tests.contract.images.registry_server import Entry, RegistryServer, make_layout, repack_with_zstd, write_auth_file

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.images import ImageStore, Limits
from atoll.drivers.gvisor.images.registry import machine_architecture

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


async def failure(store: ImageStore, image_digest: str) -> RuntimeFailure:
    """The failure of a fetch; nothing of it may be left, and its words may name nothing of the host."""
    with pytest.raises(RuntimeFailure) as caught:
        await store.ensure(image_digest)
    assert store.list_images() == []
    assert list((store.root / "work").glob("*")) == []
    assert str(store.root) not in caught.value.message
    assert "/" not in caught.value.message.replace("linux/", "")
    return caught.value


async def test_an_image_is_fetched_by_digest_and_unpacked_with_its_configuration(store: ImageStore, tool: str) -> None:
    image = await store.ensure(tool)
    assert image.digest == tool.partition("@")[2]
    assert (image.entrypoint, image.cmd) == (("/bin/tool",), ("--serve",))
    assert (image.env, image.working_dir, image.user) == (("PATH=/bin", "MODE=a=b"), "/srv", "1001:1001")
    assert (image.rootfs / "bin/tool").read_bytes() == b"#!/bin/sh\n"


async def test_upper_layers_change_and_delete_files_of_lower_ones(store: ImageStore, tool: str) -> None:
    rootfs = (await store.ensure(tool)).rootfs
    assert sorted(path.name for path in (rootfs / "srv").iterdir()) == ["added", "old"]
    assert (rootfs / "srv/old").read_bytes() == b"new"


async def test_a_tag_before_the_digest_is_dropped(store: ImageStore, tool: str) -> None:
    name, _, digest = tool.partition("@")
    assert (await store.ensure(f"{name}:some-tag@{digest}")).digest == digest


async def test_every_sandbox_finds_its_directories_and_its_account(store: ImageStore, tool: str) -> None:
    image = await store.ensure(tool)
    workspace = (image.rootfs / "workspace").stat()
    assert (workspace.st_uid, workspace.st_gid) == (1001, 1001)
    assert stat.S_IMODE((image.rootfs / "tmp").stat().st_mode) == 0o1777
    assert (image.rootfs / ".atoll").is_dir()
    assert (image.rootfs / "etc/resolv.conf").is_file() and (image.rootfs / "etc/hosts").is_file()
    assert "sandbox:x:1001:1001::/home/sandbox:/bin/sh" in (image.rootfs / "etc/passwd").read_text()
    assert "sandbox:x:1001:" in (image.rootfs / "etc/group").read_text()
    assert image.home == "/home/sandbox"
    assert (image.rootfs / "home/sandbox").stat().st_uid == 1001


async def test_only_root_can_enter_the_store(store: ImageStore, tool: str) -> None:
    await store.ensure(tool)
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


async def test_a_docker_manifest_is_an_image_too(
    store: ImageStore, registry: RegistryServer, tool_layout: tuple[Path, str]
) -> None:
    image_digest = registry.push(tool_layout[0], "team/tool:docker", "--format=v2s2")
    assert (await store.ensure(image_digest)).entrypoint == ("/bin/tool",)


async def test_layers_packed_with_zstd_are_read(
    store: ImageStore, registry: RegistryServer, tool_layout: tuple[Path, str], tmp_path: Path
) -> None:
    shutil.copytree(tool_layout[0], tmp_path / "oci")
    repack_with_zstd(tmp_path / "oci")
    image_digest = registry.push(tmp_path / "oci", "team/tool:zstd")
    assert "tar+zstd" in registry.raw_manifest(image_digest)
    assert ((await store.ensure(image_digest)).rootfs / "srv/added").read_bytes() == b"added"


async def test_a_private_image_is_fetched_with_the_auth_file(
    tmp_path: Path, private_registry: RegistryServer, tool_layout: tuple[Path, str]
) -> None:
    image_digest = private_registry.push(tool_layout[0], "secret/tool:1")
    insecure = frozenset({private_registry.address})
    store = ImageStore(tmp_path / "store", auth_file=private_registry.auth_file, insecure_registries=insecure)
    assert (await store.ensure(image_digest)).entrypoint == ("/bin/tool",)


@pytest.mark.parametrize("password", [None, "wrong"])
async def test_a_private_image_without_the_right_password_is_refused_for_good(
    tmp_path: Path, private_registry: RegistryServer, tool_layout: tuple[Path, str], password: str | None
) -> None:
    image_digest = private_registry.push(tool_layout[0], "secret/tool:1")
    auth = write_auth_file(tmp_path / "auth.json", private_registry.address, password) if password else None
    store = ImageStore(tmp_path / "store", auth_file=auth, insecure_registries=frozenset({private_registry.address}))
    refused = await failure(store, image_digest)
    assert (refused.code, refused.code.retryable) == (ErrorCode.INVALID_REQUEST, False)
    assert "access" in refused.message


@pytest.mark.parametrize("name", ["team/tool", "no/such"])
async def test_a_digest_that_the_registry_does_not_have_is_refused_for_good(
    store: ImageStore, registry: RegistryServer, tool: str, name: str
) -> None:
    refused = await failure(store, f"{registry.address}/{name}@sha256:{'0' * 64}")
    assert (refused.code, refused.message) == (ErrorCode.INVALID_REQUEST, "The registry has no image with this digest.")


async def test_an_unreachable_registry_is_worth_another_try(store: ImageStore) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        refused = await failure(store, f"127.0.0.1:{unused.getsockname()[1]}/a/b@sha256:{'0' * 64}")
    assert (refused.code, refused.code.retryable) == (ErrorCode.SANDBOX_NOT_READY, True)
    assert refused.message == "The registry of the image cannot be reached."


async def test_a_registry_that_may_not_be_used_is_not_spoken_to(tmp_path: Path, tool: str) -> None:
    store = ImageStore(tmp_path / "store", allowed_registries=frozenset({"docker.io"}))
    assert (await failure(store, tool)).code is ErrorCode.INVALID_REQUEST


async def test_an_image_for_several_platforms_is_reduced_to_this_machines(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    other, other_digest = make_layout(tmp_path / "other", [[Entry("which", b"other")]], architecture="s390x")
    ours, our_digest = make_layout(tmp_path / "ours", [[Entry("which", b"ours")]])
    for layout in (other, ours):
        registry.push(layout, f"team/many:{layout.parent.name}", "--format=oci")
    platforms = [(other_digest, "s390x"), (our_digest, machine_architecture())]
    image_digest = put_index(registry, "team/many", platforms)
    assert ((await store.ensure(image_digest)).rootfs / "which").read_bytes() == b"ours"


async def test_an_image_for_other_platforms_only_is_refused_for_good(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    layout, digest = make_layout(tmp_path / "other", [[Entry("which", b"other")]], architecture="s390x")
    registry.push(layout, "team/foreign:1", "--format=oci")
    refused = await failure(store, put_index(registry, "team/foreign", [(digest, "s390x")]))
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert "linux/" in refused.message


async def test_a_registry_that_sends_something_else_than_the_digest_is_not_believed(tmp_path: Path) -> None:
    other = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST}).encode()
    with lying_registry(other) as address:
        store = ImageStore(tmp_path / "store", insecure_registries=frozenset({address}))
        refused = await failure(store, f"{address}/a/b@sha256:{'1' * 64}")
    assert refused.code in (ErrorCode.INVALID_REQUEST, ErrorCode.SANDBOX_NOT_READY)


@pytest.mark.parametrize(
    "document",
    [
        b"not json",
        b"[]",
        json.dumps({"schemaVersion": 2, "mediaType": MANIFEST}).encode(),
        json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": "many"}).encode(),
        json.dumps(
            {"schemaVersion": 2, "mediaType": "application/vnd.example+json", "config": {}, "layers": []}
        ).encode(),
        b'{"schemaVersion":2,"mediaType":"' + MANIFEST.encode() + b'","config":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
async def test_a_digest_of_something_that_is_no_image_never_becomes_one(tmp_path: Path, document: bytes) -> None:
    with lying_registry(document) as address:
        store = ImageStore(tmp_path / "store", insecure_registries=frozenset({address}))
        await failure(store, f"{address}/a/b@sha256:{hashlib.sha256(document).hexdigest()}")


async def test_too_little_room_is_worth_another_try(tmp_path: Path, registry: RegistryServer, tool: str) -> None:
    store = ImageStore(
        tmp_path / "store", insecure_registries=frozenset({registry.address}), limits=Limits(free_bytes=1 << 60)
    )
    refused = await failure(store, tool)
    assert (refused.code, refused.code.retryable) == (ErrorCode.SANDBOX_NOT_READY, True)


async def test_a_full_disk_is_told_as_such(tmp_path: Path, registry: RegistryServer, small_disk: Path) -> None:
    layout, _ = make_layout(tmp_path / "image", [[Entry("zeros", b"\0" * (24 << 20))]])
    image_digest = registry.push(layout, "team/large:1")
    store = ImageStore(
        small_disk / "store", insecure_registries=frozenset({registry.address}), limits=Limits(free_bytes=0)
    )
    refused = await failure(store, image_digest)
    assert refused.code is ErrorCode.SANDBOX_NOT_READY
    assert "disk" in refused.message


async def test_a_layer_that_unpacks_to_more_than_the_limit_is_refused_for_good(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    layout, _ = make_layout(tmp_path / "bomb", [[Entry("zeros", b"\0" * (SMALL.unpacked_bytes + (1 << 20)))]])
    refused = await failure(store, registry.push(layout, "team/bomb:1"))
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert "larger" in refused.message


async def test_without_skopeo_the_machine_is_not_ready(
    store: ImageStore, tool: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("rm", "sync"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refused = await failure(store, tool)
    assert (refused.code, "skopeo" in refused.message) == (ErrorCode.SANDBOX_NOT_READY, True)


def put_index(registry: RegistryServer, name: str, platforms: list[tuple[str, str]]) -> str:
    """Put an image index into the registry by its own protocol; returns the image digest."""
    entries = []
    connection = http.client.HTTPConnection(registry.address, timeout=10)
    for digest, architecture in platforms:
        connection.request("GET", f"/v2/{name}/manifests/{digest}", headers={"Accept": MANIFEST})
        size = len(connection.getresponse().read())
        platform = {"os": "linux", "architecture": architecture}
        entries.append({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform})
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    connection.request("PUT", f"/v2/{name}/manifests/index", body, {"Content-Type": INDEX})
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()
    return f"{registry.address}/{name}@sha256:{hashlib.sha256(body).hexdigest()}"


@contextmanager
def lying_registry(document: bytes) -> Iterator[str]:
    """A registry that answers every manifest with the same document."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", MANIFEST)
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
