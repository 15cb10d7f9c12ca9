"""Fetches images from registries with skopeo.

The image store calls it. Credentials are read by skopeo itself from the docker-style auth file: they are in no argv,
and the operator's own `~/.docker` is never used by accident. It keeps nothing: where blobs go is the caller's.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from atoll.drivers.gvisor.images.config import Index, Manifest, read_manifest
from atoll.drivers.gvisor.images.failures import fetch_failure, invalid_image
from atoll.drivers.gvisor.images.reference import ImageReference
from atoll.drivers.process import ProgramError, run, tied

INSPECT_SECONDS = 60.0
"""For one manifest; covers a slow name server and a registry that hangs."""
COPY_SECONDS = 1800.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PASSED_ON = ("PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


def machine_architecture() -> str:
    """The machine's architecture as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


@dataclass(frozen=True, slots=True)
class Registry:
    """How registries are spoken to: credentials, and which of them are plain HTTP."""

    auth_file: Path
    """Always given, an empty one when there are no credentials: skopeo would look in the home directory otherwise."""
    insecure_registries: frozenset[str] = frozenset()
    """`host:port` of registries without TLS."""
    allowed_registries: frozenset[str] | None = None
    """The only registries to speak to, `docker.io` included; None is all."""
    architecture: str = field(default_factory=machine_architecture)

    async def resolve(self, reference: ImageReference) -> tuple[str, Manifest]:
        """The digest and the manifest for this machine's platform, each checked against the digest that named it."""
        registry = reference.registry or "docker.io"
        if self.allowed_registries is not None and registry not in self.allowed_registries:
            raise invalid_image("Images from this registry are not allowed here.")
        digest = reference.digest
        manifest = read_manifest(await self._raw_manifest(reference, digest), digest, self.architecture)
        if isinstance(manifest, Index):
            digest = manifest.digest
            manifest = read_manifest(await self._raw_manifest(reference, digest), digest, self.architecture)
        if isinstance(manifest, Index):
            raise invalid_image("The digest names a list of lists of images.")
        return digest, manifest

    async def copy(self, reference: ImageReference, digest: str, layout: Path, temporary: Path) -> None:
        """Copy one platform's image into an OCI layout; blobs that it has already are not fetched again."""
        try:
            await run(
                tied(
                    [
                        "skopeo",
                        "--insecure-policy",
                        f"--tmpdir={temporary}",
                        "copy",
                        "--quiet",
                        f"--src-authfile={self.auth_file}",
                        f"--src-tls-verify={self._tls(reference)}",
                        # umoci reads gzip and plain tar only.
                        "--dest-compress-format=gzip",
                        f"docker://{reference.repository}@{digest}",
                        f"oci:{layout}:image",
                    ]
                ),
                timeout=COPY_SECONDS,
                env=self._environment(temporary),
            )
        except ProgramError as error:
            raise fetch_failure(error) from error

    async def _raw_manifest(self, reference: ImageReference, digest: str) -> bytes:
        try:
            completed = await run(
                [
                    "skopeo",
                    "--insecure-policy",
                    "inspect",
                    "--raw",
                    f"--authfile={self.auth_file}",
                    f"--tls-verify={self._tls(reference)}",
                    f"docker://{reference.repository}@{digest}",
                ],
                timeout=INSPECT_SECONDS,
                env=self._environment(self.auth_file.parent),
            )
        except ProgramError as error:
            raise fetch_failure(error) from error
        return completed.stdout

    def _tls(self, reference: ImageReference) -> str:
        return "false" if reference.registry in self.insecure_registries else "true"

    def _environment(self, home: Path) -> dict[str, str]:
        return {"HOME": str(home), **{name: os.environ[name] for name in _PASSED_ON if name in os.environ}}
