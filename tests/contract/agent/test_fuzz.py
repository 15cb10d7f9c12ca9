"""A short run of the fuzzer over everything of the agent and the shim that reads foreign bytes.

ATOLL_FUZZ_SECONDS makes it longer. The seeds are one well-formed frame of every kind, made by the client's own codec.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path
from uuid import UUID

import pytest

from atoll.agent import wire
from atoll.domain.command import PtySize

SECONDS = int(os.environ.get("ATOLL_FUZZ_SECONDS", "20"))
FUZZER = Path("build/agent/fuzz-frames")
COMMAND = UUID(int=7)
START = wire.encode_start(COMMAND, ["sh", "-c", "true"], cwd="/", env={"A": "b"}, timeout_seconds=1)
TERMINAL = wire.encode_start(COMMAND, ["sh"], cwd=None, env=None, timeout_seconds=None, pty=PtySize(24, 80))
REQUESTS = {
    wire.Request.START: START,
    wire.Request.RUN: START + wire.encode_u32(1000),
    wire.Request.READ: wire.encode_read(COMMAND, 1, 2, 3),
    wire.Request.STDIN: wire.encode_stdin(COMMAND, b"data", eof=True),
    wire.Request.SIGNAL: wire.encode_signal(COMMAND, 15, cancel=True),
    wire.Request.RESIZE: wire.encode_resize(COMMAND, PtySize(24, 80)),
    wire.Request.FORGET: COMMAND.bytes,
    wire.Request.LIST: b"",
    wire.Request.STOP: wire.encode_u32(1),
    wire.Request.KILL: b"",
    wire.Request.OPEN: wire.encode_open_files(1000, [b"read", b"file", b"--", b"/workspace"]),
    wire.Request.DATA: b"bytes",
    wire.Request.CREDIT: wire.encode_u32(1000),
    wire.Request.FINISH: b"",
    wire.Request.CLOSE: b"",
    wire.Request.QUIET: b"",
    wire.Request.HOLD: wire.encode_u32(1),
    wire.Request.RELEASE: b"",
}


def seeds() -> list[bytes]:
    frames = [wire.encode_frame(kind, 1, payload) for kind, payload in REQUESTS.items()]
    frames.append(wire.encode_frame(wire.Request.START, 1, TERMINAL))
    frames.append(wire.encode_frame(wire.Request.OPEN, 1, wire.encode_open_port(1000, 8000)))
    hello = struct.pack(">IBIIHIQB", 24, 0x81, 0, 0, 1, 0, 5, 1)
    relayed = b"".join(bytes((index % 2, len(frame))) + frame for index, frame in enumerate([hello, *frames]))
    ring = bytes(range(256))
    stat = (Path(__file__).parent / "recorded" / "v2-quiet" / "memory.stat").read_bytes()
    single = [b"\x02" + relayed, b"\x00" + ring, b"\x01" + stat]
    return [*(b"\x04" + frame[4:] for frame in frames), *single, *(b"\x03" + archive for archive in archives())]


def archives() -> list[bytes]:
    """A small archive of each dialect, with a long name, a link and a folder."""
    made = []
    for dialect in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=dialect, bufsize=512) as archive:
            for name, kind in (("folder", tarfile.DIRTYPE), ("n" * 90 + "/" + "m" * 90, tarfile.SYMTYPE)):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, "target" if kind == tarfile.SYMTYPE else ""
                archive.addfile(member)
            member = tarfile.TarInfo("file")
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
        made.append(data.getvalue()[:8000])
    return made


@pytest.mark.timeout(SECONDS + 120)
def test_hostile_bytes_break_nothing(tmp_path: Path) -> None:
    if shutil.which("clang-14") is None:
        pytest.skip("the fuzzer needs clang-14 and libclang-rt-14-dev")
    subprocess.run(["make", "-s", "-C", "src/atoll/agent/csrc", "fuzz"], check=True, timeout=100)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    argv = [str(FUZZER.resolve()), f"-max_total_time={SECONDS}", "-max_len=8192", "-timeout=10", "-rss_limit_mb=2048"]
    result = subprocess.run(
        [*argv, f"-artifact_prefix={tmp_path}/", str(corpus)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
