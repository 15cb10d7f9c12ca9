"""Volumes, snapshots, pause and resume in real gVisor sandboxes, across crashes of the server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests import leaks
from tests.client import ApiError, Client, ServerGone
from tests.server import AtollServer, wait_until

pytestmark = pytest.mark.gvisor


def ready(client: Client, key: str, mode: str, **body: Any) -> dict[str, Any]:
    access = client.access
    created = client.call(
        "POST",
        "/sandbox/create",
        {
            "accountId": access.account_id,
            "appId": access.app_id,
            "templateId": access.template_id,
            "workloadProfile": "QUAVE_INTERACTIVE_AGENT",
            "ownerKind": "AGENT_CONVERSATION",
            "ownerId": "owner",
            "region": access.region,
            "idempotencyKey": key,
            "persistenceMode": mode,
            **body,
        },
    )["sandbox"]
    sandbox: dict[str, Any] = client.settled(created["sandboxId"])
    assert sandbox["status"] == "READY", sandbox
    return sandbox


def said(client: Client, sandbox: dict[str, Any], script: str) -> str:
    result = client.execute(sandbox["sandboxId"], ["sh", "-c", script])
    assert result.exit_code == 0, result
    return result.stdout.decode()


def post(client: Client, path: str, sandbox: dict[str, Any], **body: Any) -> dict[str, Any]:
    body = {"accountId": client.access.account_id, "sandboxId": sandbox["sandboxId"], **body}
    answered: dict[str, Any] = client.call("POST", path, body)["sandbox"]
    return answered


def archives(server: AtollServer) -> list[Path]:
    return sorted((server.data_dir / "volumes").glob("*/snapshots/*.tar.zst"))


@pytest.mark.spec("SA-070", "SA-091", "SA-096", "SA-148", "SA-149", "SA-168", "SA-169", "SA-411")
def test_a_workspace_survives_pause_and_resume_in_gvisor(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    sandbox = ready(client, "snapshot", "SNAPSHOT")
    assert said(client, sandbox, "id -u; id -g; stat -c '%u %g' .") == "1001\n1001\n1001 1001\n"
    said(
        client,
        sandbox,
        "mkdir d && printf '#!/bin/sh\\necho ran' > d/run && chmod 750 d/run && touch -d 2001-02-03T04:05:06.789 d/run"
        " && ln -s d/run link && ln d/run hard && truncate -s 5M sparse && git init -q repo && cd repo && echo x > f"
        " && git add f && git -c user.name=a -c user.email=a@b commit -qm m",
    )
    look = (
        "stat -c '%n %a %u %.Y %h' d/run hard; ./link; stat -c '%s' sparse; git -C repo status --short; git -C repo log"
    )
    told = said(client, sandbox, look)
    for _ in range(2):
        assert post(client, "/sandbox/pause", sandbox)["status"] == "SUSPENDED"
        assert not leaks.processes(server.data_dir)
        leaks.wait_until_nothing_left(server.data_dir, before)  # the kernel takes a moment for interfaces
        assert post(client, "/sandbox/resume", sandbox)["status"] == "RESUMING"
        assert client.settled(sandbox["sandboxId"])["status"] == "READY"
        assert said(client, sandbox, look) == told
    client.terminate(sandbox["sandboxId"])
    leaks.wait_until_nothing_left(server.data_dir, before, seconds=30)
    assert len(archives(server)) == 2


@pytest.mark.spec("SA-072", "SA-073", "SA-075", "SA-092", "SA-093", "SA-094", "SA-095", "SA-150")
@pytest.mark.parametrize("mode", ["DIRECTORY", "BOTH"])
def test_the_live_directory_in_gvisor(server: AtollServer, mode: str) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    sandbox = ready(client, "first", mode)
    look = "cd persist && stat -c '%n %a %u %g' . d d/f && cat d/f"
    script = (
        f"mkdir persist/d && echo one > persist/d/f && chmod 600 persist/d/f && touch -d 2001-02-03 persist/d/f; {look}"
    )
    told = said(client, sandbox, script)
    assert told == ". 2775 1001 1001\nd 2775 1001 1001\nd/f 664 1001 1001\none\n"
    assert said(client, sandbox, "stat -c %y persist/d/f")[:4] != "2001"
    volumes = server.data_dir / "volumes"
    wait_until(
        lambda: [file.read_text() for file in volumes.glob("*/data/d/f")] == ["one\n"], seconds=5, what="it is stored"
    )
    said(
        client,
        sandbox,
        "cd persist && git init -q repo && cd repo && echo x > f && git add f"
        " && git -c user.name=a -c user.email=a@b commit -qm m && git log --oneline && tar -cf /tmp/t.tar . "
        " && mkdir ../copy && tar -C ../copy -xf /tmp/t.tar",
    )
    assert post(client, "/sandbox/pause", sandbox)["status"] == "SUSPENDED"
    assert not leaks.processes(server.data_dir)
    leaks.wait_until_nothing_left(server.data_dir, before)
    assert said(client, sandbox, look) == told
    assert said(client, sandbox, "cd persist/copy && git status --short && cat f") == "x\n"
    client.terminate(sandbox["sandboxId"])
    second = ready(client, "second", "DIRECTORY", volumeName=sandbox["volumeName"])
    assert said(client, second, look) == told


@pytest.mark.spec("SA-034", "SA-071")
def test_a_mount_path_shows_in_no_other_sandbox_of_the_image(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    query: dict[str, Any] = {"templateId": client.access.template_id}
    digest = client.call("GET", "/sandbox-template", **query)["currentRevision"]["imageDigest"]
    body = {**query, "imageDigest": digest, "persistenceMode": "DIRECTORY", "mountPath": "/data/here"}
    client.call("POST", "/sandbox-template/revision", body)
    first = ready(client, "first", "DIRECTORY")
    told = said(client, first, "echo x > /data/here/f && stat -c '%n %a %u' /data /data/here /data/here/f . / /usr")
    assert told == "/data 755 0\n/data/here 2775 1001\n/data/here/f 664 1001\n. 755 1001\n/ 755 0\n/usr 755 0\n"
    second = ready(client, "second", "EPHEMERAL")
    assert said(client, second, "ls -A; ls -d /data 2>/dev/null || echo none") == "none\n"
    for sandbox in (first, second):
        client.terminate(sandbox["sandboxId"])
    leaks.wait_until_nothing_left(server.data_dir, before, seconds=30)


COUNT_IN_TWO_PLACES = """
mkdir middle && head -c 60000000 /dev/urandom > middle/ballast
python3 - <<'END'
import os
n = 0
while True:
    n += 1
    for name in ("aaa", "zzz"):
        with open(name + ".new", "w") as file:
            file.write(str(n))
        os.rename(name + ".new", name)
