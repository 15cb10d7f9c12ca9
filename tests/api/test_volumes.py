"""Shared volumes: which one a sandbox gets, what the live directory keeps, and how a volume goes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.plane import REGIONS, Api, Plane, expect, open_plane, refused, until

from atoll.domain.region import Region
from atoll.domain.volume import inside_workspace

MOUNTED = "/workspace/persist"


async def said(api: Api, sandbox: dict[str, Any], script: str) -> str:
    result = await api.execute(sandbox["sandboxId"], "sh", "-c", script)
    assert result["exitCode"] == 0, result
    return base64.b64decode(result.get("stdout", "")).decode()


async def make_volume(api: Api, name: str, **body: Any) -> dict[str, Any]:
    answer = await api.post("/shared-volume/create", **{"region": "local", "name": name, **body})
    volume: dict[str, Any] = expect(answer, 201)["sharedVolume"]
    return volume


async def remove_volume(api: Api, name: str) -> Any:
    params = {"accountId": api.ids.account, "name": name}
    return await api.send("DELETE", "/api/public/v1/shared-volume", params=params)


@pytest.fixture
async def plane_of_regions(database_url: str | None) -> AsyncIterator[Plane]:
    regions = (*REGIONS, Region("other"), Region("volumeless", object_storage=False))
    async with open_plane(database_url, regions=regions) as running:
        yield running


@pytest.mark.both_databases
@pytest.mark.spec("SA-047", "SA-048", "SA-077", "SA-078")
async def test_a_sandbox_that_names_no_volume_gets_one_of_its_own(api: Api) -> None:
    created = expect(await api.create(persistenceMode="BOTH"), 201)["sandbox"]
    name = f"sbvol-{created['sandboxId']}"
    assert created["volumeName"] == name
    assert created["persistence"] == {"mountPath": MOUNTED}
    volume = expect(await api.get("/shared-volume", name=name), 200)["sharedVolume"]
    assert (volume["status"], volume["region"], volume["uid"], volume["gid"]) == ("ACTIVE", "local", 1001, 1001)
    servers = expect(await api.get("/storage-servers"), 200)["storageServers"]
    [server] = [server for server in servers if server["region"] == "local"]
    assert volume["storageServerId"] == server["storageServerId"]


@pytest.mark.spec("SA-047", "SA-071", "SA-076")
async def test_an_ephemeral_sandbox_has_no_volume(api: Api) -> None:
    created = expect(await api.create(), 201)["sandbox"]
    assert "volumeName" not in created
    assert "persistence" not in created
    assert expect(await api.get("/shared-volumes"), 200)["sharedVolumes"] == []
    refused(await api.create(volumeName="mine"), 400, "volumeName")


@pytest.mark.both_databases
@pytest.mark.spec("SA-079", "SA-080")
async def test_a_region_without_a_storage_point_refuses_volume_modes(plane_of_regions: Plane) -> None:
    api = plane_of_regions.api
    servers = expect(await api.get("/storage-servers"), 200)["storageServers"]
    assert "volumeless" not in {server["region"] for server in servers}
    for mode in ("DIRECTORY", "SNAPSHOT", "BOTH"):
        refused(await api.create(region="volumeless", persistenceMode=mode), 409, "Object Storage")
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 0
    assert expect(await api.get("/shared-volumes"), 200)["sharedVolumes"] == []
    expect(await api.create(region="volumeless"), 201)


@pytest.mark.both_databases
@pytest.mark.spec("SA-082", "SA-083", "SA-084", "SA-085", "SA-086")
async def test_a_named_volume_is_used_if_it_may_be(plane_of_regions: Plane) -> None:
    plane = plane_of_regions
    api = plane.api
    await make_volume(api, "mine")
    await make_volume(api, "elsewhere", region="other")
    await make_volume(api, "going")
    expect(await remove_volume(api, "going"), 200)
    stranger = await plane.add_account("stranger")
    await make_volume(stranger, "theirs")
    refused(await api.create(persistenceMode="SNAPSHOT", volumeName="theirs"), 404)
    refused(await api.create(persistenceMode="SNAPSHOT", volumeName="missing"), 404)
    refused(await api.create(persistenceMode="SNAPSHOT", volumeName="elsewhere"), 409, "region")
    refused(await api.create(persistenceMode="SNAPSHOT", volumeName="going"), 409, "pending purge")
    assert expect(await api.get("/sandboxes"), 200)["totalCount"] == 0
    created = expect(await api.create(persistenceMode="SNAPSHOT", volumeName="mine"), 201)["sandbox"]
    assert created["volumeName"] == "mine"
    assert len(expect(await api.get("/shared-volumes"), 200)["sharedVolumes"]) == 3


@pytest.mark.spec("SA-101")
async def test_a_warm_pool_refuses_volume_modes(api: Api) -> None:
    pool = {"desired": 0, "min": 0, "max": 1}
    digest = f"example.test/image@sha256:{'0' * 64}"
    expect(
        await api.post("/sandbox-template/revision", templateId=api.ids.template, imageDigest=digest, warmPool=pool),
        201,
    )
    answer = await api.create(persistenceMode="DIRECTORY")
    refused(answer, 400, "persistence modes with a volume are not available on warm pools")
    assert expect(await api.get("/shared-volumes"), 200)["sharedVolumes"] == []


@pytest.mark.spec("SA-072", "SA-073", "SA-087", "SA-089", "SA-091", "SA-092", "SA-093", "SA-094", "SA-095", "SA-150")
async def test_the_live_directory_outlives_the_sandbox_and_keeps_contents_alone(plane: Plane, api: Api) -> None:
    first = await api.ready_sandbox(persistenceMode="DIRECTORY")
    look = "stat -c '%n %a %u %g' persist persist/f persist/d"
    script = (
        f"echo one > persist/f && mkdir persist/d && chmod 600 persist/f && touch -d 2001-02-03 persist/f && {look}"
    )
    told = await said(api, first, script)
    assert told == "persist 2775 1001 1001\npersist/f 664 1001 1001\npersist/d 2775 1001 1001\n"
    assert (await said(api, first, "stat -c %y persist/f"))[:4] != "2001"
    # Closed is stored: before anything is paused or ended.
    volumes = plane.services.settings.data_dir / "volumes"

    async def stored() -> bool:
        return [file.read_text() for file in volumes.glob("*/data/f")] == ["one\n"]

    await until(stored, seconds=5)
    paused = expect(await api.post("/sandbox/pause", sandboxId=first["sandboxId"]), 200)["sandbox"]
    assert paused["status"] == "SUSPENDED"
    assert "lastSnapshotAt" not in paused["persistence"]
    assert await said(api, first, "cat persist/f") == "one\n"
    await plane.let_pass(1_801)
    ended = await plane.ended(first["sandboxId"])
    second = await api.ready_sandbox(persistenceMode="DIRECTORY", volumeName=ended["volumeName"])
    assert await said(api, second, f"cat persist/f && {look}") == f"one\n{told}"


@pytest.mark.spec("SA-075", "SA-070")
async def test_both_keeps_a_live_directory_and_an_archive_without_it(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="BOTH")
    await said(api, sandbox, "echo live > persist/live && echo kept > kept && chmod 711 kept")
    paused = expect(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 200)["sandbox"]
    assert paused["persistence"]["lastSnapshotBytes"] > 0
    # The pause has waited until everything closed was stored.
    [live] = (plane.services.settings.data_dir / "volumes").glob("*/data/live")
    live.unlink()
    told = await said(api, sandbox, "stat -c %a kept; ls -A . persist")
    assert told == "711\n.:\nkept\npersist\n\npersist:\n"


@pytest.mark.spec("SA-033", "SA-034")
async def test_a_revision_says_how_large_the_volume_is_and_where_it_is_mounted(api: Api) -> None:
    digest = f"example.test/image@sha256:{'0' * 64}"
    body = {"persistenceMode": "DIRECTORY", "volumeSizeMb": 1, "mountPath": "/data/here"}
    expect(await api.post("/sandbox-template/revision", templateId=api.ids.template, imageDigest=digest, **body), 201)
    sandbox = await api.ready_sandbox()
    assert sandbox["persistence"]["mountPath"] == "/data/here"
    volume = expect(await api.get("/shared-volume", name=sandbox["volumeName"]), 200)["sharedVolume"]
    assert volume["sizeMb"] == 1
    # Nominal, no quota: more than that fits.
    await said(api, sandbox, "head -c 3000000 /dev/zero > /data/here/f && test $(stat -c %s /data/here/f) = 3000000")


@pytest.mark.spec("SA-073")
async def test_two_sandboxes_share_a_volume_while_both_run(api: Api) -> None:
    await make_volume(api, "shared")
    one = await api.ready_sandbox(persistenceMode="DIRECTORY", volumeName="shared")
    two = await api.ready_sandbox(persistenceMode="DIRECTORY", volumeName="shared")
    await said(api, one, "echo hello > persist/note")

    async def seen() -> bool:
        return "hello" in await said(api, two, "cat persist/note 2>/dev/null || true")

    await until(seen)


@pytest.mark.both_databases
@pytest.mark.spec("SA-088")
async def test_a_removed_volume_can_be_restored_until_its_purge(plane: Plane, api: Api) -> None:
    volume = await make_volume(api, "mine")
    data = plane.services.settings.data_dir / "volumes" / volume["volumeId"] / "data"
    data.mkdir(parents=True)
    (data / "file").write_text("precious")
    removed = expect(await remove_volume(api, "mine"), 200)["sharedVolume"]
    assert removed["status"] == "PENDING_PURGE"
    assert removed["purgeAt"] > volume["createdAt"]
    restored = expect(await api.post("/shared-volume/restore", name="mine"), 200)["sharedVolume"]
    assert restored["status"] == "ACTIVE"
    assert (data / "file").read_text() == "precious"
    expect(await remove_volume(api, "mine"), 200)
    plane.clock.pass_seconds(7 * 86_400 + 1)
    refused(await api.post("/shared-volume/restore", name="mine"), 409)
    plane.services.wakes.publish(["volumes"])

    async def purged() -> bool:
        return (await api.get("/shared-volume", name="mine")).status_code == 404

    await until(purged)
    assert not data.exists()


@pytest.mark.spec("SA-087", "SA-088")
async def test_a_volume_in_use_is_not_removed(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    refused(await remove_volume(api, sandbox["volumeName"]), 409, "uses")
    expect(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 200)
    refused(await remove_volume(api, sandbox["volumeName"]), 409, "uses")
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox["sandboxId"]), 200)

    async def removed() -> bool:
        return bool((await remove_volume(api, sandbox["volumeName"])).status_code == 200)

    await until(removed)


async def test_names_are_checked_and_taken_once(api: Api) -> None:
    await make_volume(api, "mine")
    refused(await api.post("/shared-volume/create", region="local", name="mine"), 409)
    refused(await api.post("/shared-volume/create", region="local", name="sbvol-x"), 400, "name")
    refused(await api.post("/shared-volume/create", region="local", name="../x"), 400, "name")
    refused(await api.post("/shared-volume/create", region="local", name="x", storageServerId="none"), 404)


@pytest.mark.parametrize("endpoint", ["http://8.8.8.8", "https://127.0.0.1", "https://169.254.169.254/x", "ftp://x.y"])
async def test_a_bucket_inside_the_operators_network_is_refused(api: Api, endpoint: str) -> None:
    answer = await api.post(
        "/storage-server/object-storage/create",
        region="local",
        name="mine",
        bucket="bucket",
        endpoint=endpoint,
        accessKeyId="key",
        secretAccessKey="secret",
    )
    refused(answer, 400, "endpoint")


@pytest.mark.spec("SA-034")
@pytest.mark.parametrize("path", ["/", "/workspace", "/etc/x", "/proc", "/workspace/../etc", "/a//b", "/a/"])
async def test_a_mount_path_that_hides_something_is_refused(api: Api, path: str) -> None:
    digest = f"example.test/image@sha256:{'0' * 64}"
    body = {"templateId": api.ids.template, "imageDigest": digest, "persistenceMode": "BOTH", "mountPath": path}
    refused(await api.post("/sandbox-template/revision", **body), 400, "mountPath")


def test_a_mount_path_outside_the_workspace_is_no_part_of_it() -> None:
    assert inside_workspace("/data") is None
    assert inside_workspace("/workspace/a/b") == "a/b"
    assert inside_workspace(None) is None
