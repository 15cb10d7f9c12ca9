"""Files of a sandbox over its gateway, with the real agent behind the fake driver and a real socket in front."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import delete
from tests.plane import Api, decoded, expect, open_plane, refused, until
from tests.served import served

from atoll.store.tables import memberships

EVERYTHING = ["exec", "file", "status"]


class Files:
    """The gateway of one sandbox, for the holder of a token."""

    def __init__(self, api: Api, sandbox_id: str, token: str) -> None:
        self.client = api.client
        self.api = api
        self.sandbox_id = sandbox_id
        self.base = f"/gateway/{sandbox_id}"
        self.headers = {"Authorization": f"Bearer {token}"}

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = self.headers | options.pop("headers", {})
        return await self.client.request(method, self.base + path, headers=headers, **options)

    async def put(self, path: str, data: Any, **query: str) -> dict[str, Any]:
        answer = await self.call("PUT", "/files", params={"path": path, **query}, content=data)
        entry: dict[str, Any] = expect(answer, 200)["entry"]
        return entry

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.call("GET", "/files", params={"path": path}, headers=headers)

    async def entries(self, path: str = "", **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = expect(
            await self.call("GET", "/files/list", params={"path": path, **query}), 200
        )["entries"]
        return found

    async def run(self, script: str) -> str:
        answer = await self.api.post("/sandbox/execute", sandboxId=self.sandbox_id, command=["sh", "-c", script])
        result = expect(answer, 200)["result"]
        assert result["exitCode"] == 0, result
        return decoded(result.get("stdout")).decode()


async def opened(api: Api, *scopes: str) -> Files:
    sandbox = await api.ready_sandbox()
    session = expect(
        await api.post("/sandbox/session", sandboxId=sandbox["sandboxId"], scopes=list(scopes) or EVERYTHING), 200
    )
    return Files(api, sandbox["sandboxId"], session["token"])


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with open_plane() as plane, served(plane) as made:
        yield made


@pytest.fixture
async def files(api: Api) -> Files:
    return await opened(api)


@pytest.mark.spec("SA-358", "SA-450", "SA-451")
async def test_a_file_is_written_read_and_deleted(files: Files) -> None:
    data = os.urandom(2_000_000)
    entry = await files.put("made/on/the/way.bin", data, mode="0640")
    assert entry["path"] == "/workspace/made/on/the/way.bin" and entry["name"] == "way.bin"
    assert (entry["type"], entry["size"], entry["mode"], entry["linkTarget"]) == ("file", len(data), "0640", None)
    written = datetime.fromisoformat(entry["modifiedAt"])
    assert abs((datetime.now(UTC) - written).total_seconds()) < 60
    assert await files.run("stat -c '%u %g %a' /workspace/made/on/the/way.bin") == "1001 1001 640\n"
    answer = await files.get("/workspace/made/on/the/way.bin")
    assert answer.status_code == 200 and answer.content == data
    assert answer.headers["content-length"] == str(len(data)) and answer.headers["accept-ranges"] == "bytes"
    expect(await files.call("DELETE", "/files", params={"path": "made/on/the/way.bin"}), 200)
    refused(await files.get("made/on/the/way.bin"), 404)


@pytest.mark.spec("SA-450")
@pytest.mark.parametrize(
    ("wanted", "status", "expected"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=3-", 206, b"3456789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=-99", 206, b"0123456789"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=5-2", 200, b"0123456789"),
        ("bytes=0-1,3-4", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ],
)
async def test_a_range_is_read(files: Files, wanted: str, status: int, expected: bytes) -> None:
    await files.put("digits", b"0123456789")
    answer = await files.get("digits", Range=wanted)
    assert (answer.status_code, answer.content) == (status, expected)
    if status == 206:
        start = b"0123456789".index(expected)
        assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/10"


@pytest.mark.spec("SA-450")
async def test_a_range_behind_the_end_and_a_file_that_has_not_changed(files: Files) -> None:
    await files.put("digits", b"0123456789")
    answer = await files.get("digits", Range="bytes=10-")
    refused(answer, 416)
    assert answer.headers["content-range"] == "bytes */10"
    tag = (await files.get("digits")).headers["etag"]
    assert (await files.get("digits", **{"If-None-Match": tag})).status_code == 304
    assert (await files.get("digits", Range="bytes=1-2", **{"If-Range": tag})).status_code == 206
    await files.put("digits", b"9876543210")
    changed = await files.get("digits", Range="bytes=1-2", **{"If-Range": tag})
    assert (changed.status_code, changed.content) == (200, b"9876543210")


@pytest.mark.spec("SA-456")
async def test_paths_and_links_that_lead_outside_are_refused(files: Files) -> None:
    await files.run("ln -s /etc out; ln -s ../etc/passwd up; mkdir in; ln -s ../in in/self; echo x > in/file")
    for path in ("../etc/passwd", "/etc/passwd", "out/passwd", "up", "in/../../etc/passwd", "/workspace/../etc"):
        for method, route in (("GET", "/files"), ("PUT", "/files"), ("GET", "/archive"), ("GET", "/files/list")):
            assert refused(await files.call(method, route, params={"path": path}), 400)["errorCode"] == "PATH_ESCAPE"
        refused(await files.call("POST", "/files/move", json={"from": "in/file", "to": path + "/x"}), 400)
    assert (await files.get("in/self/file")).content == b"x\n"
    entry = expect(await files.call("GET", "/files/stat", params={"path": "out"}), 200)["entry"]
    assert (entry["type"], entry["linkTarget"], entry["path"]) == ("symlink", "/etc", "/workspace/out")


@pytest.mark.spec("SA-359")
async def test_files_need_the_scope_file(api: Api) -> None:
    files = await opened(api, "exec", "status")
    calls = [("GET", "/files?path=a"), ("PUT", "/files?path=a"), ("DELETE", "/files?path=a"), ("GET", "/files/list")]
    calls += [("GET", "/files/stat?path=a"), ("POST", "/files/mkdir"), ("POST", "/files/move"), ("GET", "/files/watch")]
    for method, path in [*calls, ("GET", "/archive"), ("PUT", "/archive")]:
        assert refused(await files.call(method, path), 403)["errorCode"] == "INSUFFICIENT_SCOPE"


@pytest.mark.spec("SA-452")
async def test_folders_are_made_listed_in_pages_and_moved(files: Files) -> None:
    entry = expect(await files.call("POST", "/files/mkdir", json={"path": "a/b", "mode": "0750"}), 200)["entry"]
    assert (entry["type"], entry["mode"], entry["path"]) == ("directory", "0750", "/workspace/a/b")
    for name in ("a/b/one", "a/b/two", "c"):
        await files.put(name, b"x")
    assert [it["path"] for it in await files.entries(depth=32)] == [
        f"/workspace/{name}" for name in ("a", "a/b", "a/b/one", "a/b/two", "c")
    ]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(5):
        page = expect(await files.call("GET", "/files/list", params={"depth": "5", "limit": "1", **cursor}), 200)
        seen += [it["name"] for it in page["entries"]]
        cursor = {"cursor": page["nextCursor"]} if page["nextCursor"] else {}
    assert seen == ["a", "b", "one", "two", "c"] and cursor == {}
    refused(await files.call("POST", "/files/move", json={"from": "c", "to": "a/b/one"}), 409)
    moved = await files.call("POST", "/files/move", json={"from": "c", "to": "a/b/one", "replace": True})
    assert expect(moved, 200)["entry"]["path"] == "/workspace/a/b/one"
    refused(await files.call("DELETE", "/files", params={"path": "a"}), 409)
    expect(await files.call("DELETE", "/files", params={"path": "a", "recursive": "true"}), 200)
    assert await files.entries() == []


@pytest.mark.spec("SA-440")
@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/files", "path"),
        ("PUT", "/files?path=a&mode=999", "mode"),
        ("PUT", "/files?path=a%00b", "path"),
        ("GET", "/files/list?depth=33", "depth"),
        ("GET", "/files/list?limit=0", "limit"),
        ("GET", "/files/list?cursor=%21", "cursor"),
        ("DELETE", "/files?path=a&recursive=yes", "recursive"),
    ],
)
async def test_a_malformed_call_names_its_field(files: Files, method: str, path: str, field: str) -> None:
    refused(await files.call(method, path), 400, field)


async def test_a_name_that_is_no_text_can_be_listed_and_read(files: Files) -> None:
    answer = await files.call("PUT", "/files?path=%ff%fe", content=b"odd")
    assert expect(answer, 200)["entry"]["rawPath"] == "/workspace/%FF%FE"
    (entry,) = await files.entries()
    assert entry["name"] == "\ufffd\ufffd" and entry["path"] == "/workspace/\ufffd\ufffd"
    assert (await files.call("GET", f"/files?path={entry['rawPath']}")).content == b"odd"
    moved = await files.call("POST", "/files/move", json={"rawFrom": entry["rawPath"], "to": "snow ☃ +&="})
    assert "rawPath" not in expect(moved, 200)["entry"]
    assert (await files.get("snow ☃ +&=")).content == b"odd"


@pytest.mark.spec("SA-451")
async def test_a_body_that_breaks_off_changes_nothing(files: Files) -> None:
    await files.put("file", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 1_000_000
        raise RuntimeError("the client dies")

    with pytest.raises(RuntimeError):
        await files.call("PUT", "/files", params={"path": "file"}, content=broken())

    async def alone() -> bool:
        return len(await files.entries()) == 1

    await until(alone)
    assert (await files.get("file")).content == b"old"


@pytest.mark.spec("SA-452")
async def test_changes_are_told_as_they_happen(files: Files) -> None:
    url = files.base + "/files/watch?recursive=true"
    async with asyncio.timeout(30), files.client.stream("GET", url, headers=files.headers) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()

        async def next_event() -> tuple[str, str]:
            async for line in lines:
                if line.startswith("event: "):
                    data = json.loads((await anext(lines)).removeprefix("data: "))
                    return line.removeprefix("event: "), data["path"]
            raise AssertionError("the stream has ended")

        assert await next_event() == ("ready", "/workspace")
        await files.put("new/file", b"x")
        seen = set()
        while ("created", "/workspace/new/file") not in seen:
            seen.add(await next_event())
        assert ("created", "/workspace/new") in seen
        await files.run("rm -r new")
        while ("deleted", "/workspace/new") not in seen:
            seen.add(await next_event())


@pytest.mark.spec("SA-453")
async def test_an_archive_goes_out_and_comes_in(files: Files) -> None:
    await files.run("mkdir -p src/deep; echo hello > src/deep/file; chmod 755 src/deep/file; ln -s deep/file src/link")
    answer = await files.call("GET", "/archive", params={"path": "src"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert sorted(archive.getnames()) == ["deep", "deep/file", "link"]
    unpacked = await files.call("PUT", "/archive", params={"path": "copy"}, content=answer.content)
    counts = expect(unpacked, 200)
    assert (counts["files"], counts["folders"], counts["links"], counts["bytes"]) == (1, 1, 1, 6)
    assert await files.run("cat copy/link; stat -c '%a %u' copy/deep/file") == "hello\n755 1001\n"


@pytest.mark.spec("SA-453", "SA-456")
async def test_a_hostile_archive_is_refused_by_name(files: Files) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("out/evil"))
    answer = await files.call("PUT", "/archive", content=data.getvalue())
    assert refused(answer, 400, "out/evil")["errorCode"] == "PATH_ESCAPE"
    refused(await files.call("PUT", "/archive", content=b"this is no tar" * 99), 400)
    assert await files.run("ls /tmp") == ""


@pytest.mark.spec("SA-354", "SA-457")
async def test_a_transfer_ends_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.ops.gateway_files.CHECK_SECONDS", 0.1)
    async with open_plane() as plane, served(plane) as api:
        files = await opened(api)
        url = files.base + "/files/watch"
        async with asyncio.timeout(20), files.client.stream("GET", url, headers=files.headers) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: ready"
            await plane.services.database.write(lambda tx: tx.connection.execute(delete(memberships)))
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in lines:
                    pass


@pytest.mark.spec("SA-354", "SA-449", "SA-457")
async def test_input_ends_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.ops.gateway_files.CHECK_SECONDS", 0.1)
    async with open_plane() as plane, served(plane) as api:
        files = await opened(api)
        process = expect(await files.call("POST", "/processes", json={"command": ["tee", "got"], "stdin": True}), 201)

        async def slow() -> AsyncIterator[bytes]:
            for _ in range(60):
                yield b"more\n"
                await asyncio.sleep(0.05)

        async def comes() -> bool:
            return any(entry["size"] for entry in await files.entries())

        path = f"/processes/{process['execution']['executionId']}/stdin"
        async with asyncio.timeout(20):
            writing = asyncio.create_task(files.call("POST", path, content=slow()))
            await until(comes)  # what stands against it at its beginning is another subject
            await plane.services.database.write(lambda tx: tx.connection.execute(delete(memberships)))
            refused(await writing, 401, "left the account")


@pytest.mark.parametrize("method, path", [("PUT", "/files?path=file"), ("PUT", "/archive"), ("POST", "/stdin")])
async def test_a_body_that_stands_still_is_given_up(
    files: Files, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    monkeypatch.setattr("atoll.api.gateway.connected.STALL_LIMIT_SECONDS", 0.3)
    process = expect(await files.call("POST", "/processes", json={"command": ["cat"], "stdin": True}), 201)
    if path == "/stdin":
        path = f"/processes/{process['execution']['executionId']}/stdin"

    async def stalled() -> AsyncIterator[bytes]:
        yield bytes(512)
        await asyncio.sleep(2)

    async with asyncio.timeout(20):
        refused(await files.call(method, path, content=stalled()), 400, "stood still for 0.3 seconds")
    assert await files.entries() == []


async def test_a_client_that_does_not_read_holds_up_nobody(files: Files) -> None:
    await files.run("truncate -s 300M big")
    stalled = []
    for _ in range(10):
        request = files.client.build_request("GET", files.base + "/files?path=big", headers=files.headers)
        stalled.append(await files.client.send(request, stream=True))
    try:
        async with asyncio.timeout(20):
            assert (await files.run("echo quick")) == "quick\n"
            assert len((await files.get("big", Range="bytes=0-49999999")).content) == 50_000_000
    finally:
        for answer in stalled:
            await answer.aclose()
