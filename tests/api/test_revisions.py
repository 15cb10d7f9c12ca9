"""Append revisions to a template."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.plane import IMAGE, Api, Plane, decoded, expect, refused

DIGEST = "0" * 64
REFUSED: list[tuple[str, Any]] = [
    ("imageDigest", "debian:bookworm"),
    ("imageDigest", "debian"),
    ("imageDigest", f"debian@sha256:{'0' * 63}"),
    ("imageDigest", f"debian@sha256:{'0' * 65}"),
    ("imageDigest", f"debian@sha256:{'G' * 64}"),
    ("imageDigest", f"debian@sha512:{DIGEST}"),
    ("imageDigest", f"@sha256:{DIGEST}"),
    ("imageDigest", f"debian@sha256:{DIGEST}\n"),
    ("imageDigest", f"--flag@sha256:{DIGEST}"),
    ("imageDigest", f"../../etc@sha256:{DIGEST}"),
    ("imageDigest", f"{'x' * 500}@sha256:{DIGEST}"),
    ("imageDigest", 5),
    ("command", "sleep infinity"),
    ("command", []),
    ("command", ["sleep", 5]),
    ("command", ["a\x00b"]),
    ("workingDir", ""),
    ("workingDir", "relative"),
    ("ports", [0]),
    ("ports", [65_536]),
    ("ports", ["80"]),
    ("zClouds", 0),
    ("zClouds", 65),
    ("zClouds", "1"),
    ("zClouds", 1.0),
    ("zClouds", True),
    ("zClouds", 2**80),
    ("persistenceMode", "FOREVER"),
    ("persistenceMode", "ephemeral"),
    ("idleTimeoutSeconds", 0),
    ("idleTimeoutSeconds", -5),
    ("hardLifetimeSeconds", 2**62),
    ("suspendedRetentionSeconds", 1.5),
    ("pidLimit", 0),
    ("ephemeralDiskMb", 0),
    ("ephemeralDiskMb", 2**31),
    ("volumeSizeMb", 100),
    ("mountPath", "/data"),
    ("snapshotExclude", ["node_modules"]),
    ("snapshotMaxMb", 10),
    ("warmPool", {"desired": 2, "min": 3, "max": 4}),
    ("warmPool", {"desired": 5, "min": 3, "max": 4}),
    ("warmPool", {"desired": 1, "min": 1}),
    ("warmPool", 3),
    ("networkControl", {"enabled": True}),
    ("networkControl", {"enabled": "yes"}),
    ("resources", {"zClouds": 2}),
    ("isolationProfile", "GVISOR"),
]


async def append(api: Api, **body: Any) -> dict[str, Any]:
    """Append a revision to the account's template."""
    sent = {"templateId": api.ids.template, "imageDigest": IMAGE, **body}
    revision: dict[str, Any] = expect(await api.post("/sandbox-template/revision", **sent), 201)["revision"]
    return revision


@pytest.mark.both_databases
@pytest.mark.spec(
    "SA-186",
    "SA-022",
    "SA-023",
    "SA-025",
    "SA-028",
    "SA-031",
    "SA-032",
    "SA-038",
    "SA-039",
    "SA-040",
    "SA-206",
    "SA-207",
)
async def test_a_bare_revision_has_the_defaults_and_no_key_that_was_not_set(api: Api) -> None:
    revision = await append(api)
    assert set(revision) == {
        "revisionId", "templateId", "revision", "imageDigest", "resources", "persistenceMode", "isolationProfile",
        "idleTimeoutSeconds", "hardLifetimeSeconds", "suspendedRetentionSeconds", "createdAt",
    }  # fmt: skip
    assert revision["templateId"] == api.ids.template
    assert revision["revision"] == 2
    assert revision["imageDigest"] == IMAGE
    assert revision["resources"] == {"zClouds": 1}
    assert revision["persistenceMode"] == "EPHEMERAL"
    assert revision["isolationProfile"] == "GVISOR"
    assert revision["idleTimeoutSeconds"] == 1_800
    assert revision["hardLifetimeSeconds"] == 86_400
    assert revision["suspendedRetentionSeconds"] == 604_800


