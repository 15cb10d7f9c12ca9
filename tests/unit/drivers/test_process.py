"""Running programs: status, streams, time limit, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.drivers import process
from atoll.drivers.process import ProgramFailed, ProgramMissing, ProgramTimeout, run, tied


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether no such process lives (a zombie counts as gone)."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


async def until(happened: Callable[[], bool], within: float = 5.0) -> None:
    """Poll for something that another process does."""
    limit = time.monotonic() + within
    while not happened():
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def test_status_and_both_streams_come_back() -> None:
    completed = await run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=5, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (3, b"out\n", b"err\n")


async def test_a_failed_program_raises_with_the_end_of_its_stderr() -> None:
    with pytest.raises(ProgramFailed, match="status 3: no such thing") as caught:
        await run(["sh", "-c", "echo no such thing >&2; exit 3"], timeout=5)
    assert caught.value.completed.returncode == 3


async def test_death_by_signal_is_a_negative_status() -> None:
    assert (await run(["sh", "-c", "kill -9 $$"], timeout=5, check=False)).returncode == -9


async def test_input_reaches_the_program_and_ends() -> None:
    data = os.urandom(1 << 20)
    assert (await run(["cat"], timeout=5, input=data)).stdout == data


async def test_input_that_nobody_reads_is_no_error() -> None:
    assert (await run(["true"], timeout=5, input=b"x" * (1 << 20))).returncode == 0


async def test_environment_and_directory_are_those_given(tmp_path: Path) -> None:
    completed = await run(["/bin/sh", "-c", "echo $A$HOME; pwd"], timeout=5, env={"A": "1"}, cwd=tmp_path)
    assert completed.stdout.decode() == f"1\n{tmp_path}\n"


@pytest.mark.parametrize("argv", [["no-such-program-here"], ["/etc/passwd"], ["/etc/passwd/x"]])
async def test_a_program_that_cannot_be_executed_is_missing(argv: list[str]) -> None:
    with pytest.raises(ProgramMissing):
        await run(argv, timeout=5)


async def test_the_time_limit_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(ProgramTimeout):
        await run(["sh", "-c", f"sleep 100 & echo $! $$ > {pids}; wait"], timeout=0.5)
    assert all(gone(int(pid)) for pid in pids.read_text().split())


async def test_cancellation_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    task = asyncio.create_task(run(["sh", "-c", f"sleep 100 & echo $! $$ > {pids}; wait"], timeout=60))
    await until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(gone(int(pid)) for pid in pids.read_text().split())


async def test_a_child_that_keeps_the_output_open_does_not_hold_up_the_call_and_dies() -> None:
    began = time.monotonic()
    completed = await run(["sh", "-c", "sleep 100 & echo $!"], timeout=30)
    assert time.monotonic() - began < 10
    assert gone(int(completed.stdout))


async def test_a_daemon_with_a_session_of_its_own_lives_on(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    await run(["sh", "-c", f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 30' >/dev/null 2>&1 &"], timeout=5)
    await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    os.kill(int(pid_file.read_text()), 9)  # raises when it is gone


async def test_output_beyond_the_bound_is_dropped_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_OUTPUT_BYTES", 1000)
    completed = await run(["sh", "-c", "head -c 3000000 /dev/zero; echo done >&2"], timeout=10)
    assert (len(completed.stdout), completed.stderr) == (1000, b"done\n")


async def test_lines_of_stderr_are_told_as_they_come() -> None:
    lines: list[str] = []
    await run(["sh", "-c", "echo one >&2; sleep 0.05; printf 'two\\nthree' >&2"], timeout=5, on_line=lines.append)
    assert lines == ["one", "two"]


async def test_a_program_of_another_kind_of_machine_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF not for here")
    program.chmod(0o755)
    with pytest.raises(ProgramMissing):
        await run([str(program)], timeout=5)


async def test_a_tied_program_that_is_missing_is_told_as_such() -> None:
    with pytest.raises(ProgramMissing):
        tied(["no-such-program-here"])
    assert (await run(tied(["sh", "-c", "echo $0 $1", "a", "b"]), timeout=5)).stdout == b"a b\n"
