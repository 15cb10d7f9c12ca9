"""Settings: `ATOLL_…` in the environment, or the same keys in `atoll.toml`; parsed once, frozen.

The environment wins over the file. The file is `atoll.toml` in the data directory.
"""

from __future__ import annotations

import json
import os
import tomllib
from decimal import Decimal, InvalidOperation
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from atoll.domain.errors import Invalid
from atoll.domain.region import Region

DEFAULT_REGION = "local"
DATABASE_FILE = "atoll.db"
"""In the data directory, unless there is a database URL."""


class WebhookTestDestination(BaseModel):
    """Where webhooks for one host go instead of where its name leads."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    address: IPv4Address | IPv6Address
    port: int = Field(default=443, ge=1, le=65_535)
    ca_file: Path | None = None
    """The authority whose certificates are trusted there; None is the machine's own authorities."""


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
    """Comma-separated names, or JSON: `{"eu-1": {"accounts": ["ID"], "sandboxes": true}}`, with
    `"zCloudHourlyRate": "0.0125"` where usage has a price."""
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
    allowed_registries: Annotated[frozenset[str] | None, NoDecode] = None
    """Registries (HOST or HOST:PORT) that revisions may name, comma-separated; None allows any. Set it where those who
    may create revisions must not make the server speak to hosts of their choice."""
    image_retention_seconds: int = Field(default=7 * 86_400, ge=0)
    """How long an image that nothing uses stays on the machine."""
    object_store_url: str | None = None
    """Where the platform keeps volumes and snapshots: `file:///FOLDER`, or `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`
    with the credentials in the usual AWS_… variables; None is `volumes` in the data directory."""
    private_object_storage: Annotated[frozenset[str], NoDecode] = frozenset()
    """HOST:PORT of object storage inside the operator's network that accounts may connect, comma-separated. Any other
    must be public and speak HTTPS."""
    snapshot_timeout_seconds: float = Field(default=600, gt=0)
    """How long archiving or restoring one workspace may take."""
    audit_retention_days: int = Field(default=365, ge=1, le=36_500)
    """How long entries of the audit trail are kept."""
    command_retention_days: int = Field(default=30, ge=1, le=36_500)
    """How long it is on record, after the end of a sandbox, which commands ran in it."""
    volume_purge_seconds: int = Field(default=7 * 86_400, ge=0)
    """How long the data of a removed volume can be restored."""
    public_url: str | None = None
    """`https://HOST[:PORT]` under which callers reach this server, for the endpoints that sessions are answered with;
    None is the address that the request was sent to."""
    webhook_retry_base_seconds: float = Field(default=30, gt=0, le=3_600)
    """Delay before the second attempt of a webhook; it doubles from there."""
    webhook_test_destinations: Annotated[dict[str, WebhookTestDestination], NoDecode] = Field(default_factory=dict)
    """The operator's own receivers, JSON: `{"HOST": {"address": "127.0.0.1", "port": 8443, "caFile": "/ca.pem"}}`. HOST
    must be one that webhooks may name; it is not looked up."""
    runsc: Path | None = None
    """The runsc to use; None finds it on PATH."""

    @property
    def store_url(self) -> str:
        """The URL of the database."""
        return self.database_url or f"sqlite:///{self.data_dir / DATABASE_FILE}"

    @field_validator("regions", mode="before")
    @classmethod
    def _parse_regions(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = json.loads(value) if value.strip().startswith("{") else value.split(",")
        if isinstance(value, dict):
            value = [_region(name, entry) for name, entry in value.items()]
        regions = [Region(entry.strip()) if isinstance(entry, str) else entry for entry in value]
        regions = [region for region in regions if region.name]
        names = [region.name for region in regions]
        if not names or len(set(names)) != len(names):
            raise ValueError("regions must name at least one region, and none twice")
        return tuple(regions)

    @field_validator("webhook_test_destinations", mode="before")
    @classmethod
    def _parse_test_destinations(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = json.loads(value or "{}")
        return {host.lower(): destination for host, destination in value.items()} if isinstance(value, dict) else value

    @field_validator("data_dir", "image_dir")
    @classmethod
    def _from_the_root(cls, value: Path) -> Path:
        # Handed to programs that work elsewhere, and compared with what the kernel says, which knows no links.
        return value.resolve()

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("postgresql://", "sqlite:///")):
            raise ValueError("must begin with postgresql:// or sqlite:///")
        return value

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            raise ValueError("must begin with https:// or http://")
        return None if value is None else value.rstrip("/")

    @field_validator(
        "sandbox_dns", "insecure_registries", "allowed_registries", "private_object_storage", mode="before"
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def load_settings(data_dir: Path, **overrides: Any) -> Settings:
    """Read `atoll.toml` of the data directory, then the environment, then what the command line said.

    Raises `Invalid` naming the setting, never with its value: a database URL holds a password.
    """
    values = {key.lower().removeprefix("atoll_"): value for key, value in _read_file(data_dir / "atoll.toml").items()}
    values = {key: value for key, value in values.items() if f"ATOLL_{key.upper()}" not in os.environ}
    values.update({key: value for key, value in overrides.items() if value is not None})
    values["data_dir"] = data_dir
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        reason = first["msg"].removeprefix("Value error, ")
        raise Invalid(f"The setting ATOLL_{name.upper()} cannot be used: {reason}", field=name) from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # ValueError: what is no TOML, and what is no UTF-8
        raise Invalid(f"atoll.toml cannot be read: {error}") from error


def _region(name: str, entry: Any) -> Region:
    if not isinstance(entry, dict) or not isinstance(entry.get("accounts", []), list | None):
        raise ValueError("each region takes an object with accounts (a list of ids) and sandboxes (true or false)")
    accounts = entry.get("accounts")
    return Region(
        name,
        None if accounts is None else frozenset(accounts),
        sandboxes=bool(entry.get("sandboxes", True)),
        object_storage=bool(entry.get("objectStorage", True)),
        zcloud_hourly_rate=_rate(entry.get("zCloudHourlyRate", "0")),
    )


def _rate(value: Any) -> Decimal:
    """A decimal in quotes: a binary float of a price is another price."""
    try:
        rate = Decimal(value) if isinstance(value, str) else Decimal("NaN")
    except InvalidOperation:
        rate = Decimal("NaN")
    if not rate.is_finite() or rate < 0:
        raise ValueError('zCloudHourlyRate takes a decimal in quotes that is not negative, such as "0.0125"')
    return rate
