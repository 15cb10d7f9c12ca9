"""Create or connect a sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from tests.plane import IMAGE, PREFIX, Api, Plane, create_body, expect, refused

from atoll.store import sandboxes

REQUIRED = ("accountId", "appId", "workloadProfile", "ownerKind", "ownerId", "region", "idempotencyKey")
PAIRINGS = {
    "CODE_INTERPRETER_TURN": "EXTERNAL_SESSION",
    "QUAVE_INTERACTIVE_AGENT": "AGENT_CONVERSATION",
    "QUAVE_AUTOMATION_RUN": "AGENT_RUN",
}


async def nothing_exists(api: Api) -> bool:
    """Whether the account has no sandbox."""
    return bool(expect(await api.get("/sandboxes"), 200)["totalCount"] == 0)


@pytest.mark.both_databases
@pytest.mark.spec("SA-102", "SA-122", "SA-127", "SA-065", "SA-437")
async def test_the_first_call_answers_201_with_a_requested_sandbox_of_generation_0(api: Api) -> None:
    answer = expect(await api.create(), 201)
    assert answer["success"] is True
    assert answer["wasCreated"] is True
    assert answer["sandbox"]["status"] == "REQUESTED"
    assert answer["sandbox"]["generation"] == 0
    assert answer["sandbox"]["expiresAt"] > answer["sandbox"]["createdAt"]


@pytest.mark.both_databases
@pytest.mark.spec("SA-123", "SA-069")
async def test_a_repeated_call_answers_200_with_the_same_sandbox(api: Api) -> None:
    first = expect(await api.create(idempotencyKey="once"), 201)["sandbox"]
    again = expect(await api.create(idempotencyKey="once"), 200)
    assert again["wasCreated"] is False
    assert again["sandbox"]["sandboxId"] == first["sandboxId"]
    assert "idempotencyKey" not in again["sandbox"]


@pytest.mark.both_databases
@pytest.mark.spec("SA-124", "SA-403")
async def test_twenty_concurrent_creates_with_one_key_make_one_sandbox_and_one_instance(plane: Plane, api: Api) -> None:
    answers = await asyncio.gather(*(api.create(idempotencyKey="same") for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    ids = {answer.json()["sandbox"]["sandboxId"] for answer in answers}
    assert len(ids) == 1
    assert (await api.settled(ids.pop()))["status"] == "READY"
    assert len(await plane.driver.list_instances()) == 1


@pytest.mark.both_databases
@pytest.mark.spec("SA-121")
async def test_another_app_or_another_caller_with_the_same_key_gets_another_sandbox(plane: Plane, api: Api) -> None:
    first = expect(await api.create(idempotencyKey="k"), 201)["sandbox"]
    in_other_app = await api.create(idempotencyKey="k", appId=await plane.add_app("other"))
    by_other_user = await (await plane.caller(user="second")).create(idempotencyKey="k")
    by_same_user_with_another_token = await (await plane.caller()).create(idempotencyKey="k")
    ids = {expect(answer, 201)["sandbox"]["sandboxId"] for answer in (in_other_app, by_other_user)}
    assert len(ids | {first["sandboxId"]}) == 3
    assert expect(by_same_user_with_another_token, 200)["sandbox"]["sandboxId"] == first["sandboxId"]


@pytest.mark.spec("SA-103", "SA-010", "SA-440")
async def test_each_required_field_is_required(api: Api) -> None:
    for field in REQUIRED:
        refused(await api.create(**{field: ...}), 400, f"{field} is required")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-104")
async def test_neither_template_nor_revision_is_refused(api: Api) -> None:
    refused(await api.create(templateId=...), 400, "templateId")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-105", "SA-112", "SA-187", "SA-044")
async def test_a_revision_is_pinned_with_and_without_its_template_and_the_latest_is_the_default(api: Api) -> None:
    first = expect(await api.get("/sandbox-template", templateId=api.ids.template), 200)["currentRevision"]
    expect(await api.post("/sandbox-template/revision", templateId=api.ids.template, imageDigest=IMAGE, zClouds=2), 201)
    latest = expect(await api.create(), 201)["sandbox"]
    pinned = expect(await api.create(templateRevisionId=first["revisionId"]), 201)["sandbox"]
    alone = expect(await api.create(templateId=..., templateRevisionId=first["revisionId"]), 201)["sandbox"]
    assert (latest["templateRevisionNumber"], latest["resources"]) == (2, {"zClouds": 2})
    for sandbox in (pinned, alone):
        assert sandbox["templateRevisionId"] == first["revisionId"]
        assert (sandbox["templateRevisionNumber"], sandbox["resources"]) == (1, {"zClouds": 1})
        assert sandbox["templateId"] == api.ids.template


@pytest.mark.spec("SA-113", "SA-435")
async def test_a_revision_of_another_template_answers_404(plane: Plane, api: Api) -> None:
    other = expect(await api.post("/sandbox-template/save", name="other"), 201)["template"]["templateId"]
    current = expect(await api.get("/sandbox-template", templateId=api.ids.template), 200)["currentRevision"]
    refused(await api.create(templateId=other, templateRevisionId=current["revisionId"]), 404, "revision")
    refused(await api.create(templateRevisionId="no-such-revision"), 404, "revision")
    stranger = await plane.add_account("stranger")
    refused(await stranger.create(templateId=..., templateRevisionId=current["revisionId"]), 404)
    refused(await stranger.create(templateId=api.ids.template), 404)
    refused(await stranger.create(appId=api.ids.app), 404)
    assert await nothing_exists(api)
    assert await nothing_exists(stranger)


@pytest.mark.spec("SA-106", "SA-018")
async def test_a_disabled_template_is_refused(api: Api) -> None:
    expect(await api.post("/sandbox-template/save", templateId=api.ids.template, name="off", enabled=False), 200)
    refused(await api.create(), 409, "disabled")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-107")
async def test_a_deprecated_template_is_refused(api: Api) -> None:
    expect(await api.post("/sandbox-template/save", templateId=api.ids.template, name="old", deprecated=True), 200)
    refused(await api.create(), 409, "deprecated")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-108")
async def test_a_template_without_a_revision_is_refused(api: Api) -> None:
    empty = expect(await api.post("/sandbox-template/save", name="empty"), 201)["template"]["templateId"]
    refused(await api.create(templateId=empty), 409, "revision")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-109", "SA-110")
async def test_each_workload_profile_takes_its_own_kind_of_owner_and_no_other(api: Api) -> None:
    for profile, kind in PAIRINGS.items():
        for other in PAIRINGS.values():
            answer = await api.create(workloadProfile=profile, ownerKind=other)
            if other == kind:
                sandbox = expect(answer, 201)["sandbox"]
                assert (sandbox["workloadProfile"], sandbox["ownerKind"]) == (profile, kind)
            else:
                refused(answer, 400, "ownerKind", kind)
    refused(await api.create(workloadProfile="SOMETHING"), 400, "workloadProfile")
    refused(await api.create(ownerKind="SOMEBODY"), 400, "ownerKind")


@pytest.mark.spec("SA-111", "SA-046", "SA-047", "SA-071")
async def test_the_persistence_mode_overrides_the_revisions(api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE, "persistenceMode": "DIRECTORY"}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    sandbox = expect(await api.create(persistenceMode="EPHEMERAL"), 201)["sandbox"]
    assert sandbox["persistenceMode"] == "EPHEMERAL"
    assert "volumeName" not in sandbox
    assert "persistence" not in sandbox
    refused(await api.create(persistenceMode="FOREVER"), 400, "persistenceMode")


@pytest.mark.spec("SA-079")
async def test_a_volume_mode_without_an_object_storage_point_answers_409(api: Api) -> None:
    for mode in ("DIRECTORY", "SNAPSHOT", "BOTH"):
        refused(await api.create(persistenceMode=mode, region="dry"), 409, "Object Storage")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-101")
async def test_a_volume_mode_on_a_template_with_a_warm_pool_answers_400(api: Api) -> None:
    pool = {"desired": 0, "min": 0, "max": 1}
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE, "warmPool": pool}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    text = "persistence modes with a volume are not available on warm pools"
    refused(await api.create(persistenceMode="DIRECTORY"), 400, text)
    assert await nothing_exists(api)


@pytest.mark.spec("SA-117", "SA-118", "SA-119")
async def test_a_region_that_cannot_be_used_creates_nothing(api: Api) -> None:
    for region, status in (("nowhere", 400), ("private", 403), ("bare", 409)):
        refused(await api.create(region=region), status, "egion")
    assert await nothing_exists(api)


@pytest.mark.spec("SA-114", "SA-051", "SA-429", "SA-043")
async def test_optional_fields_are_returned_when_they_were_sent_and_absent_otherwise(api: Api) -> None:
    sent: dict[str, Any] = {
        "externalSessionId": "session-9",
        "projectId": "repository-7",
        "maxProjectConcurrency": 5,
        "supervised": True,
    }
    full = expect(await api.create(**sent), 201)["sandbox"]
    bare = expect(await api.create(), 201)["sandbox"]
    assert {key: full[key] for key in sent} == sent
    assert not set(sent) & set(bare)
    assert full["ownerId"] == "conversation-1"


@pytest.mark.both_databases
@pytest.mark.spec("SA-125", "SA-412", "SA-420", "SA-426")
async def test_a_database_that_fails_in_admission_leaves_neither_sandbox_nor_instance(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = sandboxes.add

    def fail_after_the_insert(*arguments: Any) -> None:
        genuine(*arguments)
        raise OperationalError("INSERT", {}, Exception("disk full"))

    monkeypatch.setattr(sandboxes, "add", fail_after_the_insert)
    answer = await plane.client.post(
        f"{PREFIX}/sandbox/create",
        json=create_body(api.ids, idempotencyKey="k"),
        headers={"Authorization": api.token or ""},
    )
    assert answer.status_code == 500
    assert "disk" not in answer.text
    monkeypatch.undo()
    assert await nothing_exists(api)
    assert await plane.driver.list_instances() == []
    assert expect(await api.create(idempotencyKey="k"), 201)["wasCreated"] is True


@pytest.mark.spec("SA-430")
async def test_an_idempotent_retry_changes_no_frozen_field(api: Api) -> None:
    sent = {"idempotencyKey": "k", "projectId": "one", "maxProjectConcurrency": 3, "externalSessionId": "first"}
    first = expect(await api.create(**sent), 201)["sandbox"]
    other = {"projectId": "two", "maxProjectConcurrency": 1, "externalSessionId": "second", "ownerId": "somebody"}
    again = expect(await api.create(**{**sent, **other}), 200)["sandbox"]
    for key in ("projectId", "maxProjectConcurrency", "externalSessionId", "ownerId"):
        assert again[key] == first[key]
