"""The driver contract, run against every driver there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract import internet as test_internet
from tests.contract.rigs import FakeRig, GvisorRig, fake_rig, gvisor_rig
from tests.images import default_image_store

from atoll.drivers.contract import DriverContract
from atoll.drivers.contract_isolation import Internet, IsolationContract
from atoll.drivers.gvisor.probe import RunscTraits


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    with test_internet.internet() as made:
        yield made


class TestFakeDriver(DriverContract):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[FakeRig]:
        async with fake_rig() as made:
            yield made


@pytest.mark.gvisor
class TestGvisorDriver(DriverContract):
    @pytest.fixture
    async def rig(self, image_digest: str, traits: RunscTraits, runsc: Path) -> AsyncIterator[GvisorRig]:
        async with gvisor_rig(default_image_store(), image_digest, traits, runsc=runsc) as made:
            yield made


@pytest.mark.gvisor
class TestGvisorIsolation(IsolationContract):
    @pytest.fixture
    async def rig(self, image_digest: str, traits: RunscTraits, runsc: Path) -> AsyncIterator[GvisorRig]:
        async with gvisor_rig(default_image_store(), image_digest, traits, runsc=runsc) as made:
            yield made
