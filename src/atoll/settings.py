"""Settings: `ATOLL_…` in the environment, or the same keys in `atoll.toml`; parsed once, frozen.

The environment wins over the file. The file is `atoll.toml` in the data directory.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from atoll.domain.errors import Invalid
from atoll.domain.region import Region

DEFAULT_REGION = "local"


class Settings(BaseSettings):
    """Everything an operator can set. Durations are seconds, sizes are named by their unit."""

    model_config = SettingsConfigDict(env_prefix="ATOLL_", frozen=True, extra="ignore")

    data_dir: Path
    """Database, instances, keys: all that this control plane keeps."""
    image_dir: Path = Path("/var/cache/atoll/images")
    """Unpacked images, shared by every control plane of the machine."""
    database_url: str | None = None
    """`postgresql://…`; None is SQLite in the data directory."""
    secret_key_file: Path | None = None
    """32 random bytes in base64; None is `secret.key` in the data directory, made at the first start."""
    regions: Annotated[tuple[Region, ...], NoDecode] = (Region(DEFAULT_REGION),)
    """Comma-separated names, or JSON: `{"eu-1": {"accounts": ["ID"], "sandboxes": true}}`."""
    account_active_sandbox_limit: int = Field(default=200, ge=1)
    """Active sandboxes per account unless the account has its own ceiling (SA-422)."""
    warm_pool_size: int = Field(default=2, ge=0, le=64)
    """Booted sandboxes kept ready for the default template."""
    driver: str = "gvisor"
    """How sandboxes are made."""
    concurrent_boots: int = Field(default=3, ge=1, le=64)
    """Sandboxes that boot at the same time."""
    sandbox_network: str = "10.231.0.0/16"
    """IPv4 range from which sandboxes get their addresses."""
    sandbox_dns: Annotated[tuple[str, ...], NoDecode] = ("1.1.1.1", "8.8.8.8")
    """Name servers of sandboxes, comma-separated."""
    sandbox_disk_mb: int = Field(default=10_240, ge=64)
    """Temporary disk of a sandbox whose revision sets no ephemeralDiskMb."""
    sandbox_pid_limit: int = Field(default=4_096, ge=16)
    """Process limit of a sandbox whose revision sets no pidLimit."""
    registry_auth_file: Path | None = None
    """Docker-style auth file for private registries."""
    insecure_registries: Annotated[frozenset[str], NoDecode] = frozenset()
    """Registries (HOST:PORT) that are spoken to without TLS, comma-separated."""
    image_retention_seconds: int = Field(default=7 * 86_400, ge=0)
    """How long an image that nothing uses stays on the machine."""
    runsc: Path | None = None
    """The runsc to use; None finds it on PATH."""

    @property
    def store_url(self) -> str:
        """The URL of the database."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'atoll.db'}"

    @field_validator("regions", mode="before")
    @classmethod
    def _parse_regions(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not value.strip().startswith("{"):
            return tuple(Region(name.strip()) for name in value.split(",") if name.strip())
        return tuple(_region(name, entry) for name, entry in json.loads(value).items())

    @field_validator("sandbox_dns", "insecure_registries", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def load_settings(data_dir: Path, **overrides: Any) -> Settings:
    """Read `atoll.toml` of the data directory, then the environment, then what the command line said."""
    file = data_dir / "atoll.toml"
    values: dict[str, Any] = {}
    if file.exists():
        try:
            document = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise Invalid(f"atoll.toml cannot be read: {error}") from error
        values = {key.lower().removeprefix("atoll_"): value for key, value in document.items()}
    values = {key: value for key, value in values.items() if f"ATOLL_{key.upper()}" not in os.environ}
    values.update({key: value for key, value in overrides.items() if value is not None})
    values["data_dir"] = data_dir
    return Settings(**values)


def _region(name: str, entry: dict[str, Any]) -> Region:
    accounts = entry.get("accounts")
    return Region(name, None if accounts is None else frozenset(accounts), bool(entry.get("sandboxes", True)))
