"""Session fixtures of the driver contract: this machine's runsc and the default image."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.images import default_image_digest

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
