"""Files, archives and ports of a real sandbox: what gVisor does differently, and what hostile programs try there."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests import leaks
from tests.client import Client
from tests.server import AtollServer
from websockets.sync.client import connect
from websockets.typing import Subprotocol

pytestmark = pytest.mark.gvisor


class Box:
    """One sandbox, and its gateway for the holder of a token."""

    def __init__(self, server: AtollServer, client: Client, sandbox_id: str) -> None:
        self.server = server
        self.client = client
        self.id = sandbox_id
        body = {"sandboxId": self.id, "scopes": ["exec", "file", "status"]}
        session = client.call("POST", "/sandbox/session", body)
        self.endpoint = session["endpoint"]
        self.token = session["token"]
        self.http = httpx.Client(headers={"Authorization": f"Bearer {self.token}"}, timeout=60)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.http.request(method, self.endpoint + path, **options)

    def ok(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self.call(method, path, **options)
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        return value

    def put(self, path: str, data: bytes, **query: str) -> dict[str, Any]:
        entry: dict[str, Any] = self.ok("PUT", "/files", params={"path": path, **query}, content=data)["entry"]
        return entry

    def run(self, script: str) -> str:
        result = self.client.execute(self.id, ["sh", "-c", script])
        assert result.exit_code == 0, result
        return result.stdout.decode()

    def begin(self, script: str) -> str:
        return self.client.start(self.id, ["sh", "-c", script])


@pytest.fixture(scope="module")
def box(shared_server: AtollServer) -> Iterator[Box]:
    with shared_server.client() as client:
        made = Box(shared_server, client, client.ready("files"))
        with made.http:
            yield made


@pytest.mark.spec("SA-358", "SA-450", "SA-451")
def test_a_file_is_written_read_in_parts_and_replaced_in_one_step(box: Box) -> None:
    data = os.urandom(5_000_000)
    entry = box.put("new/folders/file", data, mode="0750")
    assert (entry["size"], entry["mode"], entry["path"]) == (len(data), "0750", "/workspace/new/folders/file")
    assert box.run("stat -c '%u %g %a' new/folders/file new/folders") == "1001 1001 750\n1001 1001 755\n"
    answer = box.call("GET", "/files", params={"path": "new/folders/file"}, headers={"Range": "bytes=4999990-"})
    assert (answer.status_code, answer.content) == (206, data[-10:])
    assert box.call("GET", "/files", params={"path": "/workspace/new/folders/file"}).content == data
    reader = box.begin("while :; do md5sum file | cut -c1-32; done | uniq | head -n 1000")
    box.put("file", b"0" * 300_000)
    for number in range(1, 8):
        box.put("file", str(number).encode() * 300_000)
    box.client.kill(box.id, reader, "SIGKILL")
    seen = set(box.client.follow(box.id, reader).stdout.decode().split())
    whole = box.run("for n in 0 1 2 3 4 5 6 7; do head -c 300000 /dev/zero | tr '\\0' $n | md5sum | cut -c1-32; done")
    assert seen - {"d41d8cd98f00b204e9800998ecf8427e"} <= set(whole.split()), "a part of a file was seen"


@pytest.mark.spec("SA-451")
def test_a_client_that_goes_away_leaves_nothing(box: Box) -> None:
    box.put("away/file", b"old")
    url = urlsplit(box.endpoint)
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        head = f"PUT {url.path}/files?path=away/file HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
        connection.sendall(f"{head}Authorization: Bearer {box.token}\r\n\r\n".encode() + b"x" * 2_000_000)
        box.run("for i in $(seq 300); do [ $(ls -A away | wc -l) = 2 ] && exit 0; sleep 0.05; done; exit 1")
    box.run("for i in $(seq 300); do [ $(ls -A away | wc -l) = 1 ] && exit 0; sleep 0.05; done; ls -A away; exit 1")
    assert box.run("cat away/file") == "old"


@pytest.mark.spec("SA-456")
def test_no_race_leads_a_write_outside(box: Box) -> None:
    """A program swaps a folder for a link to elsewhere, as fast as it can, while the gateway writes through it."""
    box.run("mkdir -p race/folder /tmp/outside; chmod 777 /tmp/outside")
    swap = """cd race; exec perl -e 'for ($n = 0;; $n++) { mkdir "folder"; rename "folder", "aside$n";
        symlink "/tmp/outside", "folder"; select undef, undef, undef, 0.001; unlink "folder";
        rename "aside$n", "folder"; select undef, undef, undef, 0.001 }'"""
    racer = box.begin(swap)
    seen = set()
    try:
        for number in range(150):
            answer = box.call("PUT", "/files", params={"path": f"race/folder/deep/{number}"}, content=b"x")
            seen.add((answer.status_code, answer.json().get("errorCode")))
    finally:
        box.client.kill(box.id, racer, "SIGKILL")
    assert box.run("find /tmp/outside -mindepth 1") == ""
    assert (400, "PATH_ESCAPE") in seen and (200, None) in seen, seen
    assert {status for status, _ in seen} <= {200, 400, 404, 409}


