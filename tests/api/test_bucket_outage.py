"""A bucket that cannot be reached for a while: nothing that was closed is lost, and nobody is stuck meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store
from tests.plane import REGIONS, Plane, expect, open_plane, refused, until

from atoll.domain.region import Region
from atoll.workers.orphans import OrphanWorker

_KEYS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "very-secret-key"}


class Bucket:
    """A bucket behind an S3 server that can be switched off; what it holds stays."""

    def __init__(self) -> None:
        self._server = self._started(port=0)
        host, self._port = self._server.get_host_and_port()
        self.address = f"{host}:{self._port}"
        assert httpx.put(f"http://{self.address}/sandboxes", timeout=10).status_code == 200

    @staticmethod
    def _started(*, port: int) -> ThreadedMotoServer:
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
        server.start()
        return server

    def switch_off(self) -> None:
        self._server.stop()

    def switch_on(self) -> None:
        self._server = self._started(port=self._port)

    def keys(self) -> list[str]:
        options = {"allow_http": True}
        endpoint = f"http://{self.address}"
        store = S3Store("sandboxes", endpoint=endpoint, region="us-east-1", client_options=options, **_KEYS)
        return sorted(entry["path"].partition("/data/")[2] for batch in obstore.list(store) for entry in batch)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    try:
        yield bucket
    finally:
        bucket.switch_off()


@pytest.fixture
async def plane(bucket: Bucket) -> AsyncIterator[Plane]:
    regions = (*REGIONS, Region("bring-your-own", object_storage=False))
    async with open_plane(None, regions=regions, private_object_storage={bucket.address}) as running:
        body = {
            "region": "bring-your-own",
            "name": "ours",
            "bucket": "sandboxes",
            "endpoint": f"http://{bucket.address}",
            "accessKeyId": _KEYS["access_key_id"],
            "secretAccessKey": _KEYS["secret_access_key"],
        }
        expect(await running.api.post("/storage-server/object-storage/create", **body), 201)
        yield running


async def _sandbox(plane: Plane, **body: Any) -> dict[str, Any]:
    sandbox: dict[str, Any] = await plane.api.ready_sandbox(
        region="bring-your-own", persistenceMode="DIRECTORY", **body
    )
    return sandbox


async def _said(plane: Plane, sandbox: dict[str, Any], script: str) -> dict[str, Any]:
    result: dict[str, Any] = await plane.api.execute(sandbox["sandboxId"], "sh", "-c", script)
    return result


@pytest.mark.spec("SA-072", "SA-089")
async def test_what_was_closed_while_the_bucket_was_away_is_stored_when_it_is_back(
    bucket: Bucket, plane: Plane
) -> None:
    sandbox = await _sandbox(plane)
    await _said(plane, sandbox, "echo 1 > persist/before")
    await until(lambda: _holds(bucket, "before"))
    bucket.switch_off()
    assert (await _said(plane, sandbox, "echo 2 > persist/during"))["exitCode"] == 0
    expect(await plane.api.post("/sandbox/terminate", sandboxId=sandbox["sandboxId"]), 200)
    await plane.ended(sandbox["sandboxId"])
    mounts = plane.services.volumes.mounts
    orphans = OrphanWorker(plane.services)
    await orphans.run_once()
    assert mounts.instances()
    bucket.switch_on()

    async def gone() -> bool:
        await orphans.run_once()
        return not mounts.instances()

    await until(gone)
    assert {"before", "during"} <= set(bucket.keys())
    second = await _sandbox(plane, volumeName=sandbox["volumeName"])
    assert (await _said(plane, second, "cat persist/during"))["exitCode"] == 0


@pytest.mark.spec("SA-163")
async def test_a_pause_is_given_up_while_the_bucket_is_away_and_the_sandbox_goes_on(
    bucket: Bucket, plane: Plane
) -> None:
    sandbox = await _sandbox(plane)
    bucket.switch_off()
    refused(await plane.api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 502)
    assert (await _said(plane, sandbox, "true"))["exitCode"] == 0
    bucket.switch_on()
    paused = expect(await plane.api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 200)["sandbox"]
    assert paused["status"] == "SUSPENDED"


async def _holds(bucket: Bucket, key: str) -> bool:
    stored = bucket.keys()
    return key in stored
