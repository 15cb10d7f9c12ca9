"""What a use case works with; wired once in `atoll.compose`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from atoll.drivers.base import Driver
from atoll.drivers.connections import AgentConnections
from atoll.outbound.destinations import Destinations
from atoll.sealing import Sealer
from atoll.settings import Settings
from atoll.storage.volumes import VolumeData
from atoll.store.database import Database
from atoll.store.wakes import Wakes


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one control plane."""

    settings: Settings
    database: Database
    driver: Driver
    agents: AgentConnections
    wakes: Wakes
    clock: Callable[[], datetime]
    new_id: Callable[[], str]
    fingerprint_key: bytes
    """Keys the fingerprints of commands; derived from the deployment's secret."""
    sealer: Sealer
    """Encrypts the secrets that the store keeps."""
    destinations: Destinations
    """Finds the addresses of hosts that callers chose."""
    volumes: VolumeData
    """The data of shared volumes, and what sandboxes get of them."""
