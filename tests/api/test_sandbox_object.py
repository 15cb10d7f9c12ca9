"""What a sandbox object holds, and when."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from tests.plane import IMAGE, MISSING_IMAGE, Api, Plane, expect, until

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.identity import TokenKind

ALWAYS = {
    "sandboxId", "accountId", "appId", "templateId", "templateRevisionId", "templateRevisionNumber", "region",
    "workloadProfile", "isolationProfile", "persistenceMode", "ownerKind", "ownerId", "callerKey", "status",
    "generation", "isWarmAllocation", "resources", "lastActiveAt", "expiresAt", "correlationId", "createdAt",
    "updatedAt",
}  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.spec("SA-043", "SA-044", "SA-045", "SA-046", "SA-052", "SA-067", "SA-068", "SA-442")
async def test_a_new_sandbox_holds_what_was_resolved_at_creation(api: Api) -> None:
    sandbox = expect(await api.create(ownerId="conversation-7"), 201)["sandbox"]
    revision = expect(await api.get("/sandbox-template", templateId=api.ids.template), 200)["currentRevision"]
    assert set(sandbox) - {"desiredStatus"} == ALWAYS
    assert sandbox["accountId"] == api.ids.account
    assert sandbox["appId"] == api.ids.app
    assert sandbox["templateId"] == api.ids.template
    assert sandbox["templateRevisionId"] == revision["revisionId"]
    assert sandbox["templateRevisionNumber"] == revision["revision"]
    assert (sandbox["region"], sandbox["ownerId"]) == ("local", "conversation-7")
    assert sandbox["isolationProfile"] == revision["isolationProfile"] == "GVISOR"
    assert sandbox["persistenceMode"] == revision["persistenceMode"] == "EPHEMERAL"
    assert sandbox["callerKey"] == f"user:{api.ids.user}"
    for key in ("createdAt", "updatedAt", "expiresAt", "lastActiveAt"):
        assert TIME.fullmatch(sandbox[key]), key


@pytest.mark.spec("SA-052", "SA-003")
async def test_the_caller_key_names_the_user_behind_an_oauth_token_too(plane: Plane) -> None:
    caller = await plane.caller(kind=TokenKind.OAUTH)
    sandbox = expect(await caller.create(), 201)["sandbox"]
    assert sandbox["callerKey"] == f"user:{caller.ids.user}"


@pytest.mark.spec("SA-056", "SA-055", "SA-059", "SA-060", "SA-068", "SA-362", "SA-361")
async def test_the_generation_grows_with_every_status_and_times_appear_as_they_happen(plane: Plane, api: Api) -> None:
    gate = plane.driver.faults.hold("create")
    created = expect(await api.create(), 201)["sandbox"]
    assert "readyAt" not in created
    assert "claimedAt" not in created
    assert created["desiredStatus"] == "READY"
    gate.set()
    ready = await api.settled(created["sandboxId"])
    assert ready["status"] == "READY"
    assert "desiredStatus" not in ready
    assert created["createdAt"] <= ready["claimedAt"] <= ready["readyAt"] <= ready["updatedAt"]
    steps = await plane.sql(
        "SELECT generation, to_status FROM sandbox_events WHERE sandbox_id = :id ORDER BY generation",
        id=created["sandboxId"],
    )
    assert steps == list(enumerate(["REQUESTED", "ALLOCATING", "STARTING", "READY"]))
    assert ready["generation"] == 3


@pytest.mark.spec("SA-058", "SA-028", "SA-188", "SA-024")
async def test_resources_are_copied_from_the_revision_and_keep_their_values(api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE}
    limits = {"zClouds": 3, "ephemeralDiskMb": 2_000, "pidLimit": 300}
    expect(await api.post("/sandbox-template/revision", **revision, **limits), 201)
    sandbox = expect(await api.create(), 201)["sandbox"]
    assert sandbox["resources"] == limits
    expect(await api.post("/sandbox-template/revision", **revision, zClouds=1), 201)
    kept = await api.settled(sandbox["sandboxId"])
    assert kept["resources"] == limits
    assert kept["templateRevisionId"] == sandbox["templateRevisionId"]
    bare = expect(await api.create(), 201)["sandbox"]
    assert bare["resources"] == {"zClouds": 1}


@pytest.mark.spec("SA-065", "SA-211")
async def test_the_lifetime_of_the_revision_makes_the_deadline(api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE, "hardLifetimeSeconds": 3_600}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    sandbox = expect(await api.create(), 201)["sandbox"]
    lifetime = datetime.fromisoformat(sandbox["expiresAt"]) - datetime.fromisoformat(sandbox["createdAt"])
    assert lifetime.total_seconds() == 3_600


@pytest.mark.spec("SA-057")
async def test_a_cold_sandbox_is_no_warm_allocation(api: Api) -> None:
    assert (await api.ready_sandbox())["isWarmAllocation"] is False


@pytest.mark.spec("SA-066", "SA-054", "SA-400", "SA-361", "SA-403")
async def test_a_missing_image_fails_the_sandbox_with_a_code_that_is_not_worth_retrying(api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": MISSING_IMAGE}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    created = expect(await api.create(idempotencyKey="k"), 201)["sandbox"]
    assert "errorCode" not in created
    assert "errorRetryable" not in created
    failed = await api.settled(created["sandboxId"])
    assert (failed["status"], failed["errorCode"], failed["errorRetryable"]) == ("FAILED", "INVALID_REQUEST", False)
    assert failed["statusReason"]
    assert "desiredStatus" not in failed
    again = expect(await api.create(idempotencyKey="k"), 200)["sandbox"]
    assert again["sandboxId"] == created["sandboxId"]


@pytest.mark.spec("SA-066", "SA-385", "SA-386", "SA-387", "SA-388", "SA-401")
async def test_a_failure_to_start_shows_with_its_code_and_that_codes_flag(plane: Plane, api: Api) -> None:
    retryable = {"SANDBOX_SUSPENDED", "SANDBOX_NOT_READY", "AGENT_UNREACHABLE", "TOO_MANY_EXECUTIONS"}
    for code in ErrorCode:
        plane.driver.faults.fail_next("create", RuntimeFailure("The machine said no.", code=code))
        created = expect(await api.create(), 201)["sandbox"]
        failed = await api.settled(created["sandboxId"])
        assert (failed["status"], failed["errorCode"]) == ("FAILED", code)
        assert failed["errorRetryable"] is (code in retryable)


@pytest.mark.spec("SA-064", "SA-370", "SA-211")
async def test_an_idle_sandbox_is_terminated_by_itself(plane: Plane, api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE, "idleTimeoutSeconds": 60}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    sandbox = await api.ready_sandbox()
    await plane.let_pass(59)
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "READY"
    await plane.let_pass(2)
    ended = await plane.ended(sandbox["sandboxId"])
    assert ended["terminationReason"] == "IDLE_TIMEOUT"


@pytest.mark.spec("SA-061", "SA-370")
async def test_a_call_on_the_sandbox_postpones_the_idle_timeout(plane: Plane, api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE, "idleTimeoutSeconds": 60}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    for _ in range(3):
        await plane.let_pass(50)
        expect(await api.get("/sandbox", sandboxId=sandbox_id), 200)
    assert (await api.sandbox(sandbox_id))["status"] == "READY"


@pytest.mark.spec("SA-371", "SA-064", "SA-389")
async def test_a_sandbox_at_its_hard_lifetime_is_terminated_and_says_that_it_expired(plane: Plane, api: Api) -> None:
    revision = {"templateId": api.ids.template, "imageDigest": IMAGE, "hardLifetimeSeconds": 100}
    expect(await api.post("/sandbox-template/revision", **revision), 201)
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    await plane.let_pass(101)
    ended = await plane.ended(sandbox_id)
    assert ended["terminationReason"] == "HARD_LIFETIME"
    refusal = expect(await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"]), 409)
    assert (refusal["errorCode"], refusal["data"]) == ("SANDBOX_EXPIRED", {"retryable": False})


@pytest.mark.spec("SA-390", "SA-066", "SA-385")
async def test_a_sandbox_killed_from_outside_fails_with_a_code(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    (instance,) = await plane.driver.list_instances()
    await plane.driver.kill_from_outside(instance.instance_id)

    async def failed() -> bool:
        return bool((await api.sandbox(sandbox_id))["status"] == "FAILED")

    await until(failed)
    sandbox = await api.sandbox(sandbox_id)
    assert (sandbox["errorCode"], sandbox["errorRetryable"]) == ("SANDBOX_NOT_FOUND", False)
    refusal = expect(await api.post("/sandbox/execute", sandboxId=sandbox_id, command=["true"]), 404)
    assert refusal["errorCode"] == "SANDBOX_NOT_FOUND"
