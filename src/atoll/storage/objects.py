"""Object storage of one point: a folder of this machine or a bucket, through obstore.

Keys are `<volume id>/data/…` for the files of a volume and `<volume id>/snapshots/<snapshot id>.tar.zst` for archives.
Every call blocks and runs in a thread; contents stream and are never whole in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from atoll.domain.volume import PointKind, StoragePoint
from atoll.drivers.removal import remove_tree

CHUNK_BYTES = 8 * 1024 * 1024
_REQUEST_SECONDS = 60
_CONNECT_SECONDS = 10
_DELETED_AT_ONCE = 500


class StorageFailed(Exception):  # noqa: N818 - reads as what happened
    """Object storage did not do its work. The text is for the operator's log; it may name hosts."""


@dataclass(frozen=True, slots=True)
class OpenPoint:
    """A storage point with what is needed to use it. Never logged: it holds the secret."""

    point: StoragePoint
    secret_access_key: str | None

    def store(self) -> ObjectStore:
        """The store of the point."""
        point = self.point
        if point.kind is PointKind.FOLDER:
            return LocalStore(point.location, mkdir=True)
        bucket, _, prefix = point.location.partition("/")
        config: dict[str, Any] = {"virtual_hosted_style_request": False}
        if point.endpoint is not None:
            config["endpoint"] = point.endpoint
        config["region"] = point.bucket_region or "us-east-1"
        if point.access_key_id is not None and self.secret_access_key is not None:
            config["access_key_id"] = point.access_key_id
            config["secret_access_key"] = self.secret_access_key
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": (point.endpoint or "").startswith("http://"),
                "timeout": timedelta(seconds=_REQUEST_SECONDS),
                "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=_REQUEST_SECONDS)},
            **config,
        )

    def folder(self, volume_id: str) -> Path | None:
        """The folder of a volume's files, when the point is one."""
        if self.point.kind is not PointKind.FOLDER:
            return None
        return Path(self.point.location, volume_id, "data")


def put(opened: OpenPoint, key: str, chunks: Iterator[bytes]) -> None:
    """Store an object whole or not at all; an iterator that raises leaves none.

    Nobody else stores under the same key meanwhile.
    """
    try:
        if opened.point.kind is PointKind.FOLDER:
            _drop_half_written(Path(opened.point.location, key))
        obstore.put(opened.store(), key, chunks, use_multipart=True, chunk_size=CHUNK_BYTES, max_concurrency=2)
        if opened.point.kind is PointKind.FOLDER:
            _make_durable(Path(opened.point.location, key))
    except (BaseError, OSError) as error:
        raise StorageFailed(f"{type(error).__name__}: {error}") from error


def _drop_half_written(file: Path) -> None:
    """Delete what an earlier attempt at a file has left that was killed: obstore writes it under the name and `#1`."""
    for left in file.parent.glob(f"{file.name}#*"):
        left.unlink(missing_ok=True)


def _make_durable(file: Path) -> None:
    """What is told to be stored survives a loss of power, like what a bucket confirms."""
    for path in (file, *file.parents[:3]):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def get(opened: OpenPoint, key: str) -> Iterator[bytes]:
    """The chunks of an object. Raises `StorageFailed` at once or in the middle."""
    try:
        for chunk in obstore.get(opened.store(), key).stream(min_chunk_size=CHUNK_BYTES):
            yield bytes(chunk)
    except (BaseError, OSError) as error:
        raise StorageFailed(f"{type(error).__name__}: {error}") from error


def delete_volume(opened: OpenPoint, volume_id: str) -> None:
    """Delete every object of a volume; fine when there is none."""
    if opened.point.kind is PointKind.FOLDER:
        # Also folders and half-written objects, which object storage does not list.
        remove_tree(Path(opened.point.location, volume_id))
        return
    store = opened.store()
    try:
        for batch in obstore.list(store, prefix=f"{volume_id}/", chunk_size=_DELETED_AT_ONCE):
            obstore.delete(store, [entry["path"] for entry in batch])
    except (BaseError, OSError) as error:
        raise StorageFailed(f"{type(error).__name__}: {error}") from error


def probe(opened: OpenPoint, key: str) -> None:
    """Write, read and delete a small object; raises `StorageFailed` when the bucket does not allow all three."""
    try:
        store = opened.store()
        obstore.put(store, key, b"atoll")
        if bytes(obstore.get(store, key).bytes()) != b"atoll":
            raise StorageFailed("an object came back changed")
        obstore.delete(store, key)
    except (BaseError, OSError, ValueError) as error:  # ValueError: a name or prefix that no bucket has
        raise StorageFailed(f"{type(error).__name__}: {error}") from error


def snapshot_key(volume_id: str, snapshot_id: str) -> str:
    """The key of an archive."""
    return f"{volume_id}/snapshots/{snapshot_id}.tar.zst"
