"""Execution webhooks as a receiver sees them: a real command ends, a real TLS server gets the call, or does not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from standardwebhooks import Webhook
from tests.plane import Api, Plane, expect, open_plane, until
from tests.webhook_receiver import (
    HOST,
    SECRET,
    SECRET_BYTES_TEXT,
    URL,
    WEBHOOK,
    Answer,
    Received,
    Receiver,
    running_receiver,
)

from atoll.store.wakes import WEBHOOKS

SCHEDULE = [30, 60, 120, 240, 480, 960, 1_920]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as running:
        yield running


@pytest.fixture
async def plane(database_url: str | None, receiver: Receiver) -> AsyncIterator[Plane]:
    """A control plane whose webhooks for the receiver's host go to the receiver."""
    async with open_plane(database_url, webhook_test_destinations=receiver.destinations) as running:
        yield running


def verify_by_hand(received: Received) -> None:
    """What the specification's receiver does, without the library that signed."""
    identity, stamp = received.headers["webhook-id"], received.headers["webhook-timestamp"]
    signed = f"{identity}.{stamp}.".encode() + received.body
    expected = base64.b64encode(hmac.new(base64.b64decode(SECRET_BYTES_TEXT), signed, hashlib.sha256).digest())
    assert received.headers["webhook-signature"] == "v1," + expected.decode()


async def state_of(plane: Plane, execution_id: str) -> tuple[str, int]:
    """Where a delivery stands, and its attempts."""
    rows = await plane.sql("SELECT state, attempts FROM webhook_deliveries WHERE id = :id", id=execution_id)
    return (rows[0][0], rows[0][1]) if rows else ("", 0)


async def settled(plane: Plane, execution_id: str, state: str) -> int:
    """Wait for the state of a delivery that no attempt is made of; gives its attempts."""

    async def look() -> bool:
        return (await state_of(plane, execution_id))[0] == state

    await until(look)
    return (await state_of(plane, execution_id))[1]


async def waits_for_retry(plane: Plane, execution_id: str, attempts: int) -> None:
    """Wait until an attempt has failed and another is planned."""

    async def look() -> bool:
        rows = await plane.sql(
            "SELECT attempts FROM webhook_deliveries WHERE id = :id AND state = 'PENDING' AND lease_token IS NULL",
            id=execution_id,
        )
        return rows == [(attempts,)]

    await until(look)


def let_pass(plane: Plane, seconds: float) -> None:
    """Let time pass, and let the worker notice."""
    plane.clock.pass_seconds(seconds)
    plane.services.wakes.publish([WEBHOOKS])


async def sandbox_with_webhook(api: Api, **body: Any) -> str:
    sandbox = await api.ready_sandbox(executionWebhook=WEBHOOK, **body)
    return str(sandbox["sandboxId"])


