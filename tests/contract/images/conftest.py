"""Fixtures of the image tests: registries on loopback, and a store of the test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.images.registry_server import Entry, RegistryServer, make_layout, running_registry

from atoll.drivers.gvisor.images import ImageStore, Limits

SMALL = Limits(unpacked_bytes=64 << 20, free_bytes=1 << 20)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running_registry(tmp_path_factory.mktemp("registry") / "open") as server:
        yield server


@pytest.fixture(scope="session")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running_registry(tmp_path_factory.mktemp("registry") / "private", with_password=True) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path, registry: RegistryServer) -> ImageStore:
    return ImageStore(tmp_path / "store", insecure_registries=frozenset({registry.address}), limits=SMALL)


@pytest.fixture(scope="session")
def tool_layout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small image of two layers, the second of which changes and deletes files of the first."""
    base = [Entry("bin/tool", b"#!/bin/sh\n", mode=0o755), Entry("srv/old", b"old"), Entry("srv/gone", b"gone")]
    upper = [Entry("srv/old", b"new"), Entry("srv/.wh.gone"), Entry("srv/added", b"added")]
    return make_layout(tmp_path_factory.mktemp("tool") / "image", [base, upper])


@pytest.fixture(scope="session")
def tool(registry: RegistryServer, tool_layout: tuple[Path, str]) -> str:
    """The image digest of the small image in the open registry."""
    return registry.push(tool_layout[0], "team/tool:latest")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room on it."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)], check=True, timeout=10)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=10)
