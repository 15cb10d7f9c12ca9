"""Volumes and snapshots in a bucket: a real S3 server on loopback."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store
from tests.plane import REGIONS, Api, Plane, expect, open_plane, refused, until

from atoll.domain.region import Region

KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "very-secret-key"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Store]:
    """An empty bucket named `sandboxes`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = S3Store(
            "sandboxes",
            endpoint=f"http://{host}:{port}",
            region="us-east-1",
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
            access_key_id=KEYS["access_key_id"],
            secret_access_key=KEYS["secret_access_key"],
        )
        _make_bucket(f"{host}:{port}")
        yield store
    finally:
        server.stop()


def _make_bucket(address: str) -> None:
    answer = httpx.put(f"http://{address}/sandboxes", timeout=10)
    assert answer.status_code == 200, answer.text


def _address(bucket: S3Store) -> str:
    return str(bucket.config["endpoint"]).removeprefix("http://")


@pytest.fixture
async def plane(bucket: S3Store) -> AsyncIterator[Plane]:
    regions = (*REGIONS, Region("bring-your-own", object_storage=False))
    async with open_plane(None, regions=regions, private_object_storage={_address(bucket)}) as running:
        yield running


async def connect(api: Api, bucket: S3Store, **body: Any) -> dict[str, Any]:
    answer = await api.post(
        "/storage-server/object-storage/create",
        **{
            "region": "bring-your-own",
            "name": "ours",
            "bucket": "sandboxes",
            "prefix": "atoll",
            "endpoint": f"http://{_address(bucket)}",
            "bucketRegion": "us-east-1",
            "accessKeyId": KEYS["access_key_id"],
            "secretAccessKey": KEYS["secret_access_key"],
            **body,
        },
    )
    server: dict[str, Any] = expect(answer, 201)["storageServer"]
    return server


async def said(api: Api, sandbox: dict[str, Any], script: str) -> str:
    result = await api.execute(sandbox["sandboxId"], "sh", "-c", script)
    assert result["exitCode"] == 0, result
    return base64.b64decode(result.get("stdout", "")).decode()


def keys(bucket: S3Store) -> list[str]:
    return sorted(entry["path"] for batch in obstore.list(bucket) for entry in batch)


@pytest.mark.spec("SA-078", "SA-081")
async def test_a_connected_bucket_takes_volumes_and_snapshots(bucket: S3Store, plane: Plane) -> None:
    api = plane.api
    refused(await api.create(region="bring-your-own", persistenceMode="BOTH"), 409)
    server = await connect(api, bucket)
    assert server["bucket"] == "sandboxes"
    assert "secret" not in str(server).lower()
    sealed = await plane.sql("SELECT sealed_secret FROM storage_points WHERE id = :id", id=server["storageServerId"])
    assert KEYS["secret_access_key"].encode() not in bytes(sealed[0][0])
    sandbox = await api.ready_sandbox(region="bring-your-own", persistenceMode="BOTH")
    look = "cat persist/d/live kept; stat -c '%a %u %g' persist/d persist/d/live kept"
    await said(api, sandbox, "mkdir persist/d && echo live > persist/d/live && echo kept > kept && chmod 700 kept")

    async def stored() -> bool:
        return any(key.endswith("/data/d/live") for key in keys(bucket))

    await until(stored, seconds=5)
    told = await said(api, sandbox, look)
    assert told == "live\nkept\n2775 1001 1001\n664 1001 1001\n700 1001 1001\n"
    expect(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 200)
    assert [key for key in keys(bucket) if key.endswith(".tar.zst")]
    assert await said(api, sandbox, look) == told


@pytest.mark.spec("SA-088")
async def test_a_purge_empties_the_bucket_of_the_volume_alone(bucket: S3Store, plane: Plane) -> None:
    api = plane.api
    await connect(api, bucket, prefix="purged")
    obstore.put(bucket, "purged/other/data/file", b"x")
    volume = expect(await api.post("/shared-volume/create", region="bring-your-own", name="mine"), 201)["sharedVolume"]
    obstore.put(bucket, f"purged/{volume['volumeId']}/data/file", b"x")
    params = {"accountId": api.ids.account, "name": "mine"}
    expect(await api.send("DELETE", "/api/public/v1/shared-volume", params=params), 200)
    plane.clock.pass_seconds(7 * 86_400 + 1)
    plane.services.wakes.publish(["volumes"])

    async def purged() -> bool:
        return (await api.get("/shared-volume", name="mine")).status_code == 404

    await until(purged)
    assert [key for key in keys(bucket) if key.startswith("purged/")] == ["purged/other/data/file"]


@pytest.mark.spec("SA-092", "SA-097")
async def test_volumes_report_the_owner_of_their_point_unless_made_for_a_sandbox(bucket: S3Store, plane: Plane) -> None:
    api = plane.api
    await connect(api, bucket, uid=5000, gid=5001)
    volume = expect(await api.post("/shared-volume/create", region="bring-your-own", name="mine"), 201)["sharedVolume"]
    assert (volume["uid"], volume["gid"]) == (5000, 5001)
    sandbox = await api.ready_sandbox(region="bring-your-own", persistenceMode="DIRECTORY", volumeName="mine")
    assert await said(api, sandbox, "stat -c '%u %g' persist") == "5000 5001\n"
    own = await api.ready_sandbox(region="bring-your-own", persistenceMode="DIRECTORY")
    assert await said(api, own, "stat -c '%u %g' persist") == "1001 1001\n"


async def test_a_bucket_that_cannot_be_used_is_refused_and_not_kept(bucket: S3Store, plane: Plane) -> None:
    answer = await plane.api.post(
        "/storage-server/object-storage/create",
        region="local",
        name="none",
        bucket="missing",
        endpoint=f"http://{_address(bucket)}",
        accessKeyId="a",
        secretAccessKey="b",
    )
    refused(answer, 400, "bucket")
    servers = expect(await plane.api.get("/storage-servers"), 200)["storageServers"]
    assert {server["scope"] for server in servers} == {"PLATFORM"}
