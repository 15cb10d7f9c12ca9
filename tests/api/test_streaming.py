"""Over a real socket: what only a real server shows."""

from __future__ import annotations

import asyncio

from tests.plane import Plane, decoded, expect, until
from tests.served import served


async def test_output_of_many_megabytes_arrives_whole_page_by_page(plane: Plane) -> None:
    async with served(plane) as api:
        sandbox_id = (await api.ready_sandbox())["sandboxId"]
        total = 3_500_000
        execution = await api.start(sandbox_id, "sh", "-c", f"head -c {total} /dev/zero")
        _, events = await api.finished(sandbox_id, execution["executionId"])
        assert sum(len(decoded(event.get("stdout"))) for event in events) == total


async def test_a_client_that_goes_away_leaves_no_command_without_its_record(plane: Plane) -> None:
    async with served(plane) as api:
        sandbox_id = (await api.ready_sandbox())["sandboxId"]
        body = {"sandboxId": sandbox_id, "command": ["sleep", "1"]}
        try:
            async with asyncio.timeout(0.3):
                await api.post("/sandbox/execute", **body)
        except TimeoutError:
            pass

        async def recorded() -> bool:
            rows = await plane.sql("SELECT state, exit_code FROM commands")
            return rows == [("EXITED", 0)]

        await until(recorded)
        assert (await api.sandbox(sandbox_id))["status"] == "READY"


async def test_a_body_that_is_too_large_is_answered_before_it_is_read(plane: Plane) -> None:
    async with served(plane) as api:
        reader, writer = await asyncio.open_connection(api.client.base_url.host, api.client.base_url.port)
        try:
            writer.write(
                b"POST /api/public/v1/sandbox/create HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                + f"Authorization: {api.token}\r\nContent-Length: 99999999999\r\n\r\n".encode()
            )
            status = await asyncio.wait_for(reader.readline(), 10)
            assert b"413" in status
        finally:
            writer.close()
        expect(await api.get("/sandboxes"), 200)