@pytest.mark.both_databases
@pytest.mark.spec("SA-025", "SA-026", "SA-027", "SA-028", "SA-040", "SA-202", "SA-203", "SA-205", "SA-211")
async def test_every_field_of_an_ephemeral_revision_is_returned(api: Api) -> None:
    revision = await append(
        api,
        imageRef="debian:bookworm-slim",
        command=["sleep", "infinity"],
        workingDir="/srv",
        ports=[80, 8_080],
        zClouds=4,
        ephemeralDiskMb=1_000,
        pidLimit=200,
        idleTimeoutSeconds=60,
        hardLifetimeSeconds=120,
        suspendedRetentionSeconds=240,
    )
    assert revision["imageRef"] == "debian:bookworm-slim"
    assert revision["imageDigest"] == IMAGE
    assert revision["command"] == ["sleep", "infinity"]
    assert revision["workingDir"] == "/srv"
    assert revision["ports"] == [80, 8_080]
    assert revision["resources"] == {"zClouds": 4, "ephemeralDiskMb": 1_000, "pidLimit": 200}
    assert [revision[f"{name}Seconds"] for name in ("idleTimeout", "hardLifetime", "suspendedRetention")] == [
        60,
        120,
        240,
    ]


@pytest.mark.both_databases
@pytest.mark.spec("SA-032", "SA-033", "SA-034", "SA-035", "SA-037", "SA-207", "SA-208", "SA-209", "SA-210")
async def test_each_volume_mode_has_its_own_fields_and_defaults(api: Api) -> None:
    directory = await append(api, persistenceMode="DIRECTORY")
    assert directory["persistentWorkspace"]["mountPath"] == "/workspace/persist"
    assert directory["persistentWorkspace"]["sizeMb"] > 0
    assert "snapshotExclude" not in directory
    assert "snapshotMaxMb" not in directory
    snapshot = await append(api, persistenceMode="SNAPSHOT", volumeSizeMb=5_000, snapshotExclude=["*.log"])
    assert snapshot["persistentWorkspace"] == {"sizeMb": 5_000}
    assert (snapshot["snapshotExclude"], snapshot["snapshotMaxMb"]) == (["*.log"], 2_048)
    both = await append(api, persistenceMode="BOTH", mountPath="/workspace/kept", volumeSizeMb=7, snapshotMaxMb=99)
    assert both["persistentWorkspace"] == {"sizeMb": 7, "mountPath": "/workspace/kept"}
    assert (both["snapshotExclude"], both["snapshotMaxMb"]) == ([], 99)
    refused(await api.post("/sandbox-template/revision", templateId=api.ids.template, imageDigest=IMAGE,
                           persistenceMode="SNAPSHOT", mountPath="/workspace/x"), 400, "mountPath")  # fmt: skip
    for field, value in (("snapshotExclude", ["x"]), ("snapshotMaxMb", 5)):
        body = {"templateId": api.ids.template, "imageDigest": IMAGE, "persistenceMode": "DIRECTORY", field: value}
        refused(await api.post("/sandbox-template/revision", **body), 400, field)


@pytest.mark.spec("SA-041", "SA-042", "SA-408")
async def test_a_warm_pool_is_returned_and_excludes_volumes_and_limits_of_one_sandbox(api: Api) -> None:
    pool = {"desired": 0, "min": 0, "max": 2}
    assert (await append(api, warmPool=pool))["warmPool"] == pool
    base = {"templateId": api.ids.template, "imageDigest": IMAGE, "warmPool": pool}
    for mode in ("DIRECTORY", "SNAPSHOT", "BOTH"):
        refused(await api.post("/sandbox-template/revision", **base, persistenceMode=mode), 400, "warm pools")
    for field in ("pidLimit", "ephemeralDiskMb"):
        refused(await api.post("/sandbox-template/revision", **base, **{field: 100}), 400, field)


