"""Get a command: its state and its output."""

from __future__ import annotations

import asyncio
import hashlib
import time

import pytest
from tests.plane import Api, Plane, decoded, expect, refused

STATE = {
    "executionId", "state", "startedAt", "stdoutBytes", "stderrBytes", "outputTruncated", "events", "nextSeq",
    "complete",
}  # fmt: skip


@pytest.mark.both_databases
@pytest.mark.spec(
    "SA-253",
    "SA-254",
    "SA-259",
    "SA-260",
    "SA-261",
    "SA-262",
    "SA-267",
    "SA-269",
    "SA-270",
    "SA-271",
    "SA-272",
    "SA-274",
)
async def test_an_exited_command_has_all_its_events_in_order(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sh", "-c", "printf out; sleep 0.2; printf err >&2; exit 4")
    command, events = await api.finished(sandbox_id, execution["executionId"])
    assert set(command) == STATE | {"exitCode", "exitedAt"}
    assert (command["state"], command["exitCode"]) == ("exited", 4)
    assert command["exitedAt"] >= command["startedAt"]
    assert (command["stdoutBytes"], command["stderrBytes"], command["outputTruncated"]) == (3, 3, False)
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert events[0]["init"] == {"processId": execution["processId"]}
    assert events[-1]["exit"] == {"exitCode": 4}
    for event in events:
        assert len(set(event) - {"seq"}) == 1
    assert b"".join(decoded(event.get("stdout")) for event in events) == b"out"
    assert b"".join(decoded(event.get("stderr")) for event in events) == b"err"


@pytest.mark.spec("SA-254", "SA-276", "SA-277", "SA-260", "SA-261", "SA-256")
async def test_a_running_command_has_no_end_and_from_skips_what_was_read(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two")
    first = await api.command(sandbox_id, execution["executionId"], waitSeconds=5)
    while not any("stdout" in event for event in first["events"]):
        first = await api.command(sandbox_id, execution["executionId"])
    assert set(first) == STATE
    assert (first["state"], first["complete"]) == ("running", False)
    assert first["nextSeq"] == first["events"][-1]["seq"] + 1
    began = time.monotonic()
    nothing = await api.command(sandbox_id, execution["executionId"], **{"from": first["nextSeq"]})
    assert time.monotonic() - began < 1
    assert (nothing["events"], nothing["nextSeq"]) == ([], first["nextSeq"])
    await api.execute(sandbox_id, "touch", "go")
    rest = await api.command(sandbox_id, execution["executionId"], **{"from": first["nextSeq"], "waitSeconds": 25})
    while not rest["complete"]:
        rest = await api.command(sandbox_id, execution["executionId"], **{"from": first["nextSeq"], "waitSeconds": 1})
    assert [decoded(e.get("stdout")) for e in rest["events"] if "stdout" in e] == [b"two\n"]
    assert all(event["seq"] >= first["nextSeq"] for event in rest["events"])


@pytest.mark.spec("SA-256", "SA-257", "SA-258")
async def test_a_wait_answers_with_output_or_when_it_runs_out_and_never_for_an_exited_command(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo late; sleep 60")
    cursor = (await api.command(sandbox_id, execution["executionId"]))["nextSeq"]
    began = time.monotonic()
    quiet = await api.command(sandbox_id, execution["executionId"], **{"from": cursor, "waitSeconds": 1})
    assert 0.9 <= time.monotonic() - began < 5
    assert quiet["events"] == []
    waiting = asyncio.create_task(
        api.command(sandbox_id, execution["executionId"], **{"from": cursor, "waitSeconds": 25})
    )
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await api.execute(sandbox_id, "touch", "go")
    assert decoded((await waiting)["events"][0]["stdout"]) == b"late\n"
    target = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
    expect(await api.post("/sandbox/command/kill", **target), 200)
    ended, _ = await api.finished(sandbox_id, execution["executionId"])
    began = time.monotonic()
    await api.command(sandbox_id, execution["executionId"], **{"from": ended["nextSeq"], "waitSeconds": 25})
    assert time.monotonic() - began < 5


@pytest.mark.spec("SA-255", "SA-271", "SA-275", "SA-276", "SA-277")
async def test_three_megabytes_arrive_whole_in_pages_of_about_one(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    script = "\n".join(
        [
            "import os, hashlib, sys",
            "data = os.urandom(3 << 20)",
            "sys.stderr.write(hashlib.sha256(data).hexdigest())",
            "sys.stdout.buffer.write(data)",
        ]
    )
    execution = await api.start(sandbox_id, "python3", "-c", script)
    pages, cursor, output, digest, seqs = 0, 0, b"", b"", []
    while True:
        page = await api.command(sandbox_id, execution["executionId"], **{"from": cursor, "waitSeconds": 5})
        size = sum(len(decoded(e.get("stdout"))) + len(decoded(e.get("stderr"))) for e in page["events"])
        assert size <= 1_100_000
        pages += 1
        output += b"".join(decoded(e.get("stdout")) for e in page["events"])
        digest += b"".join(decoded(e.get("stderr")) for e in page["events"])
        seqs += [event["seq"] for event in page["events"]]
        cursor = page["nextSeq"]
        if page["complete"]:
            assert page["state"] == "exited"
            break
    assert pages >= 3
    assert seqs == list(range(len(seqs)))
    assert hashlib.sha256(output).hexdigest() == digest.decode()


@pytest.mark.spec("SA-277")
async def test_an_exited_command_with_output_left_is_not_complete(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "head", "-c", "2500000", "/dev/zero")
    await api.finished(sandbox_id, execution["executionId"])
    first = await api.command(sandbox_id, execution["executionId"])
    assert (first["state"], first["complete"]) == ("exited", False)


@pytest.mark.spec("SA-267", "SA-268", "SA-269", "SA-273")
async def test_older_output_than_four_megabytes_is_dropped_and_said_to_be(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    total = 6_000_000
    execution = await api.start(sandbox_id, "sh", "-c", f"head -c {total - 4} /dev/zero; printf last")
    target = {"sandboxId": sandbox_id, "executionId": execution["executionId"]}
    command = await api.command(sandbox_id, execution["executionId"])
    while command["state"] == "running":
        page = {"from": 2**50, "waitSeconds": 5}
        command = expect(await api.get("/sandbox/command", **target, **page), 200)["command"]
    command, events = await api.finished(sandbox_id, execution["executionId"])
    assert command["outputTruncated"] is True
    assert command["stdoutBytes"] == total
    dropped = events[0]["truncated"]
    kept = b"".join(decoded(event.get("stdout")) for event in events)
    assert dropped["droppedEvents"] > 0
    assert dropped["droppedBytes"] + len(kept) == total
    assert 3_900_000 <= len(kept) <= 4 * 1024 * 1024
    assert kept.endswith(b"last")


@pytest.mark.spec("SA-265")
async def test_a_kill_that_nobody_asked_for_has_the_reason_killed(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sh", "-c", "kill -KILL $$")
    command, events = await api.finished(sandbox_id, execution["executionId"])
    assert (command["exitCode"], command["reason"]) == (137, "killed")
    assert events[-1]["exit"] == {"exitCode": 137, "reason": "killed"}


@pytest.mark.both_databases
@pytest.mark.spec("SA-266", "SA-278")
async def test_a_command_of_a_terminated_sandbox_still_tells_how_it_ended(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(sandbox_id, "sleep", "600")
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)
    command = await api.command(sandbox_id, execution["executionId"])
    assert (command["state"], command["reason"], command["complete"]) == ("exited", "agent_shutdown", True)
    assert [set(event) for event in command["events"]] == [{"seq", "init"}, {"seq", "exit"}]
    assert [event["seq"] for event in command["events"]] == [0, 1]


@pytest.mark.spec("SA-396", "SA-253", "SA-435")
async def test_an_id_that_the_sandbox_does_not_know_answers_404(plane: Plane, api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    other = (await api.ready_sandbox())["sandboxId"]
    execution = await api.start(other, "true")
    for unknown in ("not-a-uuid", "00000000-0000-4000-8000-000000000000", execution["executionId"]):
        refusal = refused(await api.get("/sandbox/command", sandboxId=sandbox_id, executionId=unknown), 404)
        assert (refusal["errorCode"], refusal["data"]) == ("EXECUTION_NOT_FOUND", {"retryable": False})
    stranger = await plane.add_account("stranger")
    refused(await stranger.get("/sandbox/command", sandboxId=other, executionId=execution["executionId"]), 404)


@pytest.mark.spec("SA-253", "SA-254", "SA-256", "SA-440", "SA-010")
async def test_parameters_are_required_and_bounded(api: Api) -> None:
    whole = {"sandboxId": "s", "executionId": "e"}
    refused(await api.get("/sandbox/command", executionId="e"), 400, "sandboxId is required")
    refused(await api.get("/sandbox/command", sandboxId="s"), 400, "executionId is required")
    refused(await api.get("/sandbox/command", **whole, accountId=None), 400, "accountId is required")
    for value in ("-1", "1.0", "x", "", "9" * 30):
        refused(await api.get("/sandbox/command", **whole, **{"from": value}), 400, "from")
    for value in ("-1", "26", "0.5", "x", ""):
        refused(await api.get("/sandbox/command", **whole, waitSeconds=value), 400, "waitSeconds")


@pytest.mark.both_databases
@pytest.mark.spec("SA-271", "SA-272", "SA-273", "SA-277")
async def test_after_its_sandbox_a_command_tells_what_is_lost_and_its_true_last_number(api: Api) -> None:
    sandbox_id = (await api.ready_sandbox())["sandboxId"]
    ended = (await api.start(sandbox_id, "sh", "-c", "printf one; sleep 0.3; printf three; exit 4"))["executionId"]
    cut_off = (await api.start(sandbox_id, "sh", "-c", "printf x; sleep 60"))["executionId"]
    seen, events = await api.finished(sandbox_id, ended)
    await api.command(sandbox_id, cut_off, **{"from": 1, "waitSeconds": 5})
    expect(await api.post("/sandbox/terminate", sandboxId=sandbox_id), 200)

    last = events[-1]["seq"]
    later = await api.command(sandbox_id, ended)
    truncated = {"droppedBytes": 8, "droppedEvents": last - 1}
    assert later["events"] == [events[0], {"seq": last - 1, "truncated": truncated}, events[-1]]
    assert (later["nextSeq"], later["complete"]) == (seen["nextSeq"], True)
    assert (await api.command(sandbox_id, ended, **{"from": last}))["events"] == [events[-1]]
    at_the_end = await api.command(sandbox_id, ended, **{"from": last + 1})
    assert (at_the_end["events"], at_the_end["nextSeq"], at_the_end["complete"]) == ([], last + 1, True)

    stopped = await api.command(sandbox_id, cut_off)
    assert [list(event)[1] for event in stopped["events"]] == ["init", "truncated", "exit"]
    assert stopped["events"][2]["exit"]["reason"] == "agent_shutdown"
    assert stopped["events"][2]["seq"] == 2
    assert stopped["stdoutBytes"] == 1
