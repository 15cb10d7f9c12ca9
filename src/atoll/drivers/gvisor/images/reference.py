"""The name of an image: `repo/image@sha256:<64 hex>`, as a template revision pins it (SA-090).

Pure. The store and the registry read it; nothing here knows where images are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from atoll.domain.errors import ErrorCode, RuntimeFailure

MAX_LENGTH = 512
LOCAL_PREFIX = "atoll/"
"""Repositories of images built on this machine; they are never looked for in a registry."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A parsed image digest: `registry` is empty for Docker Hub's short names and for local images."""

    registry: str
    path: str
    hex: str

    @property
    def digest(self) -> str:
        """`sha256:<64 hex>`."""
        return f"sha256:{self.hex}"

    @property
    def repository(self) -> str:
        """`registry/path`, without tag and digest."""
        return f"{self.registry}/{self.path}" if self.registry else self.path

    @property
    def local(self) -> bool:
        """Whether it was built here and can be in no registry."""
        return not self.registry and self.path.startswith(LOCAL_PREFIX)

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}"


def parse_image_digest(text: str) -> ImageReference:
    """Read `repo/image[:tag]@sha256:<64 hex>`; the tag is dropped, since the digest says which.

    Raises `RuntimeFailure(INVALID_REQUEST)` for anything else: a name that is not one would reach a program's argv.
    """
    name, separator, digest = text.partition("@sha256:")
    if len(text) > MAX_LENGTH or not separator or not _DIGEST.fullmatch(digest):
        raise _invalid()
    first, slash, rest = name.partition("/")
    registry, path = "", name
    # Docker's own rule: the first part is a host when it could not be part of a path.
    if slash and (first == "localhost" or "." in first or ":" in first):
        registry, path = first, rest
    head, colon, tag = path.rpartition(":")
    if colon:
        path = head
        if not _TAG.fullmatch(tag):
            raise _invalid()
    if (registry and not _HOST.fullmatch(registry)) or not _PATH.fullmatch(path):
        raise _invalid()
    return ImageReference(registry, path, digest)


def _invalid() -> RuntimeFailure:
    return RuntimeFailure(
        "The image digest must have the form repo/image@sha256:<64 hex characters>.", code=ErrorCode.INVALID_REQUEST
    )
