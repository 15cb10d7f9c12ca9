"""A full disk, a missing image, a broken runsc, a sandbox killed from outside: each ends in a named code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import leaks
from tests.client import ApiError, Client, Json, free_port
from tests.images import default_image_digest
from tests.server import AtollServer, run_program, wait_until

pytestmark = pytest.mark.gvisor


def failed(client: Client, key: str, *, template_id: str | None = None) -> Json:
    sandbox = client.settled(client.create(key, template_id=template_id)["sandboxId"])
    assert sandbox["status"] == "FAILED", sandbox
    assert sandbox["statusReason"]
    for secret in ("/tmp", "/run", "/var", "runsc:", "Traceback"):
        assert secret not in sandbox["statusReason"]
    return sandbox


def assert_ends_cleanly(server: AtollServer, client: Client, sandbox: Json, before: leaks.Snapshot) -> None:
    """Nothing of a failed sandbox is left, and it can be terminated."""
    leaks.wait_until_nothing_left(server.data_dir, before)
    assert client.terminate(sandbox["sandboxId"])["status"] == "TERMINATED"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[AtollServer]:
    """A server whose data directory is on a file system of 64 MB and 400 files."""
    default_image_digest()
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=400,mode=700", "none", str(mount)], check=True)
    server = AtollServer(mount / "data")
    server.log_file = tmp_path / "server.log"
    try:
        server.access()
        server.start()
        yield server
    finally:
        server.close()
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(folder: Path) -> None:
    """Write until the file system has no byte left."""
    with (folder / "fill").open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def use_up_files(folder: Path) -> None:
    """Make files until the file system takes no more."""
    folder.mkdir()
    number = 0
    try:
        while True:
            (folder / str(number)).touch()
            number += 1
    except OSError:
        assert number > 0


@pytest.mark.spec("SA-066", "SA-385", "SA-387")
def test_a_disk_that_takes_no_more_files_fails_a_create_in_a_retryable_way(small_disk: AtollServer) -> None:
    client = small_disk.client()
    client.terminate(client.ready("there is room"))
    leaks.wait_until_nothing_left(small_disk.data_dir, leaks.Snapshot(*[frozenset()] * 6))
    before = leaks.snapshot(small_disk.data_dir)
    files = small_disk.data_dir.parent / "files"
    use_up_files(files)
    sandbox = failed(client, "no room")
    assert (sandbox["errorCode"], sandbox["errorRetryable"]) == ("SANDBOX_NOT_READY", True)
    assert "disk" in sandbox["statusReason"]
    assert_ends_cleanly(small_disk, client, sandbox, before)
    shutil.rmtree(files)
    assert client.ready("room again")


def test_a_disk_without_a_byte_left_refuses_and_recovers(small_disk: AtollServer) -> None:
    client = small_disk.client()
    sandbox_id = client.ready("before")
    fill(small_disk.data_dir.parent)
    try:
        sandbox = client.settled(client.create("full")["sandboxId"])
        assert (sandbox["status"], sandbox.get("errorCode")) in {("FAILED", "SANDBOX_NOT_READY"), ("READY", None)}
    except ApiError as error:
        # The database itself cannot write: the answer has the same code, and says that waiting may help.
        assert error.body.get("errorCode") == "SANDBOX_NOT_READY", error
        assert error.body["data"]["retryable"] is True
    (small_disk.data_dir.parent / "fill").unlink()
    assert client.ready("room again")
    assert client.execute(sandbox_id, ["true"]).exit_code == 0


@contextmanager
def empty_registry(folder: Path) -> Iterator[str]:
    """Debian's docker-registry on loopback, without an image; its address."""
    port = free_port()
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        answers = ["curl", "--silent", "--fail", "--output", "/dev/null", f"http://127.0.0.1:{port}/v2/"]
        wait_until(lambda: subprocess.run(answers, check=False).returncode == 0, seconds=20, what="the registry")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.spec("SA-066", "SA-400")
def test_an_image_that_the_registry_does_not_have_fails_a_create_for_good(
    idle_server: AtollServer, tmp_path: Path
) -> None:
    with empty_registry(tmp_path) as registry:
        server = idle_server
        # Images of its own, so that what the test asks for is nowhere.
        server.set_environment(ATOLL_INSECURE_REGISTRIES=registry)
        server.start()
        client = server.client()
        before = leaks.snapshot(server.data_dir)
        template_id = client.make_template("missing", imageDigest=f"{registry}/no/such@sha256:{'0' * 64}")
        sandbox = failed(client, "missing image", template_id=template_id)
        assert (sandbox["errorCode"], sandbox["errorRetryable"]) == ("INVALID_REQUEST", False)
        assert_ends_cleanly(server, client, sandbox, before)


