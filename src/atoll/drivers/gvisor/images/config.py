"""What an image says of itself: manifests and configuration, read with distrust. Pure.

The registry side and the store call it. Both documents come from strangers: every type, length and digest is checked,
and a document that does not fit is `RuntimeFailure(INVALID_REQUEST)`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.drivers.gvisor.images.failures import invalid_image

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Registries refuse larger manifests; configurations stay far below."""
MAX_LAYERS = 500
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INDEX_TYPES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
_MANIFEST_TYPES = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
_CONFIG_TYPES = frozenset(
    {"application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"}
)
_NOT_AN_IMAGE = "The digest does not name a container image."


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an image's configuration that starting it needs."""

    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    env: tuple[str, ...]
    working_dir: str
    """Absolute; `/` when the image names none."""
    user: str
    """As the image writes it; empty is root."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One platform's image: blobs by digest, with the bytes that the registry would send."""

    config_digest: str
    layer_digests: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Index:
    """A list of images by platform, reduced to the digest for the platform asked for."""

    digest: str


def read_manifest(data: bytes, digest: str, architecture: str) -> Manifest | Index:
    """Check that `data` is what `digest` names and tell what it lists; an index is reduced to linux/`architecture`."""
    if len(data) > MAX_DOCUMENT_BYTES or f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise invalid_image("The registry sent something else than the image with this digest.")
    document = _object(data)
    kind = document.get("mediaType")
    if kind in _INDEX_TYPES or (kind is None and "manifests" in document):
        return Index(_for_platform(document, architecture))
    config, layers = document.get("config"), document.get("layers")
    if (
        (kind is not None and kind not in _MANIFEST_TYPES)
        or not isinstance(config, dict)
        or not isinstance(layers, list)
    ):
        raise invalid_image(_NOT_AN_IMAGE)
    if config.get("mediaType") not in _CONFIG_TYPES or len(layers) > MAX_LAYERS:
        raise invalid_image(_NOT_AN_IMAGE)
    blobs = [_blob(entry) for entry in (config, *layers)]
    return Manifest(blobs[0][0], tuple(name for name, _ in blobs[1:]), sum(size for _, size in blobs))


def read_config(data: bytes) -> ImageConfig:
    """Read an image's configuration blob."""
    config = _object(data).get("config") or {}
    if not isinstance(config, dict):
        raise invalid_image(_NOT_AN_IMAGE)
    working_dir = _string(config.get("WorkingDir")) or "/"
    return ImageConfig(
        entrypoint=_strings(config.get("Entrypoint")),
        cmd=_strings(config.get("Cmd")),
        env=tuple(entry for entry in _strings(config.get("Env")) if not entry.startswith("=") and "=" in entry),
        working_dir=working_dir if working_dir.startswith("/") else f"/{working_dir}",
        user=_string(config.get("User")),
    )


def read_layout(layout: Path) -> Manifest:
    """The only image of an OCI layout on disk, its manifest checked against its digest."""
    index = _object((layout / "index.json").read_bytes())
    entries = index.get("manifests")
    if not isinstance(entries, list) or len(entries) != 1:
        raise invalid_image(_NOT_AN_IMAGE)
    digest, _ = _blob(entries[0])
    manifest = read_manifest(blob_path(layout, digest).read_bytes(), digest, "")
    if isinstance(manifest, Index):
        raise invalid_image(_NOT_AN_IMAGE)
    return manifest


def blob_path(layout: Path, digest: str) -> Path:
    """Where a layout keeps a blob; `digest` has been checked to be `sha256:<64 hex>`."""
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _for_platform(index: dict[str, Any], architecture: str) -> str:
    entries = index.get("manifests")
    for entry in entries if isinstance(entries, list) else []:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if isinstance(platform, dict) and (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return _blob(entry)[0]
    raise invalid_image(f"The image is not made for linux/{architecture}.")


def _blob(entry: object) -> tuple[str, int]:
    if isinstance(entry, dict):
        digest, size = entry.get("digest"), entry.get("size")
        if isinstance(digest, str) and _DIGEST.fullmatch(digest) and isinstance(size, int) and 0 <= size < 1 << 50:
            return digest, size
    raise invalid_image(_NOT_AN_IMAGE)


def _object(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data) if len(data) <= MAX_DOCUMENT_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid_image(_NOT_AN_IMAGE)
    return document


def _string(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise invalid_image("The image's configuration is malformed.")
    return value


def _strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid_image("The image's configuration is malformed.")
    return tuple(_string(entry) for entry in value)