@pytest.mark.both_databases
@pytest.mark.spec("SA-190", "SA-194", "SA-199")
async def test_network_control_is_returned_and_lists_that_name_nothing_are_refused(api: Api) -> None:
    for control in (
        {"enabled": True, "addressAllowlist": ["203.0.113.8"]},
        {"enabled": False, "domainAllowlist": ["github.com"]},
        {"enabled": True, "addressAllowlist": ["203.0.113.0/24"], "domainAllowlist": ["github.com"]},
        {"enabled": False},
    ):
        assert (await append(api, networkControl=control))["networkControl"] == control
    assert (await append(api, networkControl={"enabled": False, "domainAllowlist": []}))["networkControl"] == {
        "enabled": False
    }
    base = {"templateId": api.ids.template, "imageDigest": IMAGE}
    for control, field in (
        ({"enabled": True}, "networkControl.addressAllowlist"),
        ({"enabled": True, "addressAllowlist": ["", " "]}, "networkControl.addressAllowlist"),
        ({"enabled": False, "domainAllowlist": [" ", ""]}, "networkControl.domainAllowlist"),
        ({"addressAllowlist": ["1.2.3.4"]}, "networkControl.enabled"),
        ({"enabled": False, "other": 1}, "networkControl.other"),
        ({"enabled": False, "domainAllowlist": ["x" * 300]}, "networkControl.domainAllowlist.0"),
    ):
        refused(await api.post("/sandbox-template/revision", **base, networkControl=control), 400, field)


@pytest.mark.both_databases
@pytest.mark.spec("SA-024", "SA-023", "SA-188", "SA-200")
async def test_appending_changes_nothing_of_earlier_revisions_or_of_sandboxes_that_run(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox()
    before = await plane.sql("SELECT * FROM revisions ORDER BY revision")
    assert (await append(api, zClouds=2))["revision"] == 2
    assert (await append(api, zClouds=3))["revision"] == 3
    assert (await plane.sql("SELECT * FROM revisions ORDER BY revision"))[:1] == before
    kept = await api.sandbox(sandbox["sandboxId"])
    for key in ("templateRevisionId", "templateRevisionNumber", "resources"):
        assert kept[key] == sandbox[key]


@pytest.mark.both_databases
@pytest.mark.spec("SA-023")
async def test_revisions_appended_at_once_get_different_numbers(api: Api) -> None:
    appended = await asyncio.gather(*(append(api) for _ in range(8)))
    assert sorted(revision["revision"] for revision in appended) == list(range(2, 10))


@pytest.mark.spec("SA-201", "SA-203", "SA-207", "SA-211", "SA-440")
async def test_a_field_out_of_range_or_of_another_type_is_refused_by_its_name(api: Api) -> None:
    for field, value in REFUSED:
        body = {"templateId": api.ids.template, "imageDigest": IMAGE, field: value}
        refused(await api.post("/sandbox-template/revision", **body), 400, field)
    read = expect(await api.get("/sandbox-template", templateId=api.ids.template), 200)
    assert read["currentRevision"]["revision"] == 1


@pytest.mark.spec("SA-186", "SA-435")
async def test_template_and_image_are_required_and_the_template_must_be_the_accounts(plane: Plane, api: Api) -> None:
    refused(await api.post("/sandbox-template/revision", imageDigest=IMAGE), 400, "templateId is required")
    refused(await api.post("/sandbox-template/revision", templateId="x"), 400, "imageDigest is required")
    refused(await api.post("/sandbox-template/revision", templateId="x", imageDigest=IMAGE), 404)
    stranger = await plane.add_account("stranger")
    body = {"templateId": api.ids.template, "imageDigest": IMAGE}
    refused(await stranger.post("/sandbox-template/revision", **body), 404)


@pytest.mark.spec("SA-204")
async def test_an_entrypoint_that_exits_at_once_never_becomes_ready(api: Api) -> None:
    await append(api, command=["true"])
    failed = await api.settled(expect(await api.create(), 201)["sandbox"]["sandboxId"])
    assert failed["status"] == "FAILED"
    assert "readyAt" not in failed


@pytest.mark.spec("SA-205")
async def test_the_working_directory_is_where_commands_run(api: Api) -> None:
    await append(api, workingDir="/usr")
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    result = await api.execute(sandbox_id, "pwd")
    assert decoded(result["stdout"]) == b"/usr\n"


@pytest.mark.spec("SA-199")
async def test_a_network_control_that_restricts_nothing_runs(api: Api) -> None:
    await append(api, networkControl={"enabled": False, "domainAllowlist": []})
    assert (await api.ready_sandbox())["status"] == "READY"
