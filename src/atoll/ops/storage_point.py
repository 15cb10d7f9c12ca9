"""Storage points: those of the platform, which the settings name, and the buckets that accounts connect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import structlog

from atoll.domain.audit import AuditAction, AuditTarget
from atoll.domain.errors import Invalid
from atoll.domain.identity import Principal, Scope
from atoll.domain.region import check_region
from atoll.domain.restriction import check_inside, region_is_inside
from atoll.domain.volume import SANDBOX_ID_NUMBER, PointKind, StoragePoint
from atoll.ops.access import authorize_manage, authorize_read
from atoll.ops.services import Services
from atoll.outbound.destinations import HostNotPublic, HostUnresolved
from atoll.settings import Settings
from atoll.storage.objects import OpenPoint, StorageFailed
from atoll.store import audit, volumes
from atoll.store.database import Transaction

log = structlog.get_logger()

_PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ConnectBucket:
    """A bucket as it was sent."""

    account_id: str
    region: str
    name: str
    bucket: str
    prefix: str
    endpoint: str | None
    bucket_region: str | None
    access_key_id: str
    secret_access_key: str
    uid: int | None
    gid: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    kind: PointKind
    location: str
    endpoint: str | None
    bucket_region: str | None


async def list_points(services: Services, principal: Principal, account_id: str) -> list[StoragePoint]:
    """Every point on which the account may make volumes (SA-080)."""

    def look(tx: Transaction) -> list[StoragePoint]:
        authorize_read(tx, principal, account_id)
        found = volumes.usable_points(tx, account_id)
        return [point for point in found if region_is_inside(principal.restriction, point.region)]

    return await services.database.read(look)


async def connect_bucket(services: Services, principal: Principal, request: ConnectBucket) -> StoragePoint:
    """Connect a bucket of the account once it has been written to and read (SA-081).

    Raises `Invalid` when it cannot be used. The secret is sealed before it is stored and is never returned.
    """

    def admit(tx: Transaction) -> None:
        authorize_manage(tx, principal, request.account_id, Scope.CONFIG)
        check_inside(principal.restriction, region=request.region)
        check_region(services.settings.regions, request.region, request.account_id)

    await services.database.read(admit)
    if request.endpoint is not None:
        await _check_endpoint(services, request.endpoint)
    point_id = services.new_id()
    point = StoragePoint(
        id=point_id,
        account_id=request.account_id,
        region=request.region,
        name=request.name,
        kind=PointKind.BUCKET,
        location=f"{request.bucket}/{request.prefix.strip('/')}".rstrip("/"),
        endpoint=request.endpoint,
        bucket_region=request.bucket_region,
        access_key_id=request.access_key_id,
        sealed_secret=services.volumes.seal(point_id, request.secret_access_key),
        uid=SANDBOX_ID_NUMBER if request.uid is None else request.uid,
        gid=SANDBOX_ID_NUMBER if request.gid is None else request.gid,
        created_at=services.clock(),
        retired_at=None,
    )
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await services.volumes.probe(OpenPoint(point, request.secret_access_key), f".atoll-{point_id}")
    except (StorageFailed, TimeoutError) as error:
        log.info("bucket_refused", account_id=request.account_id, error=type(error).__name__)
        raise Invalid("The bucket cannot be written to and read with these credentials.", field="bucket") from None

    def add(tx: Transaction) -> None:
        authorize_manage(tx, principal, request.account_id, Scope.CONFIG)
        volumes.add_point(tx, point)
        target = (AuditTarget.STORAGE_SERVER, point.id)
        audit.record(tx, principal, AuditAction.CONNECT_STORAGE, request.account_id, target=target)

    await services.database.write(add)
    return point


def sync_platform_points(tx: Transaction, settings: Settings, new_id: Callable[[], str]) -> None:
    """Bring the platform's points in line with the settings: one for each region that has object storage (SA-078).

    A point is never changed: another URL makes another point, and the volumes of the old one stay where they are.
    """
    place = _platform_place(settings)
    wanted = {region.name for region in settings.regions if region.object_storage}
    stale = []
    for point in volumes.platform_points(tx):
        same = _Place(point.kind, point.location, point.endpoint, point.bucket_region) == place
        if same and point.region in wanted:
            wanted.discard(point.region)
        else:
            stale.append(point.id)
    volumes.retire_points(tx, stale)
    for region in sorted(wanted):
        volumes.add_point(
            tx,
            StoragePoint(
                id=new_id(),
                account_id=None,
                region=region,
                name="platform",
                kind=place.kind,
                location=place.location,
                endpoint=place.endpoint,
                bucket_region=place.bucket_region,
                access_key_id=None,
                sealed_secret=None,
                uid=SANDBOX_ID_NUMBER,
                gid=SANDBOX_ID_NUMBER,
                created_at=tx.now,
                retired_at=None,
            ),
        )


def _platform_place(settings: Settings) -> _Place:
    if settings.object_store_url is None:
        return _Place(PointKind.FOLDER, str(settings.data_dir.absolute() / "volumes"), None, None)
    url = urlsplit(settings.object_store_url)
    if url.scheme == "file" and url.path.startswith("/"):
        return _Place(PointKind.FOLDER, str(Path(unquote(url.path))), None, None)
    if url.scheme == "s3" and url.netloc:
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        location = f"{url.netloc}{url.path}".rstrip("/")
        return _Place(PointKind.BUCKET, location, query.get("endpoint"), query.get("region"))
    raise Invalid("ATOLL_OBJECT_STORE_URL must be file:///FOLDER or s3://BUCKET/PREFIX.", field="objectStoreUrl")


async def _check_endpoint(services: Services, endpoint: str) -> None:
    """Refuse an endpoint through which an account could reach into the operator's network.

    What the operator named is allowed; anything else must be public and speak HTTPS.
    """
    url = urlsplit(endpoint)
    try:
        port = url.port
    except ValueError:
        port = 0
    if (
        url.scheme not in {"http", "https"}
        or not url.hostname
        or url.username
        or url.query
        or url.fragment
        or port == 0
    ):
        raise Invalid("endpoint must be an http or https URL without credentials and query.", field="endpoint")
    port = port or (443 if url.scheme == "https" else 80)
    if f"{url.hostname}:{port}" in services.settings.private_object_storage:
        return
    if url.scheme != "https":
        raise Invalid("endpoint must speak https.", field="endpoint")
    try:
        await services.destinations.check(url.hostname)
    except HostUnresolved:
        raise Invalid("endpoint names a host that cannot be resolved.", field="endpoint") from None
    except HostNotPublic:
        raise Invalid("endpoint must not lie in a private network.", field="endpoint") from None