END
"""


@pytest.mark.spec("SA-148", "SA-166")
def test_a_snapshot_is_of_one_moment_and_a_pause_given_up_lets_commands_go_on(server: AtollServer) -> None:
    client = server.client()
    sandbox = ready(client, "first", "SNAPSHOT")
    client.start(sandbox["sandboxId"], ["sh", "-c", COUNT_IN_TWO_PLACES])
    read = "cat zzz 2>/dev/null || echo 0"
    wait_until(lambda: int(said(client, sandbox, read)) > 0, seconds=30, what="it counts")
    with pytest.raises(ApiError) as refused:
        post(client, "/sandbox/pause", sandbox, snapshotMaxMb=1)
    assert refused.value.status == 502
    before = int(said(client, sandbox, read))
    wait_until(lambda: int(said(client, sandbox, read)) > before, seconds=10, what="it goes on")
    post(client, "/sandbox/pause", sandbox)
    first, last = (int(part) for part in said(client, sandbox, "cat aaa; echo; cat zzz").split())
    assert first - last in {0, 1}, (first, last)


def _pause_in_background(server: AtollServer, sandbox: dict[str, Any]) -> threading.Thread:
    def pause() -> None:
        with server.client() as client:
            try:
                post(client, "/sandbox/pause", sandbox)
            except (ServerGone, ApiError):
                return

    thread = threading.Thread(target=pause)
    thread.start()
    return thread


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.4, 0.8])
@pytest.mark.spec("SA-074", "SA-364")
def test_a_server_killed_during_a_pause_loses_nothing(server: AtollServer, delay: float) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    sandbox = ready(client, "pause", "SNAPSHOT")
    sum_before = said(client, sandbox, "head -c 60000000 /dev/urandom > big && sha256sum big")
    pausing = _pause_in_background(server, sandbox)
    wait_until(
        lambda: client.get(sandbox["sandboxId"])["status"] in {"SUSPENDING", "SUSPENDED"}, seconds=10, what="it pauses"
    )
    time.sleep(delay)
    server.kill()
    pausing.join(20)
    server.start()
    client = server.client()
    assert client.until(sandbox["sandboxId"], "SUSPENDED", seconds=40)["status"] == "SUSPENDED"
    leaks.wait_until_nothing_left(server.data_dir, before, seconds=30)
    assert said(client, sandbox, "sha256sum big") == sum_before


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.spec("SA-168", "SA-367")
def test_a_server_killed_during_a_resume_loses_nothing(server: AtollServer, delay: float) -> None:
    client = server.client()
    sandbox = ready(client, "resume", "BOTH")
    sum_before = said(
        client, sandbox, "head -c 60000000 /dev/urandom > big && echo x > persist/y && sha256sum big persist/y"
    )
    assert post(client, "/sandbox/pause", sandbox)["status"] == "SUSPENDED"
    post(client, "/sandbox/resume", sandbox)
    time.sleep(delay)
    server.kill()
    server.start()
    client = server.client()
    assert client.until(sandbox["sandboxId"], "READY", seconds=40)["status"] == "READY"
    assert said(client, sandbox, "sha256sum big persist/y") == sum_before
    client.terminate(sandbox["sandboxId"])
    wait_until(lambda: not leaks.snapshot(server.data_dir).mounts, seconds=30, what="no mount is left")
