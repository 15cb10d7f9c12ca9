"""The live directory of a volume in real gVisor sandboxes: what people do in a working folder, and what breaks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests import leaks
from tests.e2e.test_persistence import ready, said
from tests.server import AtollServer, wait_until

pytestmark = pytest.mark.gvisor

WORK = """
set -e
cd /workspace/persist
git init -q repo && cd repo
for i in $(seq 10); do
    echo $i > f$i; git config demo.x$i $i; git add .; git -c user.name=a -c user.email=a@b commit -qm $i
done
ln -s f1 link && ln -s missing dangling && mkdir sub && ln -s ../f2 sub/up && ln -s sub folder
git add . && git -c user.name=a -c user.email=a@b commit -qm links
"""
LOOK = """
cd /workspace/persist/repo
git fsck --strict && git status --short && git log --oneline | wc -l && git config demo.x10
cat link sub/up folder/up && readlink dangling && stat -c '%F' link
"""
FOUND = "11\n10\n1\n2\n2\nmissing\nsymbolic link\n"
PACKAGES = """
set -e
mkdir -p /tmp/tool && cd /tmp/tool
echo '{"name": "tool", "version": "1.0.0", "bin": {"tool": "tool.js"}}' > package.json
printf '#!/usr/bin/env node\\nconsole.log("tool runs")\\n' > tool.js
npm pack --silent > /dev/null
cd /workspace/persist && mkdir node && cd node && echo '{}' > package.json
npm install --silent --offline --no-audit --no-fund /tmp/tool/tool-1.0.0.tgz
readlink node_modules/.bin/tool && node node_modules/.bin/tool
cd .. && python3 -m venv --without-pip env && readlink env/bin/python && stat -L env/bin/python3 > /dev/null
mkdir tree && ln -s nowhere tree/l && echo x > tree/f && tar -cf /tmp/t.tar tree
mkdir copy && tar -C copy -xf /tmp/t.tar && readlink copy/tree/l
"""


@pytest.mark.spec("SA-072", "SA-073", "SA-092")
def test_git_package_managers_and_tar_work_in_the_live_directory(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    first = ready(client, "first", "DIRECTORY")
    said(client, first, WORK)
    assert said(client, first, LOOK) == FOUND
    told = said(client, first, PACKAGES)
    assert told == "../tool/tool.js\ntool runs\npython3\nnowhere\n"
    client.terminate(first["sandboxId"])
    second = ready(client, "second", "DIRECTORY", volumeName=first["volumeName"])
    assert said(client, second, LOOK) == FOUND
    client.terminate(second["sandboxId"])
    leaks.wait_until_nothing_left(server.data_dir, before, seconds=30)


CHANGE_IN_PLACE = """
set -e
cd persist
echo new > over
echo new >> appended
printf new | dd of=kept conv=notrunc status=none
truncate -s 3 cut
python3 -c '
import mmap, os, sqlite3
with open("mapped", "r+b") as file, mmap.mmap(file.fileno(), 4) as memory:
    memory[:3] = b"new"
with open("synced", "r+b") as file:
    file.write(b"new")
    os.fsync(file.fileno())
database = sqlite3.connect("database")
database.execute("create table new (a)")
database.close()
'
"""
CHANGED = {
    "over": b"new\n",
    "appended": b"old\nnew\n",
    "kept": b"new\n",
    "cut": b"old",
    "mapped": b"new\n",
    "synced": b"new\n",
}


@pytest.mark.spec("SA-072", "SA-073")
def test_a_file_that_was_there_is_stored_when_it_is_closed_and_not_at_the_end_of_its_sandbox(
    server: AtollServer,
) -> None:
    client = server.client()
    sandbox = ready(client, "first", "DIRECTORY")
    said(client, sandbox, f"cd persist && for f in {' '.join(CHANGED)}; do echo old > $f; done")
    said(client, sandbox, CHANGE_IN_PLACE)
    [data] = (server.data_dir / "volumes").glob("*/data")
    wait_until(
        lambda: all((data / name).read_bytes() == content for name, content in CHANGED.items()),
        seconds=10,
        what="the new contents are stored",
    )
    database = data / "database"
    wait_until(
        lambda: database.exists() and b"CREATE TABLE new" in database.read_bytes(), seconds=10, what="the database"
    )
    client.terminate(sandbox["sandboxId"])


@pytest.mark.spec("SA-073")
def test_what_was_closed_before_an_end_is_there_for_the_next_sandbox_at_once(server: AtollServer) -> None:
    client = server.client()
    volume = {}
    for number in range(4):
        sandbox = ready(client, f"turn-{number}", "DIRECTORY", **volume)
        volume = {"volumeName": sandbox["volumeName"]}
        assert said(client, sandbox, "cat persist/n 2>/dev/null || echo none") == (
            f"{number - 1}\n" if number else "none\n"
        )
        said(client, sandbox, f"head -c 20000000 /dev/urandom > persist/big; echo {number} > persist/n")
        client.terminate(sandbox["sandboxId"])


@pytest.mark.spec("SA-072", "SA-089")
def test_a_sandbox_whose_mount_dies_fails_and_loses_nothing_that_was_closed(server: AtollServer) -> None:
    before = leaks.snapshot(server.data_dir)
    client = server.client()
    first = ready(client, "first", "DIRECTORY")
    [mount] = (server.data_dir / "mounts").iterdir()
    said(client, first, "echo kept > persist/before")
    os.kill(_server_of(mount), signal.SIGKILL)
    wait_until(lambda: client.get(first["sandboxId"])["status"] == "FAILED", seconds=40, what="the sandbox fails")
    failed = client.get(first["sandboxId"])
    assert failed["errorCode"] == "SANDBOX_NOT_READY"
    assert failed["errorRetryable"] is True
    assert "volume" in failed["statusReason"]
    second = ready(client, "second", "DIRECTORY", volumeName=first["volumeName"])
    wait_until(
        lambda: said(client, second, "cat persist/before 2>/dev/null || true") == "kept\n", seconds=20, what="the file"
    )
    client.terminate(second["sandboxId"])
    leaks.wait_until_nothing_left(server.data_dir, before, seconds=30)


def _server_of(mount: Path) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"mount" in words and os.fsencode(mount) in words:
                return int(entry.name)
    raise AssertionError("nothing serves the mount")
