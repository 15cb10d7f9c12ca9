"""The driver contract, run against every driver there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.rigs import FakeRig, GvisorRig, fake_rig, gvisor_rig
from tests.images import default_image_store

from atoll.drivers.contract import DriverContract
from atoll.drivers.contract_isolation import IsolationContract
from atoll.drivers.gvisor.probe import RunscTraits


class TestFakeDriver(DriverContract):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[FakeRig]:
        async with fake_rig() as made:
            yield made


# The suites carry their rules where the driver's authors read them; here they are named again for the coverage report.
@pytest.mark.gvisor
@pytest.mark.spec("SA-091", "SA-098", "SA-204", "SA-205", "SA-233")
class TestGvisorDriver(DriverContract):
    @pytest.fixture
    async def rig(self, image_digest: str, traits: RunscTraits, runsc: Path) -> AsyncIterator[GvisorRig]:
        async with gvisor_rig(default_image_store(), image_digest, traits, runsc=runsc) as made:
            yield made


@pytest.mark.gvisor
@pytest.mark.spec("SA-029", "SA-030", "SA-099", "SA-100", "SA-404", "SA-405", "SA-406", "SA-407", "SA-409", "SA-410")
class TestGvisorIsolation(IsolationContract):
    @pytest.fixture
    async def rig(self, image_digest: str, traits: RunscTraits, runsc: Path) -> AsyncIterator[GvisorRig]:
        async with gvisor_rig(default_image_store(), image_digest, traits, runsc=runsc) as made:
            yield made
