"""Commands in the real agent: how they start, what they may, how they end."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from uuid import uuid4

import pytest
from tests.contract.agent.conftest import Sandbox

from atoll.agent.connection import AgentClient
from atoll.domain.command import EndReason
from atoll.domain.errors import ErrorCode, RuntimeFailure


async def shell(agent: AgentClient, script: str, *, timeout: float = 20) -> str:
    result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=timeout)
    assert result.state.exit_code == 0, result
    return result.stdout.decode()


@pytest.mark.spec("SA-230", "SA-232")
async def test_a_command_returns_its_output_and_its_exit_code(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["sh", "-c", "echo out; echo err >&2; exit 7"], timeout_seconds=10)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.state.exit_code, result.state.reason) == (7, None)
    assert (result.state.stdout_bytes, result.state.stderr_bytes) == (4, 4)
    assert not result.stdout_truncated and not result.stderr_truncated


async def test_a_command_has_no_privilege_and_cannot_gain_one(agent: AgentClient) -> None:
    status = await shell(agent, "cat /proc/self/status")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert re.search(rf"^{name}:\s*0+$", status, re.M), name
    assert re.search(r"^NoNewPrivs:\s*1$", status, re.M)
    assert re.search(r"^Uid:\s*1001\s+1001\s+1001\s+1001$", status, re.M)
    assert re.search(r"^Gid:\s*1001\s+1001\s+1001\s+1001$", status, re.M)
    assert re.search(r"^Groups:\s*$", status, re.M)
    assert re.search(r"^SigBlk:\s*0+$", status, re.M)
    assert re.search(r"^SigIgn:\s*0+$", status, re.M)


async def test_a_command_has_three_descriptors_its_own_session_and_its_limits(agent: AgentClient) -> None:
    assert (await shell(agent, "ls /proc/$$/fd")).split() == ["0", "1", "2"]
    assert (await shell(agent, "readlink /proc/$$/fd/0")).strip() == "/dev/null"
    assert (
        await shell(agent, 'set -- $(cat /proc/$$/stat); [ "$6" = $$ ] && [ "$5" = $$ ] && echo leader') == "leader\n"
    )
    limits = await shell(agent, "cat /proc/self/limits")
    assert re.search(r"^Max core file size\s+0\s+0", limits, re.M)
    assert re.search(r"^Max processes\s+4096\s+4096", limits, re.M)


@pytest.mark.spec("SA-098", "SA-248")
async def test_the_environment_is_the_sandboxes_with_the_requests_and_without_the_agents(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["env"], env={"KEPT": "over", "NEW": "a=b c"}, timeout_seconds=10)
    lines = set(result.stdout.decode().splitlines())
    assert {"KEPT=over", "NEW=a=b c", "PATH=/usr/bin:/bin"} <= lines
    assert not [line for line in lines if line.startswith(("ATOLL_", "SANDBOX_AGENT_")) or line == "KEPT=3"]


@pytest.mark.spec("SA-246")
async def test_arguments_are_passed_as_they_are(agent: AgentClient) -> None:
    arguments = ["a b", "$HOME", "", "'", "ü\n"]
    result = await agent.run(uuid4(), ["printf", "%s|", *arguments], timeout_seconds=10)
    assert result.stdout.decode() == "".join(f"{argument}|" for argument in arguments)


@pytest.mark.spec("SA-247")
async def test_a_directory_can_be_chosen_and_a_missing_one_is_refused(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["pwd"], cwd="/usr", timeout_seconds=10)
    assert result.stdout == b"/usr\n"
    for bad in ("/no/such", "/root", "/etc/passwd"):
        with pytest.raises(RuntimeFailure) as failure:
            await agent.run(uuid4(), ["pwd"], cwd=bad, timeout_seconds=10)
        assert failure.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-program", 127), ("/no/such", 127), ("/etc/passwd", 126), ("/usr", 126)]
)
async def test_a_program_that_cannot_be_executed_says_so(agent: AgentClient, program: str, code: int) -> None:
    result = await agent.run(uuid4(), [program], timeout_seconds=10)
    assert (result.state.exit_code, result.state.reason) == (code, None)
    assert program.encode() in result.stderr
    assert result.stderr.count(b"\n") == 1


async def test_path_is_searched_in_the_commands_own_environment(agent: AgentClient) -> None:
    folder = f"/tmp/atoll-path-{uuid4().hex}"
    try:
        await shell(agent, f"mkdir {folder}; printf '#!/bin/sh\\necho mine' > {folder}/mine; chmod +x {folder}/mine")
        result = await agent.run(uuid4(), ["mine"], env={"PATH": f"/nowhere:{folder}"}, timeout_seconds=10)
        assert result.stdout == b"mine\n"
    finally:
        await shell(agent, f"rm -r {folder}")


@pytest.mark.spec("SA-229", "SA-263", "SA-249")
async def test_the_deadline_ends_a_command(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["sleep", "30"], timeout_seconds=0.2)
    assert (result.state.exit_code, result.state.reason) == (143, EndReason.DEADLINE_EXCEEDED)


@pytest.mark.spec("SA-263")
async def test_a_command_that_ignores_its_deadline_is_killed_five_seconds_later(agent: AgentClient) -> None:
    begun = time.monotonic()
    script = "trap '' TERM; while :; do sleep 0.1; done"
    result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=0.2)
    assert (result.state.exit_code, result.state.reason) == (137, EndReason.DEADLINE_EXCEEDED)
    assert 5 <= time.monotonic() - begun < 8


async def test_a_stopped_command_meets_its_deadline_too(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["sh", "-c", "kill -STOP $$"], timeout_seconds=0.3)
    assert (result.state.exit_code, result.state.reason) == (143, EndReason.DEADLINE_EXCEEDED)


@pytest.mark.spec("SA-264", "SA-282")
async def test_a_cancelled_command_says_so(agent: AgentClient) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, 137)):
        command = uuid4()
        await agent.start(command, ["sleep", "30"])
        await agent.signal(command, number)
        state = await agent.watch(command)
        assert (state.exit_code, state.reason) == (code, EndReason.CANCELED)


@pytest.mark.spec("SA-265")
async def test_a_kill_that_nobody_asked_for_is_called_killed(agent: AgentClient) -> None:
    result = await agent.run(uuid4(), ["sh", "-c", "kill -9 $$"], timeout_seconds=10)
    assert (result.state.exit_code, result.state.reason) == (137, EndReason.KILLED)


async def test_a_signal_without_cancel_gives_no_reason(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sleep", "30"])
    await agent.signal(command, signal.SIGUSR1, cancel=False)
    state = await agent.watch(command)
    assert (state.exit_code, state.reason) == (128 + signal.SIGUSR1, None)


@pytest.mark.spec("SA-266", "SA-235")
async def test_stopping_ends_every_command_as_a_shutdown(agent: AgentClient) -> None:
    polite, stubborn = uuid4(), uuid4()
    await agent.start(polite, ["sleep", "30"])
    await agent.start(stubborn, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
    await agent.read(stubborn, from_seq=1, wait_seconds=10)
    run = asyncio.create_task(agent.run(uuid4(), ["sleep", "30"], timeout_seconds=60))
    await asyncio.sleep(0)
    await agent.stop_commands(0.3)
    states = {state.execution_id: state for state in await agent.list_commands()}
    assert not [state for state in states.values() if state.running]
    assert (states[polite].exit_code, states[polite].reason) == (143, EndReason.AGENT_SHUTDOWN)
    assert (states[stubborn].exit_code, states[stubborn].reason) == (137, EndReason.AGENT_SHUTDOWN)
    assert (await run).state.reason is EndReason.AGENT_SHUTDOWN
    assert (await agent.run(uuid4(), ["true"], timeout_seconds=5)).state.exit_code == 0


@pytest.mark.spec("SA-282")
@pytest.mark.parametrize(
    "escape", ["sleep 4711 &", "setsid sleep 4711 &", "(setsid sh -c 'sleep 4711 & sleep 4711' &);"]
)
async def test_a_kill_reaches_the_whole_tree(agent: AgentClient, sandbox: Sandbox, escape: str) -> None:
    command = uuid4()
    await agent.start(command, ["sh", "-c", f"trap '' TERM; {escape} sleep 0.3; echo up; sleep 4711"])
    await agent.read(command, from_seq=1, wait_seconds=10)
    # `up` is said a moment before the last of them has become sleep.
    both = "for try in $(seq 100); do [ $(pgrep -c -f '^sleep 4711') -ge 2 ] && echo both && break; sleep 0.1; done"
    assert await shell(agent, both) == "both\n"
    await agent.signal(command, signal.SIGKILL)
    await agent.watch(command)
    assert await shell(agent, "pgrep -f '^sleep 4711' || true") == ""


@pytest.mark.spec("SA-249")
async def test_a_deadline_reaches_children_that_ignore_it(agent: AgentClient) -> None:
    script = "(setsid sh -c \"trap '' TERM; while :; do sleep 0.2; done\" &) ; sleep 4712"
    result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=0.4)
    assert result.state.reason is EndReason.DEADLINE_EXCEEDED
    assert await shell(agent, "ps -eo args | grep -c '[t]rap' || true") == "0\n"


async def test_a_fork_bomb_dies_whole(sandbox: Sandbox) -> None:
    sandbox.start(nproc=300)
    async with sandbox.client() as agent:
        bomb = uuid4()
        await agent.start(bomb, ["sh", "-c", "b() { b | b & }; b 2>/dev/null; sleep 60"])
        await asyncio.sleep(0.5)
        await agent.signal(bomb, signal.SIGKILL)
        async with asyncio.timeout(10):
            await agent.watch(bomb)
        assert len(sandbox.descendants()) <= 4
        assert (await agent.run(uuid4(), ["true"], timeout_seconds=5)).state.exit_code == 0


async def test_what_was_started_in_the_background_outlives_its_command(agent: AgentClient) -> None:
    begun = time.monotonic()
    result = await agent.run(uuid4(), ["sh", "-c", "sleep 4713 >/dev/null 2>&1 & echo done"], timeout_seconds=10)
    assert result.stdout == b"done\n" and time.monotonic() - begun < 5
    assert await shell(agent, "pgrep -c -f '^sleep 4713'") == "1\n"


async def test_a_child_that_holds_the_pipe_delays_the_end_by_a_quarter_second(agent: AgentClient) -> None:
    begun = time.monotonic()
    result = await agent.run(uuid4(), ["sh", "-c", "sleep 30 & echo done"], timeout_seconds=20)
    assert result.stdout == b"done\n"
    assert 0.2 <= time.monotonic() - begun < 5


@pytest.mark.spec("SA-231")
async def test_captured_output_is_cut_at_its_limit_and_counted_whole(agent: AgentClient) -> None:
    script = "head -c 300000 /dev/zero; echo e >&2"
    result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=10, capture_bytes=100_000)
    assert result.stdout == bytes(100_000) and result.stdout_truncated
    assert result.stderr == b"e\n" and not result.stderr_truncated
    assert result.state.stdout_bytes == 300_000


@pytest.mark.spec("SA-398")
async def test_at_most_256_commands_run_at_once(agent: AgentClient) -> None:
    commands = [uuid4() for _ in range(256)]
    await asyncio.gather(*(agent.start(command, ["sleep", "60"]) for command in commands))
    with pytest.raises(RuntimeFailure) as failure:
        await agent.start(uuid4(), ["true"])
    assert failure.value.code is ErrorCode.TOO_MANY_EXECUTIONS
    assert (await agent.stats()).running_commands == 256
    assert (await agent.start(commands[0], ["sleep", "60"])).existing
    await agent.signal(commands[0], signal.SIGKILL)
    await agent.watch(commands[0])
    await agent.start(uuid4(), ["true"])
    await agent.stop_commands(0)
    assert (await agent.stats()).running_commands == 0


@pytest.mark.spec("SA-251")
async def test_the_same_id_starts_nothing_twice(agent: AgentClient) -> None:
    command, marker = uuid4(), f"/tmp/atoll-once-{uuid4().hex}"
    try:
        argv = ["sh", "-c", f"echo x >> {marker}; sleep 0.2"]
        started = await asyncio.gather(*(agent.start(command, argv) for _ in range(20)))
        assert [s.existing for s in started] == [False] + [True] * 19
        assert len({(s.process_id, s.started_at) for s in started}) == 1
        await agent.watch(command)
        assert (await agent.start(command, argv)).existing
        run = uuid4()
        results = await asyncio.gather(*(agent.run(run, argv, timeout_seconds=10) for _ in range(5)))
        assert len({result.state.started_at for result in results}) == 1
        assert await shell(agent, f"cat {marker}") == "x\nx\n"
    finally:
        await shell(agent, f"rm -f {marker}")


@pytest.mark.spec("SA-284")
async def test_an_ended_command_refuses_signals_and_an_unknown_one_is_not_found(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["true"])
    await agent.watch(command)
    with pytest.raises(RuntimeFailure) as failure:
        await agent.signal(command, signal.SIGTERM)
    assert failure.value.code is ErrorCode.EXECUTION_EXITED
    for ask in (agent.signal(uuid4(), 15), agent.watch(uuid4()), agent.read(uuid4())):
        with pytest.raises(RuntimeFailure) as failure:
            await ask
        assert failure.value.code is ErrorCode.EXECUTION_NOT_FOUND


async def test_forgetting_frees_an_ended_command_and_refuses_a_running_one(agent: AgentClient) -> None:
    command = uuid4()
    await agent.start(command, ["sleep", "30"])
    with pytest.raises(RuntimeFailure) as failure:
        await agent.forget(command)
    assert failure.value.code is ErrorCode.INVALID_REQUEST
    await agent.signal(command, signal.SIGKILL)
    await agent.watch(command)
    await agent.forget(command)
    await agent.forget(command)
    assert command not in {state.execution_id for state in await agent.list_commands()}


async def test_the_end_of_a_started_command_is_told_once_and_that_of_a_run_is_not(agent: AgentClient) -> None:
    ended: list[object] = []
    command = uuid4()
    await agent.start(command, ["sh", "-c", "exit 3"])
    await agent.watch(command)
    agent.on_exit(lambda state: ended.append((state.execution_id, state.exit_code)))
    await agent.run(uuid4(), ["true"], timeout_seconds=10)
    second = uuid4()
    await agent.start(second, ["true"])
    await agent.watch(second)
    await agent.stats()
    assert ended == [(command, 3), (second, 0)]


async def test_exit_codes_are_not_stolen_by_orphans(agent: AgentClient) -> None:
    async def one(code: int) -> None:
        script = f"(sleep 0.0{code % 10} &) ; (exit 9) & exit {code}"
        result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=20)
        assert result.state.exit_code == code

    await asyncio.gather(*(one(code) for code in range(60)))


async def test_many_runs_leak_neither_memory_nor_descriptors_nor_zombies(agent: AgentClient, sandbox: Sandbox) -> None:
    async def runs(count: int) -> None:
        for _ in range(count):
            await agent.run(uuid4(), ["/bin/true"], timeout_seconds=10)

    await runs(1100)  # fills what is retained
    memory, files = sandbox.agent_memory(), sandbox.agent_files()
    await runs(900)
    assert sandbox.agent_files() == files
    assert sandbox.sanitized or sandbox.agent_memory() - memory < 512 * 1024
    assert len(await agent.list_commands()) == 1024
    assert (await agent.stats()).processes == 2


async def test_commands_can_do_the_agent_no_harm(agent: AgentClient) -> None:
    script = (
        "kill -9 1; kill -STOP 1; cat /proc/1/environ /proc/1/mem; ls /proc/1/fd /proc/1/cwd/; echo x > /proc/1/mem"
    )
    result = await agent.run(uuid4(), ["sh", "-c", script], timeout_seconds=10)
    assert result.stdout == b"" and result.stderr.count(b"ermi") + result.stderr.count(b"denied") >= 5, result.stderr
    assert (await agent.stats()).processes == 2


async def test_a_command_that_stops_all_its_kind_keeps_no_other_from_starting(agent: AgentClient) -> None:
    attack = uuid4()
    # Stops every process of the uid but itself, again and again: also children of the agent on their way to exec.
    await agent.start(
        attack,
        [
            "perl",
            "-e",
            "setpgrp; while (1) { kill 'STOP', grep { $_ > 2 && $_ != $$ } map { m#/(\\d+)$# } glob '/proc/[0-9]*'; }",
        ],
    )
    for _ in range(20):
        command = uuid4()
        await agent.start(command, ["sleep", "30"])
        await agent.signal(command, signal.SIGKILL)
        await agent.watch(command)
    await agent.signal(attack, signal.SIGKILL)
    assert (await agent.run(uuid4(), ["true"], timeout_seconds=5)).state.exit_code == 0


async def test_deadlines_and_waits_of_one_command_do_not_hold_up_another(agent: AgentClient) -> None:
    loud = uuid4()
    await agent.start(loud, ["sh", "-c", "cat /dev/zero"])
    slowest = 0.0
    for _ in range(20):
        begun = time.monotonic()
        await agent.stats()
        slowest = max(slowest, time.monotonic() - begun)
    await agent.signal(loud, signal.SIGKILL)
    assert slowest < 1