@pytest.mark.spec("SA-456")
def test_paths_and_links_that_lead_outside_are_refused(box: Box) -> None:
    box.run(
        "ln -sfn /etc out; ln -sfn ../etc/passwd up; ln -sfn /proc/self/root root; mkdir -p in; ln -sfn ../in in/self"
    )
    for path in ("out/passwd", "up", "root/etc/passwd", "../etc/passwd", "/etc/passwd", "in/../../etc/passwd"):
        for method, route in (("GET", "/files"), ("PUT", "/files"), ("GET", "/archive"), ("PUT", "/archive")):
            answer = box.call(method, route, params={"path": path})
            assert (answer.status_code, answer.json()["errorCode"]) == (400, "PATH_ESCAPE"), (method, route, path)
    box.put("in/self/self/file", b"inside")
    assert box.run("cat in/file") == "inside"


@pytest.mark.spec("SA-452")
def test_folders_are_listed_whatever_is_in_them(box: Box) -> None:
    box.run("mkdir -p odd many; cd odd; ln -s nowhere link; mkfifo pipe; mkdir folder; chmod 1770 folder")
    answer = box.call("PUT", "/files?path=odd%2f%ff%0a", content=b"12345")
    assert answer.json()["entry"]["rawPath"] == "/workspace/odd/%FF%0A"
    entries = {it["name"]: it for it in box.ok("GET", "/files/list", params={"path": "odd"})["entries"]}
    assert {name: it["type"] for name, it in entries.items()} == {
        "folder": "directory",
        "link": "symlink",
        "pipe": "other",
        "\ufffd\n": "file",
    }
    assert entries["link"]["linkTarget"] == "nowhere" and entries["folder"]["mode"] == "1770"
    assert box.call("GET", "/files?path=" + entries["\ufffd\n"]["rawPath"]).content == b"12345"
    assert box.call("GET", "/files", params={"path": "odd/pipe"}).status_code == 409
    box.run('cd many; perl -e \'for (1..20000) { open my $f, ">", sprintf("%06d", $_) }\'')
    page = box.ok("GET", "/files/list", params={"path": "many", "limit": "10000"})
    assert [it["name"] for it in page["entries"]] == [f"{number:06}" for number in range(1, 10_001)]
    following = box.ok("GET", "/files/list", params={"path": "many", "limit": "2", "cursor": page["nextCursor"]})
    assert [it["name"] for it in following["entries"]] == ["010001", "010002"]
    box.ok("DELETE", "/files", params={"path": "many", "recursive": "true"})
    assert box.run("ls -d many 2>/dev/null || echo gone") == "gone\n"


@pytest.mark.spec("SA-452")
def test_changes_by_programs_and_by_the_gateway_are_told(box: Box) -> None:
    box.run("mkdir -p watched")
    seen: list[tuple[str, str]] = []
    with box.http.stream("GET", box.endpoint + "/files/watch?path=watched&recursive=true") as answer:
        lines = answer.iter_lines()

        def until(kind: str, name: str) -> None:
            while (kind, name) not in seen:
                line = next(lines)
                if line.startswith("event: "):
                    data = json.loads(next(lines).removeprefix("data: "))
                    seen.append((line.removeprefix("event: "), data["path"].removeprefix("/workspace/watched")))

        until("ready", "")
        box.run("mkdir watched/folder; sleep 0.2; echo x > watched/folder/file")
        until("created", "/folder/file")
        box.put("watched/other", b"y")
        until("created", "/other")
        box.run("rm watched/folder/file; mv watched/other watched/moved")
        until("deleted", "/folder/file")
        until("deleted", "/other")
        until("created", "/moved")
    assert seen[0] == ("ready", "")


