"""The execution webhook of a create: which are taken, what is kept of them, and what is ever shown."""

from __future__ import annotations

import asyncio
import base64
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.plane import Api, Plane, expect, refused
from tests.webhook_receiver import HOST, SECRET, SECRET_BYTES_TEXT, URL, WEBHOOK

from atoll.store.tables import metadata

OTHER_SECRET = "whsec_" + base64.b64encode(b"o" * 24).decode()


async def nothing_exists(plane: Plane) -> bool:
    tables = ("sandboxes", "execution_webhooks", "webhook_deliveries")
    return all([await plane.sql(f"SELECT * FROM {table}") == [] for table in tables])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://hooks.example.com/x", "https"),
        ("https://hooks.example.com:8443/x", "port"),
        ("https://user:pass@hooks.example.com/x", "credentials"),
        ("https://hooks.example.com/x#part", "fragment"),
        ("https://93.184.216.34/x", "IP address"),
        ("https://2130706433/x", "IP address"),
        ("https://[::1]/x", "IP address"),
        ("https://localhost/x", "internal"),
        ("https://printer.local/x", "internal"),
        ("https://db.internal/x", "internal"),
        ("https://api.default.svc/x", "internal"),
    ],
)
@pytest.mark.spec("SA-289", "SA-290", "SA-291", "SA-292", "SA-293", "SA-294")
async def test_a_url_that_breaks_a_rule_is_refused_and_nothing_exists(
    plane: Plane, api: Api, url: str, words: str
) -> None:
    refused(await api.create(executionWebhook={"url": url, "secret": SECRET}), 400, "executionWebhook.url", words)
    assert await nothing_exists(plane)


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "172.16.9.9",
        "192.168.1.1",
        "127.0.0.1",
        "169.254.169.254",
        "100.64.1.1",
        "::1",
        "fd00::1",
        "fe80::1",
        "::ffff:10.0.0.1",
    ],
)
@pytest.mark.spec("SA-295")
async def test_a_host_that_leads_into_a_private_network_is_refused(
    plane: Plane, api: Api, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(family, socket.SOCK_STREAM, 6, "", (address, 0))])
    refused(await api.create(executionWebhook=WEBHOOK), 400, "executionWebhook.url", "not public")
    assert await nothing_exists(plane)


async def test_a_host_that_has_no_address_yet_is_taken(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*rest: Any, **options: Any) -> list[Any]:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    expect(await api.create(executionWebhook=WEBHOOK), 201)


async def test_nobody_has_names_looked_up_who_may_not_create(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *question, **_: asked.append(question))
    reader = await plane.caller(scopes=["quave:read"])
    refused(await reader.create(executionWebhook=WEBHOOK), 403)
    assert asked == []


@pytest.mark.parametrize(
    "webhook",
    [
        {"url": URL},
        {"secret": SECRET},
        {},
        {"url": URL, "secret": SECRET_BYTES_TEXT},
        {"url": URL, "secret": "whsec_" + base64.b64encode(b"s" * 23).decode()},
        {"url": URL, "secret": "whsec_" + base64.b64encode(b"s" * 65).decode()},
        {"url": URL, "secret": "whsec_not base64 at all, really not"},
        {"url": URL, "secret": "whsec_" + "A" * 10_000},
        {"url": URL, "secret": 5},
        {"url": [URL], "secret": SECRET},
        {"url": URL, "secret": SECRET, "events": []},
        URL,
        [],
    ],
)
@pytest.mark.spec("SA-289", "SA-296")
async def test_a_webhook_without_a_url_or_a_good_secret_is_refused(plane: Plane, api: Api, webhook: Any) -> None:
    answer = await api.create(executionWebhook=webhook)
    refused(answer, 400, "executionWebhook")
    assert SECRET_BYTES_TEXT not in answer.text
    assert await nothing_exists(plane)


@pytest.mark.both_databases
@pytest.mark.spec("SA-053", "SA-297")
async def test_only_the_host_is_ever_shown(plane: Plane, api: Api) -> None:
    created = await api.create(executionWebhook=WEBHOOK, idempotencyKey="k")
    sandbox_id = expect(created, 201)["sandbox"]["sandboxId"]
    answers = [
        created,
        await api.create(executionWebhook=WEBHOOK, idempotencyKey="k"),
        await api.get("/sandbox", sandboxId=sandbox_id, waitSeconds=25),
        await api.get("/sandboxes"),
        await api.post("/sandbox/terminate", sandboxId=sandbox_id),
    ]
    for answer in answers:
        assert SECRET_BYTES_TEXT not in answer.text
        assert "url-secret-token" not in answer.text
        body = answer.json()
        sandbox = body["sandbox"] if "sandbox" in body else body["sandboxes"][0]
        assert sandbox["executionWebhook"] == {"host": HOST}
    assert "executionWebhook" not in expect(await api.create(), 201)["sandbox"]


@pytest.mark.both_databases
@pytest.mark.spec("SA-115")
async def test_the_webhook_of_the_first_create_stays(plane: Plane, api: Api) -> None:
    first = expect(await api.create(executionWebhook=WEBHOOK, idempotencyKey="k"), 201)["sandbox"]
    kept = await plane.sql("SELECT url, secret FROM execution_webhooks")
    for other in (
        {"url": "https://other.example.com/", "secret": OTHER_SECRET},
        {"url": URL, "secret": OTHER_SECRET},
        None,
    ):
        body = {} if other is None else {"executionWebhook": other}
        again = expect(await api.create(idempotencyKey="k", **body), 200)["sandbox"]
        assert again["sandboxId"] == first["sandboxId"]
        assert again["executionWebhook"] == {"host": HOST}
    assert await plane.sql("SELECT url, secret FROM execution_webhooks") == kept


@pytest.mark.spec("SA-115")
async def test_a_sandbox_that_began_without_a_webhook_gets_none(plane: Plane, api: Api) -> None:
    expect(await api.create(idempotencyKey="k"), 201)
    again = expect(await api.create(idempotencyKey="k", executionWebhook=WEBHOOK), 200)["sandbox"]
    assert "executionWebhook" not in again
    assert await plane.sql("SELECT * FROM execution_webhooks") == []


@pytest.mark.both_databases
@pytest.mark.spec("SA-297")
async def test_neither_the_secret_nor_the_url_is_stored_or_logged_in_clear(
    plane: Plane, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = await api.ready_sandbox(executionWebhook=WEBHOOK)
    started = await api.start(sandbox["sandboxId"], "true")
    await api.finished(sandbox["sandboxId"], started["executionId"])
    await dump_lacks(plane, SECRET_BYTES_TEXT.encode(), base64.b64decode(SECRET_BYTES_TEXT), b"url-secret-token")
    printed = "".join(capsys.readouterr())
    assert "request" in printed
    assert SECRET_BYTES_TEXT not in printed
    assert "url-secret-token" not in printed


async def dump_lacks(plane: Plane, *secrets: bytes) -> None:
    """No value of any row of any table, and no file of the database, holds one of them."""
    seen = 0
    for table in metadata.sorted_tables:
        for row in await plane.sql(f'SELECT * FROM "{table.name}"'):
            for value in row:
                raw = bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                seen += 1
                assert not any(secret in raw for secret in secrets), table.name
    assert seen > 50
    files = await asyncio.to_thread(database_files, plane.services.settings.data_dir)
    assert not any(secret in content for content in files for secret in secrets)


def database_files(folder: Path) -> list[bytes]:
    """What an SQLite database has on disk, its log included; nothing on PostgreSQL."""
    return [file.read_bytes() for file in folder.glob("atoll.db*")]