def start_with_runsc(server: AtollServer, program: Path, script: str) -> Client:
    """Start a server whose runsc is a shell script."""
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    server.set_environment(ATOLL_RUNSC=str(program))
    server.start()
    return server.client()


@pytest.mark.spec("SA-066", "SA-385", "SA-401")
def test_a_runsc_that_breaks_fails_a_create_with_unknown_and_mends(idle_server: AtollServer, tmp_path: Path) -> None:
    broken, server = tmp_path / "broken", idle_server
    client = start_with_runsc(
        server,
        tmp_path / "runsc",
        f'[ -e "{broken}" ] || exec runsc "$@"\n'
        'echo "running container: creating container: something is broken at /run/secret" >&2\nexit 128\n',
    )
    before = leaks.snapshot(server.data_dir)
    broken.touch()
    sandbox = failed(client, "broken runsc")
    assert (sandbox["errorCode"], sandbox["errorRetryable"]) == ("UNKNOWN", False)
    assert_ends_cleanly(server, client, sandbox, before)
    broken.unlink()
    assert client.execute(client.ready("mended"), ["true"]).exit_code == 0


@pytest.mark.spec("SA-066", "SA-385")
@pytest.mark.parametrize(("times", "outcome"), [(1, ("READY", None)), (2, ("FAILED", "NAMESPACE_DENIED"))])
def test_a_namespace_that_runsc_rejects_is_replaced_once(
    idle_server: AtollServer, tmp_path: Path, times: int, outcome: tuple[str, str | None]
) -> None:
    rejections, server = tmp_path / "rejections", idle_server
    client = start_with_runsc(
        server,
        tmp_path / "runsc",
        f'first=$(ls "{rejections}" 2>/dev/null | head -n 1)\n'
        f'[ -n "$first" ] && rm "{rejections}/$first" || exec runsc "$@"\n'
        'echo "running container: starting container: setting up network: creating interfaces from net namespace'
        ' \\"/run/netns/x\\": interrupted system call" >&2\nexit 128\n',
    )
    before = leaks.snapshot(server.data_dir)
    rejections.mkdir()
    for number in range(times):
        (rejections / f"rejection-{number}").touch()
    sandbox = client.settled(client.create("rejected")["sandboxId"])
    assert (sandbox["status"], sandbox.get("errorCode")) == outcome
    assert not list(rejections.iterdir())
    if sandbox["status"] == "READY":
        assert client.execute(sandbox["sandboxId"], ["true"]).exit_code == 0
        client.terminate(sandbox["sandboxId"])
    leaks.wait_until_nothing_left(server.data_dir, before)


@pytest.mark.spec("SA-066", "SA-390")
def test_a_sandbox_killed_from_outside_fails_with_sandbox_not_found(server: AtollServer) -> None:
    client = server.client()
    before = leaks.snapshot(server.data_dir)
    sandbox_id = client.ready("killed")
    execution_id = client.start(sandbox_id, ["sleep", "1000"])
    for pid in leaks.processes(server.data_dir):
        if "agent" not in leaks.name_of(pid):
            kill(pid)
    sandbox = client.until(sandbox_id, "FAILED")
    assert (sandbox["errorCode"], sandbox["errorRetryable"]) == ("SANDBOX_NOT_FOUND", False)
    assert "killed from outside" in sandbox["statusReason"]
    assert client.read(sandbox_id, execution_id)["reason"] == "killed"
    with pytest.raises(ApiError) as refused:
        client.execute(sandbox_id, ["true"])
    assert (refused.value.status, refused.value.body["errorCode"]) == (404, "SANDBOX_NOT_FOUND")
    assert_ends_cleanly(server, client, sandbox, before)


@pytest.mark.spec("SA-066", "SA-390")
def test_a_sandbox_killed_with_its_keeper_while_the_server_was_away_is_found_dead(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    sandbox_id = server.client().ready("killed meanwhile")
    server.kill()
    deadline = time.monotonic() + 10
    while (alive := leaks.processes(server.data_dir)) and time.monotonic() < deadline:
        for pid in alive:
            kill(pid)
    server.start()
    client = server.client()
    sandbox = client.until(sandbox_id, "FAILED")
    assert (sandbox["errorCode"], sandbox["errorRetryable"]) == ("SANDBOX_NOT_FOUND", False)
    assert_ends_cleanly(server, client, sandbox, before)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_packet_rules_that_somebody_flushed_are_put_back(server: AtollServer) -> None:
    table = leaks.layout_of(server.data_dir).table
    run_program(["nft", "delete", "table", "inet", table])
    wait_until(lambda: f"table inet {table}" in run_program(["nft", "list", "tables"]), seconds=20, what="the rules")
