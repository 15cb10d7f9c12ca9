"""Many at once and many in a row, and what is left of them."""

from __future__ import annotations

import pytest
from tests import holdings, leaks
from tests.crowd import create_at_once, terminate_at_once
from tests.server import AtollServer

pytestmark = pytest.mark.gvisor

GIGABYTE = 1_000_000_000
GROWTH_KB = 64 * 1024


def test_fifty_creates_at_once_all_become_ready_and_leave_nothing(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    created = create_at_once(server, [f"fifty-{number}" for number in range(50)])
    failed = [it.sandbox for it in created if it.sandbox["status"] != "READY"]
    assert not failed
    assert len({it.sandbox["sandboxId"] for it in created}) == 50
    assert len(leaks.instances(server.data_dir)) == 50
    with server.client() as client:
        names = [client.execute(it.sandbox["sandboxId"], ["true"]).exit_code for it in created[:10]]
    assert names == [0] * 10
    terminate_at_once(server, [it.sandbox["sandboxId"] for it in created])
    leaks.wait_until_nothing_left(server.data_dir, before, seconds=60)


@pytest.mark.spec("SA-124")
def test_twenty_creates_with_one_key_make_one_sandbox(server: AtollServer) -> None:
    created = create_at_once(server, ["the same"] * 20)
    assert len({it.sandbox["sandboxId"] for it in created}) == 1
    assert len(leaks.instances(server.data_dir)) == 1


def test_a_thousand_executes_leak_nothing(server: AtollServer) -> None:
    client = server.client()
    sandbox_id = client.ready("thousand")
    for _ in range(200):
        assert client.execute(sandbox_id, ["true"]).exit_code == 0
    before = holdings.look(server, client, sandbox_id)
    for _ in range(1_000):
        assert client.execute(sandbox_id, ["true"]).exit_code == 0
    assert not holdings.growth_beyond(before, holdings.look(server, client, sandbox_id))


@pytest.mark.spec("SA-231", "SA-268", "SA-269", "SA-273")
def test_a_gigabyte_of_output_does_not_grow_the_server(server: AtollServer) -> None:
    argv = ["head", "-c", str(GIGABYTE), "/dev/zero"]
    client = server.client()
    sandbox_id = client.ready("gigabyte", template_id=client.make_template("large", zClouds=4))
    client.follow(sandbox_id, client.start(sandbox_id, ["head", "-c", "8000000", "/dev/zero"]))
    client.execute(sandbox_id, ["head", "-c", "8000000", "/dev/zero"])
    before = leaks.resources(server.pid).resident_kb
    leaks.reset_peak_resident(server.pid)

    unread = client.start(sandbox_id, argv)
    client.until(sandbox_id, "READY", seconds=120)
    late = client.read(sandbox_id, unread)
    assert late["outputTruncated"]
    assert late["stdoutBytes"] == GIGABYTE
    for output in (
        client.follow(sandbox_id, unread, seconds=120),
        client.follow(sandbox_id, client.start(sandbox_id, argv), seconds=120),
    ):
        assert len(output.stdout) + output.dropped_bytes == GIGABYTE
        assert not output.stdout.strip(b"\0")
    executed = client.execute(sandbox_id, argv)
    assert executed.stdout_truncated
    assert executed.exit_code == 0

    assert leaks.peak_resident_kb(server.pid) - before < GROWTH_KB
