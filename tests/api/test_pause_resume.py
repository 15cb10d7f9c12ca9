"""Pause and resume: what is kept, what a failure leaves, and who waits for whom."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.plane import Api, Plane, expect, open_plane, refused, until

from atoll.domain.errors import ErrorCode, RuntimeFailure

pytestmark = pytest.mark.both_databases


async def pause(api: Api, sandbox: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"], **body)
    paused: dict[str, Any] = expect(answer, 200)["sandbox"]
    return paused


async def resume(api: Api, sandbox: dict[str, Any]) -> dict[str, Any]:
    expect(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 200)
    return await api.settled(sandbox["sandboxId"])


async def said(api: Api, sandbox: dict[str, Any], script: str) -> str:
    result = await api.execute(sandbox["sandboxId"], "sh", "-c", script)
    assert result["exitCode"] == 0, result
    return base64.b64decode(result.get("stdout", "")).decode()


def archives(plane: Plane) -> list[Path]:
    return sorted((plane.services.settings.data_dir / "volumes").glob("*/snapshots/*.tar.zst"))


@pytest.mark.spec("SA-049", "SA-062", "SA-074", "SA-147", "SA-148", "SA-149", "SA-151", "SA-158", "SA-159", "SA-366")
async def test_a_pause_archives_the_workspace_and_releases_the_compute(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(api, sandbox, "echo kept > note")
    paused = await pause(api, sandbox)
    assert paused["status"] == "SUSPENDED"
    assert paused["suspendedAt"]
    assert paused["volumeName"] == f"sbvol-{sandbox['sandboxId']}"
    [archive] = archives(plane)
    assert paused["persistence"]["lastSnapshotBytes"] == archive.stat().st_size
    assert paused["persistence"]["lastSnapshotAt"] >= sandbox["readyAt"]
    assert "lastSnapshotError" not in paused["persistence"]
    assert await plane.driver.list_instances() == []
    assert plane.services.volumes.instances() == set()


@pytest.mark.spec("SA-063", "SA-096", "SA-167", "SA-168", "SA-169", "SA-367")
async def test_a_resume_brings_the_workspace_back_under_the_same_id(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(
        api,
        sandbox,
        "mkdir -p d && echo x > d/f && chmod 640 d/f && touch -d 2001-02-03 d/f && ln -s d/f l && ln d/f h && :> empty"
        " && truncate -s 9M sparse && printf s >> sparse && chmod 2770 d",
    )
    look = "stat -c '%n %a %u %g %Y %h' d d/f h; readlink l; cat l; stat -c %s sparse empty; du -k sparse | cut -f1"
    before = await said(api, sandbox, look)
    await pause(api, sandbox)
    answer = expect(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 200)["sandbox"]
    assert answer["status"] == "RESUMING"
    resumed = await api.settled(sandbox["sandboxId"])
    assert resumed["status"] == "READY"
    assert resumed["sandboxId"] == sandbox["sandboxId"]
    assert resumed["resumedAt"] >= resumed["suspendedAt"]
    assert await said(api, sandbox, look) == before


@pytest.mark.spec("SA-168")
async def test_many_cycles_lose_nothing(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    for number in range(4):
        await said(api, sandbox, f"echo {number} >> log")
        await pause(api, sandbox)
        await resume(api, sandbox)
    assert await said(api, sandbox, "cat log") == "0\n1\n2\n3\n"
    assert len(archives(plane)) == 4


@pytest.mark.spec("SA-160")
async def test_pausing_a_paused_sandbox_returns_it_unchanged(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    first = await pause(api, sandbox)
    second = await pause(api, sandbox)
    assert second["generation"] == first["generation"]
    assert second["suspendedAt"] == first["suspendedAt"]


@pytest.mark.spec("SA-161")
async def test_an_ephemeral_sandbox_cannot_be_paused(api: Api) -> None:
    sandbox = await api.ready_sandbox()
    refused(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 400, "EPHEMERAL")
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "READY"


@pytest.mark.spec("SA-162", "SA-171")
async def test_a_terminated_sandbox_can_be_neither_paused_nor_resumed(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox["sandboxId"]), 200)
    refused(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 409, "TERMINATED")
    refused(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 409, "TERMINATED")


@pytest.mark.spec("SA-162", "SA-171")
async def test_a_sandbox_that_is_still_made_can_be_neither_paused_nor_resumed(plane: Plane, api: Api) -> None:
    gate = plane.driver.faults.hold("create")
    created = expect(await api.create(persistenceMode="SNAPSHOT"), 201)["sandbox"]
    refused(await api.post("/sandbox/pause", sandboxId=created["sandboxId"]), 409)
    refused(await api.post("/sandbox/resume", sandboxId=created["sandboxId"]), 409)
    gate.set()
    assert (await api.settled(created["sandboxId"]))["status"] == "READY"


@pytest.mark.spec("SA-170")
async def test_resuming_a_running_sandbox_returns_it_unchanged(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    answer = expect(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 200)["sandbox"]
    assert (answer["status"], answer["generation"]) == ("READY", sandbox["generation"])
    await api.start(sandbox["sandboxId"], "sleep", "60")
    answer = expect(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 200)["sandbox"]
    assert answer["status"] == "BUSY"


@pytest.mark.spec("SA-152", "SA-266")
async def test_a_busy_sandbox_is_paused_and_its_commands_end_with_agent_shutdown(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    started = await api.start(sandbox["sandboxId"], "sleep", "300")
    running = asyncio.create_task(api.execute(sandbox["sandboxId"], "sleep", "300"))
    await asyncio.sleep(0.2)
    paused = await pause(api, sandbox)
    assert paused["status"] == "SUSPENDED"
    assert (await running)["reason"] == "agent_shutdown"
    refused(await api.get("/sandbox/command", sandboxId=sandbox["sandboxId"], executionId=started["executionId"]), 409)
    await resume(api, sandbox)
    command = await api.command(sandbox["sandboxId"], started["executionId"])
    assert (command["state"], command["reason"]) == ("exited", "agent_shutdown")


@pytest.mark.spec("SA-036", "SA-153")
async def test_the_excludes_of_a_pause_replace_those_of_the_revision(api: Api) -> None:
    revision = await _revision(api, persistenceMode="SNAPSHOT", snapshotExclude=["*.log"])
    sandbox = await api.ready_sandbox(templateRevisionId=revision)
    await said(api, sandbox, "mkdir -p node_modules/x && touch a.log b.txt node_modules/x/y")
    await pause(api, sandbox)
    await resume(api, sandbox)
    assert await said(api, sandbox, "find . -type f | sort") == "./b.txt\n./node_modules/x/y\n"
    await said(api, sandbox, "touch c.log")
    await pause(api, sandbox, snapshotExclude=["node_modules"])
    await resume(api, sandbox)
    assert await said(api, sandbox, "find . -type f | sort") == "./b.txt\n./c.log\n"


@pytest.mark.spec("SA-037", "SA-050", "SA-154", "SA-155", "SA-163", "SA-166", "SA-365")
async def test_a_workspace_over_the_cap_fails_the_pause_and_goes_on(plane: Plane, api: Api) -> None:
    revision = await _revision(api, persistenceMode="SNAPSHOT", snapshotMaxMb=1)
    sandbox = await api.ready_sandbox(templateRevisionId=revision)
    await said(api, sandbox, "head -c 1500000 /dev/urandom > big")
    started = await api.start(sandbox["sandboxId"], "sleep", "300")
    answer = await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"])
    body = refused(answer, 502, "snapshotMaxMb")
    assert body["data"] == {"retryable": True}
    after = await api.sandbox(sandbox["sandboxId"])
    assert after["status"] == "BUSY"
    assert after["persistence"]["lastSnapshotError"]
    assert (await api.command(sandbox["sandboxId"], started["executionId"]))["state"] == "running"
    assert archives(plane) == []
    paused = await pause(api, sandbox, snapshotMaxMb=2)
    assert paused["status"] == "SUSPENDED"
    assert "lastSnapshotError" not in paused["persistence"]


@pytest.mark.spec("SA-164", "SA-166")
async def test_a_sandbox_that_cannot_be_reached_is_not_paused(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    row = await plane.sql("SELECT instance_id FROM sandboxes WHERE id = :id", id=sandbox["sandboxId"])
    unreachable = RuntimeFailure("no answer", code=ErrorCode.AGENT_UNREACHABLE)
    for _ in range(3):
        plane.driver.faults.fail_next("connect", unreachable)
    await plane.services.agents.drop(row[0][0])
    answer = await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"])
    body = refused(answer, 503)
    assert body["data"]["retryable"] is True
    assert body["data"]["retryAfterSeconds"] == int(answer.headers["Retry-After"])
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "READY"

    async def paused() -> bool:
        return bool((await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"])).status_code == 200)

    await until(paused)


@pytest.fixture
async def hasty_plane(database_url: str | None) -> AsyncIterator[Plane]:
    async with open_plane(database_url, snapshot_timeout_seconds=0.05) as running:
        yield running


@pytest.mark.spec("SA-165", "SA-166")
async def test_a_snapshot_that_takes_too_long_fails_the_pause_and_goes_on(hasty_plane: Plane) -> None:
    api = hasty_plane.api
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(api, sandbox, "head -c 90000000 /dev/urandom > big")
    answer = await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"])
    body = refused(answer, 504, "snapshotExclude")
    assert body["data"] == {"retryable": True}
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "READY"
    assert archives(hasty_plane) == []
    assert await said(api, sandbox, "echo on") == "on\n"


@pytest.mark.spec("SA-050", "SA-156", "SA-157")
@pytest.mark.parametrize("damage", ["flipped", "shortened", "missing"])
async def test_a_damaged_archive_is_told_of_and_needs_force_to_be_replaced(plane: Plane, api: Api, damage: str) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(api, sandbox, "head -c 100000 /dev/urandom > data")
    await pause(api, sandbox)
    [archive] = archives(plane)
    good = bytearray(archive.read_bytes())
    if damage == "missing":
        archive.unlink()
    elif damage == "shortened":
        archive.write_bytes(good[:-100])
    else:
        good[len(good) // 2] ^= 0xFF
        archive.write_bytes(good)
    resumed = await resume(api, sandbox)
    assert resumed["status"] == "READY"
    assert resumed["persistence"]["lastSnapshotError"]
    assert await said(api, sandbox, "ls -A") == ""
    body = refused(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 409, "force")
    assert not body.get("data", {}).get("retryable")
    assert len(archives(plane)) == (0 if damage == "missing" else 1)
    paused = await pause(api, sandbox, force=True)
    assert paused["status"] == "SUSPENDED"
    assert "lastSnapshotError" not in paused["persistence"]


@pytest.mark.spec("SA-172", "SA-222")
async def test_many_at_once_cause_one_resume(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await pause(api, sandbox)
    answers = await asyncio.gather(
        *(api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]) for _ in range(5)),
        *(api.post("/sandbox/execute", sandboxId=sandbox["sandboxId"], command=["true"]) for _ in range(5)),
    )
    assert {answer.status_code for answer in answers[:5]} == {200}
    # A command that finds the resume begun by somebody else is told to come back (SA-219).
    assert {answer.status_code for answer in answers[5:]} <= {200, 409}
    await api.settled(sandbox["sandboxId"])
    rows = await plane.sql(
        "SELECT count(*) FROM sandbox_events WHERE sandbox_id = :id AND action = 'resume'", id=sandbox["sandboxId"]
    )
    assert rows == [(1,)]


@pytest.mark.spec("SA-217", "SA-243", "SA-373")
async def test_a_command_resumes_a_paused_sandbox_and_runs(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(api, sandbox, "echo kept > note")
    await pause(api, sandbox)
    assert await said(api, sandbox, "cat note") == "kept\n"
    await pause(api, sandbox)
    started = await api.start(sandbox["sandboxId"], "cat", "note")
    _, events = await api.finished(sandbox["sandboxId"], started["executionId"])
    assert any("stdout" in event for event in events)


@pytest.mark.spec("SA-163", "SA-166", "SA-365")
@pytest.mark.parametrize("broken", ["open_volume", "archives.take", "snapshots.record"])
async def test_an_unforeseen_error_fails_the_pause_and_goes_on(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(api, sandbox, "echo kept > note")

    def fail(*_: Any, **__: Any) -> None:
        raise LookupError("nobody thought of this")

    with monkeypatch.context() as patched:
        patched.setattr(f"atoll.workers.suspension.{broken}", fail)
        body = refused(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 502, "snapshot")
    assert body["data"] == {"retryable": True}
    assert "nobody" not in str(body)
    after = await api.sandbox(sandbox["sandboxId"])
    assert after["status"] == "READY"
    assert after["persistence"]["lastSnapshotError"]
    assert await said(api, sandbox, "cat note") == "kept\n"
    assert (await pause(api, sandbox))["status"] == "SUSPENDED"


@pytest.mark.spec("SA-218", "SA-219", "SA-243")
async def test_a_resume_that_outlasts_the_request_is_a_retryable_conflict(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.ops.command_admission.RESUME_WAIT_SECONDS", 0.2)
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await pause(api, sandbox)
    gate = plane.driver.faults.hold("create")
    for path in ("/sandbox/execute", "/sandbox/command/start", "/sandbox/execute"):
        answer = await api.post(path, sandboxId=sandbox["sandboxId"], command=["true"])
        body = refused(answer, 409)
        assert body["data"]["retryable"] is True
        assert answer.headers["Retry-After"] == str(body["data"]["retryAfterSeconds"])
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "RESUMING"
    gate.set()
    await api.settled(sandbox["sandboxId"])
    assert await said(api, sandbox, "echo on") == "on\n"


@pytest.mark.spec("SA-219", "SA-364")
async def test_a_command_during_a_pause_is_a_retryable_conflict(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    gate = plane.driver.faults.hold("destroy")
    pausing = asyncio.create_task(pause(api, sandbox))

    async def suspending() -> bool:
        return bool((await api.sandbox(sandbox["sandboxId"]))["status"] == "SUSPENDING")

    await until(suspending)
    answer = await api.post("/sandbox/execute", sandboxId=sandbox["sandboxId"], command=["true"])
    assert refused(answer, 409)["data"]["retryable"] is True
    refused(await api.post("/sandbox/pause", sandboxId=sandbox["sandboxId"]), 409, "SUSPENDING")
    refused(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 409, "SUSPENDING")
    gate.set()
    assert (await pausing)["status"] == "SUSPENDED"


@pytest.mark.spec("SA-126", "SA-373")
async def test_a_reconnect_resumes_a_paused_sandbox(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT", idempotencyKey="again")
    await pause(api, sandbox)
    answer = expect(await api.create(persistenceMode="SNAPSHOT", idempotencyKey="again"), 200)
    assert answer["wasCreated"] is False
    assert answer["sandbox"]["sandboxId"] == sandbox["sandboxId"]
    assert (await api.settled(sandbox["sandboxId"]))["status"] == "READY"


@pytest.fixture
async def small_plane(database_url: str | None) -> AsyncIterator[Plane]:
    async with open_plane(database_url, account_active_sandbox_limit=1) as running:
        yield running


@pytest.mark.spec("SA-416", "SA-417")
async def test_a_paused_sandbox_holds_no_capacity_and_needs_it_again_to_resume(small_plane: Plane) -> None:
    api = small_plane.api
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT", idempotencyKey="mine")
    await pause(api, sandbox)
    other = await api.ready_sandbox()
    body = refused(await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"]), 429)
    assert body["data"]["reason"] == "account_concurrency_exceeded"
    assert body["data"]["retryAfterSeconds"] == 30
    connected = expect(await api.create(persistenceMode="SNAPSHOT", idempotencyKey="mine"), 200)
    assert connected["sandbox"]["status"] == "SUSPENDED"
    expect(await api.post("/sandbox/terminate", sandboxId=other["sandboxId"]), 200)

    async def resumed() -> bool:
        answer = await api.post("/sandbox/resume", sandboxId=sandbox["sandboxId"])
        return bool(answer.status_code == 200)

    await until(resumed)


@pytest.mark.spec("SA-087", "SA-090", "SA-372", "SA-402")
async def test_a_timeout_terminates_and_loses_what_changed_since_the_pause(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await said(api, sandbox, "echo old > note")
    await pause(api, sandbox)
    await resume(api, sandbox)
    await said(api, sandbox, "echo new > note")
    await plane.let_pass(1_801)
    ended = await plane.ended(sandbox["sandboxId"])
    assert ended["terminationReason"] == "IDLE_TIMEOUT"
    successor = await api.ready_sandbox(persistenceMode="SNAPSHOT", volumeName=ended["volumeName"])
    assert await said(api, successor, "cat note") == "old\n"


@pytest.mark.spec("SA-161", "SA-221")
async def test_a_paused_sandbox_that_is_terminated_keeps_its_volume_and_runs_nothing(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await pause(api, sandbox)
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox["sandboxId"]), 200)
    refused(await api.post("/sandbox/execute", sandboxId=sandbox["sandboxId"], command=["true"]), 404)
    assert len(archives(plane)) == 1


@pytest.mark.spec("SA-223", "SA-388")
async def test_a_resumed_sandbox_whose_agent_does_not_answer_yet_says_so(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    await pause(api, sandbox)
    await resume(api, sandbox)
    rows = await plane.sql("SELECT instance_id FROM sandboxes WHERE id = :id", id=sandbox["sandboxId"])
    plane.stop_workers()  # they would connect again first
    plane.driver.faults.fail_next("connect", RuntimeFailure("restoring", code=ErrorCode.AGENT_UNREACHABLE))
    await plane.services.agents.drop(rows[0][0])
    answer = await api.post("/sandbox/execute", sandboxId=sandbox["sandboxId"], command=["true"])
    body = refused(answer, 503)
    assert body["errorCode"] == "AGENT_UNREACHABLE"
    assert body["data"]["retryable"] is True
    assert answer.headers["Retry-After"] == str(body["data"]["retryAfterSeconds"])

    async def runs() -> bool:
        again = await api.post("/sandbox/execute", sandboxId=sandbox["sandboxId"], command=["true"])
        return bool(again.status_code == 200)

    await until(runs)


@pytest.mark.spec("SA-386")
async def test_a_command_of_a_paused_sandbox_is_not_read_until_it_is_resumed(api: Api) -> None:
    sandbox = await api.ready_sandbox(persistenceMode="SNAPSHOT")
    started = await api.start(sandbox["sandboxId"], "true")
    await api.finished(sandbox["sandboxId"], started["executionId"])
    await pause(api, sandbox)
    answer = await api.get("/sandbox/command", sandboxId=sandbox["sandboxId"], executionId=started["executionId"])
    body = refused(answer, 409)
    assert body["errorCode"] == "SANDBOX_SUSPENDED"
    assert body["data"]["retryable"] is True
    assert (await api.sandbox(sandbox["sandboxId"]))["status"] == "SUSPENDED"


async def _revision(api: Api, **body: Any) -> str:
    digest = f"example.test/image@sha256:{'0' * 64}"
    answer = await api.post("/sandbox-template/revision", templateId=api.ids.template, imageDigest=digest, **body)
    revision_id: str = expect(answer, 201)["revision"]["revisionId"]
    return revision_id
