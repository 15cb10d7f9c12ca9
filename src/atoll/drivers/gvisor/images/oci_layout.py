"""Writes an OCI layout with one image, byte for byte the same for the same input.

The default image's build calls it. Blocking: callers run it in a thread. It reads no clock: the image's time is given.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atoll.drivers.gvisor.images.config import blob_path
from atoll.drivers.gvisor.images.unpack import LAYOUT_TAG

_CHUNK_BYTES = 1 << 20
_COMPRESSION_LEVEL = 1
"""Layers are read once or twice on the machine that made them: time counts more than size."""
_GZIP = 16 + zlib.MAX_WBITS


def write_layout(
    layout: Path, layers: Sequence[Path], config: Mapping[str, Any], *, architecture: str, created: datetime
) -> str:
    """Write `layers` (tar files, lowest first) and `config` as an image and return its digest, `sha256:<64 hex>`."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    packed = [_add_layer(layout, layer) for layer in layers]
    document = {
        "created": created.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "architecture": architecture,
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in packed]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _add_json(layout, document, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor for _, descriptor in packed],
    }
    entry = _add_json(layout, manifest, "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": LAYOUT_TAG}
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return str(entry["digest"])


def _add_layer(layout: Path, layer: Path) -> tuple[str, dict[str, Any]]:
    """Compress a tar into a blob in one pass; returns the digest of its content and the blob's descriptor."""
    content, blob = hashlib.sha256(), hashlib.sha256()
    size = 0
    # zlib's own gzip header has no time and no name in it, unlike the gzip module's.
    compressor = zlib.compressobj(_COMPRESSION_LEVEL, wbits=_GZIP)
    partial = layout / "partial"
    with layer.open("rb") as source, partial.open("wb") as target:
        while True:
            chunk = source.read(_CHUNK_BYTES)
            content.update(chunk)
            data = compressor.compress(chunk) if chunk else compressor.flush()
            blob.update(data)
            size += target.write(data)
            if not chunk:
                break
    digest = f"sha256:{blob.hexdigest()}"
    partial.rename(blob_path(layout, digest))
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    return f"sha256:{content.hexdigest()}", {"mediaType": kind, "digest": digest, "size": size}


def _add_json(layout: Path, document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob_path(layout, digest).write_bytes(data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}
