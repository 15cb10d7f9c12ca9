"""Limits under a rush: of an account's sandboxes over real sockets, and of the commands in one real sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests import leaks
from tests.client import ApiError, Client
from tests.plane import Api, Plane, expect
from tests.served import served
from tests.server import AtollServer

CEILING = 100
MOST_COMMANDS = 256
_STARTING_AT_ONCE = 8


@pytest.mark.both_databases
@pytest.mark.spec("SA-413", "SA-419", "SA-423", "SA-424", "SA-426", "SA-439")
async def test_of_two_hundred_creates_at_once_as_many_are_admitted_as_the_ceiling_allows(plane: Plane) -> None:
    plane.driver.faults.hold("create")  # admission is the subject, not a hundred sandboxes
    await plane.sql("UPDATE accounts SET active_sandbox_limit = :n", n=CEILING)
    keys = [f"key-{number}" for number in range(2 * CEILING)]
    async with served(plane) as api:
        answers = await _create_at_once(plane, api, keys)
        admitted = {key for key, answer in zip(keys, answers, strict=True) if answer.status_code == 201}
        assert len(admitted) == CEILING
        assert len({answer.json()["sandbox"]["sandboxId"] for answer in answers if answer.is_success}) == CEILING
        _assert_refused([answer for answer in answers if answer.status_code != 201])
        again = await _create_at_once(plane, api, keys)
        assert {key for key, answer in zip(keys, again, strict=True) if answer.status_code == 200} == admitted
        _assert_refused([answer for answer in again if answer.status_code != 200])
        assert expect(await api.get("/sandboxes"), 200)["totalCount"] == CEILING


async def _create_at_once(plane: Plane, api: Api, keys: list[str]) -> list[httpx.Response]:
    """Each on a new connection: one that was kept for some seconds may be closed by the server as it is used."""
    every = httpx.Limits(max_connections=len(keys))
    async with httpx.AsyncClient(base_url=api.client.base_url, limits=every, timeout=120) as client:
        caller = Api(client, api.token, api.ids, plane.shapes)
        return list(await asyncio.gather(*(caller.create(idempotencyKey=key) for key in keys)))


def _assert_refused(answers: list[httpx.Response]) -> None:
    assert len(answers) == CEILING
    for answer in answers:
        body = expect(answer, 429)
        assert (body["success"], answer.headers["retry-after"]) == (False, "30")
        assert body["data"] == {"retryable": True, "retryAfterSeconds": 30, "reason": "account_concurrency_exceeded"}


def _start(client: Client, sandbox_id: str) -> str:
    return client.start(sandbox_id, ["sleep", "10000"])


def _refusal(client: Client, sandbox_id: str) -> tuple[int, str]:
    with pytest.raises(ApiError) as refused:
        _start(client, sandbox_id)
    assert refused.value.body["success"] is False
    assert refused.value.body["data"]["retryable"] is True
    return refused.value.status, refused.value.body["errorCode"]


@pytest.mark.gvisor
@pytest.mark.spec("SA-398")
def test_256_commands_run_in_one_sandbox_and_one_more_is_refused_until_one_ends(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    sandbox_id = client.ready("full", template_id=client.make_template("large", zClouds=4))
    ends_when_told = client.start(sandbox_id, ["sh", "-c", "mkfifo /tmp/end; echo up; cat /tmp/end"])
    callers = [server.client() for _ in range(_STARTING_AT_ONCE)]

    def start_some(caller: Client, count: int) -> list[str]:
        return [_start(caller, sandbox_id) for _ in range(count)]

    share, rest = divmod(MOST_COMMANDS - 2, _STARTING_AT_ONCE)
    with ThreadPoolExecutor(_STARTING_AT_ONCE) as pool:
        counts = [share + (number < rest) for number in range(_STARTING_AT_ONCE)]
        started = [one for some in pool.map(start_some, callers, counts) for one in some]
    # One place is left for the command that tells the first one to end; a started one takes it meanwhile.
    started.append(_start(client, sandbox_id))
    assert len({ends_when_told, *started}) == MOST_COMMANDS
    assert _refusal(client, sandbox_id) == (429, "TOO_MANY_EXECUTIONS")
    with pytest.raises(ApiError) as executed:
        client.execute(sandbox_id, ["true"])
    assert executed.value.body["errorCode"] == "TOO_MANY_EXECUTIONS"

    client.kill(sandbox_id, started[0], "SIGKILL")
    assert client.follow(sandbox_id, started[0]).reason == "canceled"
    assert client.execute(sandbox_id, ["sh", "-c", "echo on > /tmp/end"]).exit_code == 0
    assert client.follow(sandbox_id, ends_when_told).stdout == b"up\non\n"
    started += [_start(client, sandbox_id) for _ in range(2)]
    assert _refusal(client, sandbox_id) == (429, "TOO_MANY_EXECUTIONS")

    running = [client.read(sandbox_id, one)["state"] == "running" for one in started]
    assert running == [False] + [True] * MOST_COMMANDS
    with contextlib.closing(sqlite3.connect(f"file:{server.data_dir / 'atoll.db'}?mode=ro", uri=True)) as database:
        counted = database.execute(
            "SELECT state, count(*) FROM commands WHERE kind = 'START' GROUP BY state"
        ).fetchall()
    assert dict(counted) == {"RUNNING": MOST_COMMANDS, "EXITED": 2}, "what was refused is on record"
    client.terminate(sandbox_id)
    leaks.wait_until_nothing_left(server.data_dir, before)
