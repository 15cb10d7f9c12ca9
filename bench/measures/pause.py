"""Pause and resume of a full workspace, beside `tar --zstd` of the same files and its extraction on the same disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.client import Client

from bench.figures import Result
from bench.setting import Setting, timed

RATIO = 1.3
_SECONDS = 300.0
_MAKE_FILES = """
import os, random, sys
root, count, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
bits = random.Random(7)
for number in range(count):
    folder = os.path.join(root, "d%02d" % (number % 50))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "f%04d" % number), "wb") as file:
        file.write(bits.randbytes(each // 2) + b"text " * (each // 10))
"""
"""Half random, half text: about what sources and their build products compress to."""


def pause(setting: Setting) -> Result:
    """5,000 files, 200 MB, several times; the files are the same inside and outside."""
    count, each = setting.rounds(5_000, 500), 40_000
    result = Result("pause", f"Pause and resume of {count:,} files, {count * each // 1_000_000} MB")
    arguments = ["-c", _MAKE_FILES]
    beside = setting.work / "tar"
    files = beside / "files"
    subprocess.run([sys.executable, *arguments, str(files), str(count), str(each)], check=True, timeout=_SECONDS)
    whole: list[float] = []
    tar: list[float] = []
    pauses: list[float] = []
    resumes: list[float] = []
    with setting.server("pause") as server, server.client() as client:
        template_id = client.make_template("pause", persistenceMode="SNAPSHOT", zClouds=4, snapshotMaxMb=1_024)
        sandbox_id = client.ready("pause", template_id=template_id)
        made = client.execute(
            sandbox_id, ["python3", *arguments, "/workspace", str(count), str(each)], timeoutSeconds=300
        )
        if made.exit_code:
            raise RuntimeError(f"the files were not made: {made.stderr.decode(errors='replace')[-300:]}")
        for _ in range(setting.rounds(5, 2)):
            tar.append(timed(lambda: _tar_and_back(beside)))
            pauses.append(timed(lambda: _pause(client, sandbox_id)))
            resumes.append(timed(lambda: _resume(client, sandbox_id)))
            whole.append(pauses[-1] + resumes[-1])
        seen = client.execute(sandbox_id, ["sh", "-c", "find /workspace -type f | wc -l"])
        if int(seen.stdout) != count:
            raise RuntimeError(f"{seen.stdout!r} files are left of {count}")
    shutil.rmtree(beside)
    result.samples("pause", "ms", pauses)
    result.samples("resume to READY", "ms", resumes)
    ours, peer = result.samples("pause and resume", "ms", whole), result.samples("tar --zstd and back", "ms", tar)
    ratio = ours.p50 / peer.p50
    result.target(f"pause + resume ≤ {RATIO} of `tar --zstd` and its extraction", f"{ratio:.2f}", met=ratio <= RATIO)
    return result


def _pause(client: Client, sandbox_id: str) -> None:
    client.call("POST", "/sandbox/pause", {"sandboxId": sandbox_id})
    client.until(sandbox_id, "SUSPENDED", seconds=_SECONDS)


def _resume(client: Client, sandbox_id: str) -> None:
    client.call("POST", "/sandbox/resume", {"sandboxId": sandbox_id})
    client.settled(sandbox_id, seconds=_SECONDS)


def _tar_and_back(folder: Path) -> None:
    archive, out = folder / "files.tar.zst", folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for argv in (
        ["tar", "--zstd", "-cf", archive, "-C", folder / "files", "."],
        ["tar", "--zstd", "-xf", archive, "-C", out],
    ):
        subprocess.run([str(word) for word in argv], check=True, timeout=_SECONDS)