@pytest.mark.spec("SA-453")
def test_an_archive_of_a_sandbox_comes_back_as_it_went(box: Box) -> None:
    box.run(
        "mkdir -p src/a/b; cd src; head -c 3000000 /dev/urandom > a/file; ln a/file a/twin; ln -s /usr/bin/perl link;"
        " chmod 751 a/b; touch -d @1000000000 a/file; mkfifo pipe"
    )
    data = box.call("GET", "/archive", params={"path": "src"}).content
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert sorted(archive.getnames()) == ["a", "a/b", "a/file", "a/twin", "link"]
    counts = box.ok("PUT", "/archive", params={"path": "copy"}, content=data)
    assert (counts["files"], counts["folders"], counts["links"], counts["bytes"]) == (1, 2, 2, 3_000_000)
    look = (
        "find . -not -name pipe -not -name . | sort | xargs stat -c '%n %a %s %u %h' ; stat -c %Y a/file; readlink link"
    )
    assert box.run(f"cd src; {look}") == box.run(f"cd copy; {look}")
    assert box.run("cmp src/a/file copy/a/twin && echo same") == "same\n"


@pytest.mark.spec("SA-453", "SA-456")
def test_a_hostile_archive_writes_nothing_outside(box: Box) -> None:
    for name, link in (("out/evil", "/tmp"), ("../evil", None), ("/tmp/evil", None), ("up/evil", "..")):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            if link is not None:
                member = tarfile.TarInfo(name.partition("/")[0])
                member.type, member.linkname = tarfile.SYMTYPE, link
                archive.addfile(member)
            archive.addfile(tarfile.TarInfo(name))
        answer = box.call("PUT", "/archive", params={"path": "hostile"}, content=data.getvalue())
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "PATH_ESCAPE"), name
    assert box.run("ls -d /tmp/evil evil hostile/../evil 2>/dev/null || echo none") == "none\n"


@pytest.mark.spec("SA-455")
def test_a_port_is_reached_by_http(box: Box) -> None:
    script = r"""use Socket; socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1);
        bind(S, sockaddr_in(8080, INADDR_LOOPBACK)) or die; listen(S, 16); print "up\n"; $| = 1;
        while (accept(C, S)) { my $h = ""; while (sysread(C, my $b, 65536)) { $h .= $b; last if $h =~ /\r\n\r\n/ }
        my ($line) = $h =~ /^(.*?)\r\n/; my $leak = $h =~ /bearer|atollgw/i ? "leaked" : "clean"; my $t = "$line|$leak";
        syswrite(C, "HTTP/1.1 201 Made\r\nContent-Length: " . length($t) . "\r\nX-Own: 1\r\n\r\n$t"); close C }"""
    box.put("server.pl", script.encode())
    server = box.begin("exec perl server.pl")
    try:
        for _ in range(100):
            answer = box.call("GET", "/ports/8080/a/b?c=%20d")
            if answer.status_code != 502:
                break
            time.sleep(0.05)
        assert (answer.status_code, answer.text) == (201, "GET /a/b?c=%20d HTTP/1.1|clean")
        assert answer.headers["x-own"] == "1"
    finally:
        box.client.kill(box.id, server, "SIGKILL")
    answer = box.call("GET", "/ports/8081/")
    assert (answer.status_code, answer.json()["data"]["reason"]) == (502, "port_unreachable")


@pytest.mark.spec("SA-455")
def test_a_port_is_reached_by_a_websocket(box: Box) -> None:
    script = r"""use Socket; use Digest::SHA qw(sha1_base64); socket(S, PF_INET, SOCK_STREAM, 0);
        bind(S, sockaddr_in(8090, INADDR_LOOPBACK)) or die; listen(S, 16);
        while (accept(C, S)) { my $h = ""; while (sysread(C, my $b, 65536)) { $h .= $b; last if $h =~ /\r\n\r\n/ }
        my ($k) = $h =~ /sec-websocket-key: (\S+)/i;
        my $a = sha1_base64($k . "258EAFA5-E914-47DA-95CA-C5AB0DC85B11") . "=";
        syswrite(C, "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: $a\r\n\r\n");
        sysread(C, my $f, 65536); my $n = ord(substr($f, 1, 1)) & 127;
        my @m = unpack("C4", substr($f, 2, 4)); my $i = 0;
        my $d = join "", map { chr(ord($_) ^ $m[$i++ % 4]) } split //, substr($f, 6, $n);
        syswrite(C, chr(0x81) . chr(5 + $n) . "echo:$d" . chr(0x88) . chr(2) . chr(3) . chr(0xe8)); close C }"""
    box.put("socket.pl", script.encode())
    server = box.begin("exec perl socket.pl")
    try:
        box.run(
            "for i in $(seq 100); do perl -e 'use Socket; socket(S, PF_INET, SOCK_STREAM, 0); exit(connect(S,"
            " sockaddr_in(8090, INADDR_LOOPBACK)) ? 0 : 1)' && exit 0; sleep 0.05; done; exit 1"
        )
        url = box.endpoint.replace("http", "ws", 1) + "/ports/8090/x"
        with connect(url, subprotocols=[Subprotocol(f"atoll.bearer.{box.token}")], open_timeout=20) as found:
            found.send("hello")
            assert found.recv(timeout=20) == "echo:hello"
    finally:
        box.client.kill(box.id, server, "SIGKILL")