@pytest.mark.both_databases
@pytest.mark.spec(
    "SA-285",
    "SA-286",
    "SA-298",
    "SA-299",
    "SA-300",
    "SA-301",
    "SA-302",
    "SA-307",
    "SA-309",
    "SA-310",
    "SA-311",
    "SA-312",
    "SA-313",
)
async def test_the_end_of_a_started_command_is_told_at_once_signed_and_exact(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    started = await api.start(sandbox_id, "sh", "-c", "printf hello; printf oops >&2")
    command, _ = await api.finished(sandbox_id, started["executionId"])
    (received,) = await receiver.wait_for(1, seconds=3)
    assert received.method == "POST"
    assert received.target == URL.removeprefix(f"https://{HOST}")
    assert received.headers["host"] == HOST
    assert received.headers["content-type"] == "application/json"
    assert received.headers["webhook-id"] == f"evt_{started['executionId']}"
    assert abs(int(received.headers["webhook-timestamp"]) - time.time()) < 5
    verify_by_hand(received)
    assert Webhook(SECRET).verify(received.body, received.headers) == received.event
    assert received.event == {
        "id": f"evt_{started['executionId']}",
        "type": "sandbox.execution.completed",
        "timestamp": received.event["timestamp"],
        "data": {
            "accountId": api.ids.account,
            "appId": api.ids.app,
            "sandboxId": sandbox_id,
            "executionId": command["executionId"],
            "executionType": "EXEC",
            "status": "SUCCEEDED",
            "exitCode": 0,
            "startedAt": command["startedAt"],
            "finishedAt": command["exitedAt"],
            "stdoutBytes": 5,
            "stderrBytes": 4,
            "outputTruncated": False,
        },
    }
    assert await settled(plane, started["executionId"], "DELIVERED") == 1
    let_pass(plane, 7_200)
    await asyncio.sleep(0.3)  # what must not come has no event to wait for
    assert len(receiver.received) == 1


@pytest.mark.spec("SA-308")
async def test_a_webhook_holds_nothing_of_what_the_command_was_or_said(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    await api.start(
        sandbox_id, "sh", "-c", "echo marker-output-$MARKER; echo marker-error >&2", envVars={"MARKER": "marker-env"}
    )
    (received,) = await receiver.wait_for(1)
    assert b"marker" not in received.body
    assert not any("marker" in value for value in received.headers.values())


@pytest.mark.spec("SA-288")
async def test_execute_tells_nobody(plane: Plane, api: Api, receiver: Receiver) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    await api.execute(sandbox_id, "true")
    started = await api.start(sandbox_id, "true")
    await receiver.wait_for(1)
    assert [received.event["data"]["executionId"] for received in receiver.received] == [started["executionId"]]
    assert len(await plane.sql("SELECT id FROM webhook_deliveries")) == 1


async def test_a_sandbox_without_a_webhook_tells_nobody(plane: Plane, api: Api) -> None:
    sandbox = await api.ready_sandbox()
    started = await api.start(sandbox["sandboxId"], "true")
    await api.finished(sandbox["sandboxId"], started["executionId"])
    assert await plane.sql("SELECT id FROM webhook_deliveries") == []


@pytest.mark.spec("SA-303", "SA-304", "SA-305", "SA-307")
async def test_failure_deadline_and_kill_are_told_as_they_were(plane: Plane, api: Api, receiver: Receiver) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    failed = await api.start(sandbox_id, "sh", "-c", "exit 3")
    late = await api.start(sandbox_id, "sleep", "60", timeoutSeconds=1)
    killed = await api.start(sandbox_id, "sleep", "60")
    await api.post("/sandbox/command/kill", sandboxId=sandbox_id, executionId=killed["executionId"])
    await receiver.wait_for(3)
    told = {received.event["data"]["executionId"]: received.event["data"] for received in receiver.received}
    for execution, status in ((failed, "FAILED"), (late, "TIMED_OUT"), (killed, "CANCELED")):
        data = told[execution["executionId"]]
        command = await api.command(sandbox_id, execution["executionId"])
        assert data["status"] == status
        assert data["exitCode"] == command["exitCode"]
        assert data.get("reason") == command.get("reason")


@pytest.mark.both_databases
@pytest.mark.spec("SA-306")
async def test_a_command_that_ends_with_its_sandbox_is_told_as_unknown(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    started = await api.start(sandbox_id, "sleep", "600")
    await api.post("/sandbox/terminate", sandboxId=sandbox_id)
    (received,) = await receiver.wait_for(1)
    assert received.event["data"]["executionId"] == started["executionId"]
    assert received.event["data"]["status"] == "UNKNOWN"


@pytest.mark.spec("SA-306")
async def test_a_command_whose_sandbox_dies_unannounced_is_told_as_unknown_without_an_exit_code(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    await api.start(sandbox_id, "sleep", "600")
    ((instance_id,),) = await plane.sql("SELECT instance_id FROM sandboxes WHERE id = :id", id=sandbox_id)
    await plane.driver.kill_from_outside(instance_id)
    (received,) = await receiver.wait_for(1)
    assert received.event["data"]["status"] == "UNKNOWN"
    assert not {"exitCode", "reason"} & set(received.event["data"])


@pytest.mark.both_databases
@pytest.mark.spec("SA-314", "SA-316", "SA-317", "SA-320")
async def test_a_receiver_that_fails_is_tried_8_times_ever_later_with_the_same_event(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    receiver.answers = [
        Answer(500),
        Answer(429),
        Answer(503),
        Answer(502),
        Answer(599),
        Answer(500),
        Answer(504),
        Answer(500),
    ]
    sandbox_id = await sandbox_with_webhook(api)
    started = await api.start(sandbox_id, "true")
    for attempt, delay in enumerate(SCHEDULE, start=1):
        await receiver.wait_for(attempt)
        await waits_for_retry(plane, started["executionId"], attempt)
        let_pass(plane, delay - 2)
        await asyncio.sleep(0.1)
        assert len(receiver.received) == attempt, "it came too early"
        let_pass(plane, delay * 0.25 + 3)
    await receiver.wait_for(8)
    assert await settled(plane, started["executionId"], "EXHAUSTED") == 8
    let_pass(plane, 100_000)
    await asyncio.sleep(0.2)
    assert len(receiver.received) == 8
    assert len({received.headers["webhook-id"] for received in receiver.received}) == 1
    assert len({received.body for received in receiver.received}) == 1
    assert len({received.headers["webhook-timestamp"] for received in receiver.received}) == 8
    for received in receiver.received:
        verify_by_hand(received)


@pytest.mark.spec("SA-310", "SA-313", "SA-314", "SA-320")
async def test_a_receiver_that_recovers_gets_it_once_more_and_no_more(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    receiver.answers = [Answer(503), Answer(204)]
    sandbox_id = await sandbox_with_webhook(api)
    started = await api.start(sandbox_id, "true")
    await waits_for_retry(plane, started["executionId"], 1)
    let_pass(plane, 40)
    await receiver.wait_for(2)
    assert await settled(plane, started["executionId"], "DELIVERED") == 2
    stamps = [int(received.headers["webhook-timestamp"]) for received in receiver.received]
    assert stamps[1] - stamps[0] >= 40


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422, 304])
@pytest.mark.spec("SA-318")
async def test_any_other_answer_stops_the_delivery(plane: Plane, api: Api, receiver: Receiver, status: int) -> None:
    receiver.then = Answer(status)
    started = await api.start(await sandbox_with_webhook(api), "true")
    assert await settled(plane, started["executionId"], "STOPPED") == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.spec("SA-319")
async def test_a_redirect_is_not_followed_and_stops_the_delivery(
    plane: Plane, api: Api, receiver: Receiver, status: int
) -> None:
    receiver.then = Answer(status, headers=(("location", f"https://{HOST}/elsewhere"),))
    started = await api.start(await sandbox_with_webhook(api), "true")
    assert await settled(plane, started["executionId"], "STOPPED") == 1
    assert receiver.connections == 1


@pytest.mark.spec("SA-315")
async def test_connections_that_break_and_answers_that_are_no_http_are_retried(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    receiver.answers = [Answer(close=True), Answer(99)]
    started = await api.start(await sandbox_with_webhook(api), "true")
    await waits_for_retry(plane, started["executionId"], 1)
    let_pass(plane, 40)
    await waits_for_retry(plane, started["executionId"], 2)
    let_pass(plane, 80)
    assert await settled(plane, started["executionId"], "DELIVERED") == 3


@pytest.mark.spec("SA-315")
async def test_an_attempt_ends_after_ten_seconds_whatever_of_an_answer_trickles_in(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    never = asyncio.Event()
    receiver.answers = [Answer(after=never.wait)]
    started = await api.start(await sandbox_with_webhook(api), "true")
    (received,) = await receiver.wait_for(1)
    await waits_for_retry(plane, started["executionId"], 1)
    assert 8 < asyncio.get_running_loop().time() - received.at < 12
    let_pass(plane, 40)
    assert await settled(plane, started["executionId"], "DELIVERED") == 2
    never.set()


async def test_an_answer_without_an_end_is_not_read(plane: Plane, api: Api, receiver: Receiver) -> None:
    receiver.then = Answer(200, endless_body=True)
    started = await api.start(await sandbox_with_webhook(api), "true")
    assert await settled(plane, started["executionId"], "DELIVERED") == 1
    assert receiver.body_bytes_taken < 16 * 1024 * 1024


@pytest.mark.spec("SA-322", "SA-323")
async def test_a_delivery_that_fails_leaves_command_and_sandbox_alone(
    plane: Plane, api: Api, receiver: Receiver
) -> None:
    receiver.then = Answer(410)
    sandbox_id = await sandbox_with_webhook(api)
    started = await api.start(sandbox_id, "echo", "still here")
    await settled(plane, started["executionId"], "STOPPED")
    command, events = await api.finished(sandbox_id, started["executionId"])
    assert command["exitCode"] == 0
    assert any("stdout" in event for event in events)
    assert (await api.sandbox(sandbox_id))["status"] == "READY"
    assert (await api.execute(sandbox_id, "true"))["exitCode"] == 0


async def test_a_certificate_of_another_host_is_not_trusted(database_url: str | None) -> None:
    async with (
        running_receiver(certified_for="other.example.com") as receiver,
        open_plane(database_url, webhook_test_destinations=receiver.destinations) as plane,
    ):
        started = await plane.api.start(await sandbox_with_webhook(plane.api), "true")
        await waits_for_retry(plane, started["executionId"], 1)
        assert receiver.received == []


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(database_url: str | None) -> None:
    async with running_receiver() as other, running_receiver() as receiver:
        destinations = receiver.destinations
        destinations[HOST]["caFile"] = str(other.ca_file)
        async with open_plane(database_url, webhook_test_destinations=destinations) as plane:
            started = await plane.api.start(await sandbox_with_webhook(plane.api), "true")
            await waits_for_retry(plane, started["executionId"], 1)
            assert receiver.received == []


@pytest.mark.spec("SA-321")
async def test_a_host_that_now_leads_to_a_private_address_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public when the sandbox was created; then its owner points it at this machine, where something listens."""
    addresses = ["8.8.8.8"]
    looked_up: list[str] = []

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> list[Any]:
        looked_up.append(str(host))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[0], 0))]

    async with running_receiver() as receiver, open_plane() as plane:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        sandbox_id = await sandbox_with_webhook(plane.api)
        for attempt, address in enumerate(["127.0.0.1", "169.254.169.254", "10.0.0.1"], start=1):
            addresses[0] = address
            looked_up.clear()
            if attempt == 1:
                started = await plane.api.start(sandbox_id, "true")
            else:
                let_pass(plane, 400)
            await waits_for_retry(plane, started["executionId"], attempt)
            assert looked_up == [HOST]
        assert receiver.connections == 0
        rows = await plane.sql("SELECT last_failure FROM webhook_deliveries")
        assert rows == [("the host leads to an address that is not public",)]


@pytest.mark.spec("SA-321")
async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers a public address first and a private one afterwards gains nothing by it."""
    answers = iter(["8.8.8.8", "8.8.4.4", *["127.0.0.1"] * 20])
    connected: list[str] = []

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 0))]

    async def connect(self: Any, host: str, port: int, *rest: Any) -> Any:
        connected.append(f"{host}:{port}")
        raise OSError("no way out of the test")

    async with open_plane() as plane:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr("httpcore.AnyIOBackend.connect_tcp", connect)
        started = await plane.api.start(await sandbox_with_webhook(plane.api), "true")
        await waits_for_retry(plane, started["executionId"], 1)
        assert connected == ["8.8.4.4:443"]


async def test_a_receiver_that_hangs_does_not_hold_up_the_others(database_url: str | None) -> None:
    never = asyncio.Event()
    async with running_receiver("slow.example.com") as slow, running_receiver("quick.example.com") as quick:
        slow.then = Answer(after=never.wait)
        async with open_plane(database_url, webhook_test_destinations=slow.destinations | quick.destinations) as plane:
            hooks = [{"url": f"https://{one.host}/", "secret": SECRET} for one in (slow, quick)]
            slow_id = (await plane.api.ready_sandbox(executionWebhook=hooks[0]))["sandboxId"]
            quick_id = (await plane.api.ready_sandbox(executionWebhook=hooks[1]))["sandboxId"]
            await asyncio.gather(*(plane.api.start(slow_id, "true") for _ in range(12)))
            await slow.wait_for(4)
            await plane.api.start(quick_id, "true")
            await quick.wait_for(1, seconds=3)
            assert slow.connections == 4, "no host gets more than its share"
        never.set()


@pytest.mark.spec("SA-287")
@pytest.mark.parametrize(("terminal", "kind"), [(None, "EXEC"), ({"rows": 24, "cols": 80}, "PTY")])
async def test_the_end_of_a_process_or_terminal_of_the_gateway_is_told_too(
    plane: Plane, api: Api, receiver: Receiver, terminal: dict[str, int] | None, kind: str
) -> None:
    sandbox_id = await sandbox_with_webhook(api)
    opened = expect(await api.post("/sandbox/session", sandboxId=sandbox_id, scopes=["exec", "pty"]), 200)
    body = {"command": ["sh", "-c", "printf hello; exit 3"], **({} if terminal is None else {"pty": terminal})}
    gateway = plane.anonymous(opened["token"])
    started = expect(await gateway.send("POST", f"{opened['endpoint']}/processes", json=body), 201)["execution"]
    (received,) = await receiver.wait_for(1, seconds=5)
    assert received.event["id"] == f"evt_{started['executionId']}"
    told = {
        name: received.event["data"][name]
        for name in ("sandboxId", "executionType", "status", "exitCode", "stdoutBytes")
    }
    assert told == {"sandboxId": sandbox_id, "executionType": kind, "status": "FAILED", "exitCode": 3, "stdoutBytes": 5}
    assert "hello" not in received.body.decode()
