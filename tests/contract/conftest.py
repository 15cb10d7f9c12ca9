"""Fixtures of the driver contract: this machine's runsc, the default image, a driver with it, and an internet."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract import internet as test_internet
from tests.contract.internet import Internet
from tests.contract.rigs import GvisorRig, gvisor_rig
from tests.images import default_image_digest, default_image_store

from atoll.drivers.gvisor.probe import RunscTraits, probe_runsc


@pytest.fixture(scope="session")
def runsc() -> Path:
    return Path(shutil.which("runsc") or "runsc")


@pytest.fixture(scope="session")
def traits(runsc: Path) -> RunscTraits:
    return asyncio.run(probe_runsc(runsc))


@pytest.fixture(scope="session")
def image_digest() -> str:
    return default_image_digest()


@pytest.fixture
async def rig(image_digest: str, traits: RunscTraits, runsc: Path) -> AsyncIterator[GvisorRig]:
    async with gvisor_rig(default_image_store(), image_digest, traits, runsc=runsc) as made:
        yield made


@pytest.fixture
def internet() -> Iterator[Internet]:
    with test_internet.internet() as made:
        yield made