def test_clients_that_do_not_read_hold_up_nobody_and_grow_nothing(box: Box) -> None:
    box.run("truncate -s 500M big")
    leaks.reset_peak_resident(box.server.pid)
    before = leaks.resources(box.server.pid).resident_kb
    url = urlsplit(box.endpoint)
    stalled = []
    try:
        for _ in range(20):
            connection = socket.create_connection((url.hostname, url.port), timeout=30)
            stalled.append(connection)
            head = f"GET {url.path}/files?path=big HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.token}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
        assert box.run("echo quick") == "quick\n"
        assert time.monotonic() - began < 3
        got = box.call("GET", "/files", params={"path": "big"}, headers={"Range": "bytes=0-99999999"})
        assert len(got.content) == 100_000_000
        assert leaks.peak_resident_kb(box.server.pid) - before < 20 * 1_400 + 20_000
    finally:
        for connection in stalled:
            connection.close()
    box.run(
        "for i in $(seq 200); do [ $(ls /proc | grep -c '^[0-9]') -lt 8 ] && exit 0; sleep 0.05; done; ps ax; exit 1"
    )


def test_transfers_do_not_delay_commands(box: Box) -> None:
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(headers=box.http.headers, timeout=60) as client:
            while not stop.is_set():
                assert len(client.get(box.endpoint + "/files?path=big").content) == 500 * 2**20

    thread = threading.Thread(target=load)
    thread.start()
    slowest = 0.0
    try:
        for _ in range(10):
            began = time.monotonic()
            box.run("true")
            slowest = max(slowest, time.monotonic() - began)
    finally:
        stop.set()
        thread.join()
    assert slowest < 3


@pytest.mark.spec("SA-358", "SA-360", "SA-456")
def test_a_volume_is_reached_as_the_workspace_is_and_a_pause_ends_what_is_under_way(box: Box) -> None:
    template = box.client.make_template("volume", persistenceMode="BOTH", mountPath="/data")
    volume = Box(box.server, box.client, box.client.ready("volume", template_id=template))
    try:
        with volume.http:
            assert volume.put("/data/folder/file", b"kept")["path"] == "/data/folder/file"
            volume.run("set -e; ln -s /data/folder link; echo own > own")
            assert volume.call("GET", "/files?path=link/file").content == b"kept"
            assert volume.call("GET", "/files?path=/data/../etc/passwd").json()["errorCode"] == "PATH_ESCAPE"
            moved = volume.call("POST", "/files/move", json={"from": "own", "to": "/data/own"})
            assert (moved.status_code, moved.json()["data"]["reason"]) == (409, "other_file_system")
            listed = volume.ok("GET", "/files/list?path=/data&depth=2")["entries"]
            assert {"/data/folder", "/data/folder/file"} <= {it["path"] for it in listed}
            assert volume.put("/data/folder/file", b"new")["size"] == 3

            url = urlsplit(volume.endpoint)
            with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
                head = f"PUT {url.path}/files?path=half HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
                connection.sendall(f"{head}Authorization: Bearer {volume.token}\r\n\r\n".encode() + b"x" * 2_000_000)
                volume.run("for i in $(seq 300); do ls -A | grep -q part && exit 0; sleep 0.05; done; exit 1")
                paused = box.client.call("POST", "/sandbox/pause", {"sandboxId": volume.id})["sandbox"]
                assert paused["status"] == "SUSPENDED"
                connection.sendall(b"x" * 1_000_000)
                assert connection.recv(100).split()[1] in {b"409", b"503"}
            assert volume.call("GET", "/files?path=/data/folder/file").content == b"new", "resumed by the call"
            assert volume.run("ls -A; cat own") == "link\nown\nown\n"
    finally:
        box.client.terminate(volume.id)
