# ruff: noqa: S101, D102 - a test suite: it asserts, and its names are sentences
"""What every driver must do, as tests. A driver passes by a subclass with a `rig` fixture; see tests/contract.

Only the interface of `atoll.drivers.base` is used here, and ordinary programs that every image of a rig has: sh,
sleep, cat, env, id. What isolates and limits is in `contract_isolation`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol
from uuid import UUID, uuid4

import pytest

from atoll.domain.command import CommandResult, EndReason, Output
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import AgentConnection, Driver, InstanceSpec, Observed

WAIT_SECONDS = 20.0
_STEADY = ("sleep", "1000000")


class Rig(Protocol):
    """One driver on one machine, set up for a test and taken down after it."""

    @property
    def driver(self) -> Driver:
        """Started."""
        ...

    @property
    def image_digest(self) -> str:
        """An image with an ordinary user land."""
        ...

    @property
    def missing_digest(self) -> str:
        """An image that cannot be had."""
        ...

    async def restarted(self) -> Driver:
        """A second driver object over the same machine, as after a restart of the control plane; started."""
        ...

    async def kill_from_outside(self, instance_id: str) -> None:
        """Kill an instance behind the driver's back."""
        ...

    def remains(self, instance_id: str) -> list[str]:
        """What the machine still has of an instance: processes, files, control groups, mounts, namespaces."""
        ...


def make_spec(rig: Rig, instance_id: str = "one", **changes: object) -> InstanceSpec:
    """A small sandbox whose entrypoint sleeps."""
    values: dict[str, object] = {
        "instance_id": instance_id,
        "image_digest": rig.image_digest,
        "command": _STEADY,
        "working_dir": None,
        "zclouds": 1,
        "pid_limit": None,
        "ephemeral_disk_mb": None,
    }
    return InstanceSpec(**(values | changes))  # type: ignore[arg-type]  # callers name fields of the spec


async def created(rig: Rig, instance_id: str = "one", **changes: object) -> AgentConnection:
    """Create an instance and connect to it."""
    await rig.driver.create(make_spec(rig, instance_id, **changes))
    return await rig.driver.connect(instance_id)


async def run(agent: AgentConnection, *argv: str, timeout_seconds: float = WAIT_SECONDS) -> CommandResult:
    """Run a command to its end."""
    return await agent.run(uuid4(), argv, timeout_seconds=timeout_seconds)


async def shell(agent: AgentConnection, script: str, *, timeout_seconds: float = WAIT_SECONDS) -> str:
    """Standard output of a shell script that must succeed."""
    result = await run(agent, "sh", "-c", script, timeout_seconds=timeout_seconds)
    assert result.state.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = WAIT_SECONDS) -> None:
    """Poll until the condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def read_all(agent: AgentConnection, execution_id: UUID) -> bytes:
    """Standard output of a started command from its first byte to its end."""
    out, seq = b"", 0
    while True:
        page = await agent.read(execution_id, from_seq=seq, wait_seconds=5)
        out += b"".join(event.data for event in page.events if isinstance(event, Output))
        seq = page.next_seq
        if page.complete:
            return out


class DriverContract:
    """Subclass it, give it a fixture `rig`, and run it."""

    async def test_a_created_instance_runs_a_command(self, rig: Rig) -> None:
        agent = await created(rig)
        result = await run(agent, "sh", "-c", "echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.state.exit_code) == (b"out\n", b"err\n", 3)
        assert (await rig.driver.observe("one")).observed is Observed.RUNNING

    async def test_creating_twice_is_once(self, rig: Rig) -> None:
        agent = await created(rig)
        await shell(agent, "echo kept > /workspace/file")
        await asyncio.gather(rig.driver.create(make_spec(rig)), rig.driver.create(make_spec(rig)))
        agent = await rig.driver.connect("one")
        assert await shell(agent, "cat /workspace/file") == "kept\n"
        assert [found.instance_id for found in await rig.driver.list_instances()] == ["one"]

    async def test_creates_at_the_same_time_make_one(self, rig: Rig) -> None:
        await asyncio.gather(*(rig.driver.create(make_spec(rig)) for _ in range(3)))
        agent = await rig.driver.connect("one")
        assert (await run(agent, "true")).state.exit_code == 0

    async def test_a_started_command_is_read_by_sequence(self, rig: Rig) -> None:
        agent = await created(rig)
        execution_id = uuid4()
        started = await agent.start(execution_id, ["sh", "-c", "echo one; echo two"])
        assert not started.existing
        assert (await agent.start(execution_id, ["sh", "-c", "echo one; echo two"])).existing
        assert await read_all(agent, execution_id) == b"one\ntwo\n"

    async def test_standard_input_reaches_the_command(self, rig: Rig) -> None:
        agent = await created(rig)
        execution_id = uuid4()
        await agent.start(execution_id, ["cat"], stdin=True)
        await agent.write_stdin(execution_id, b"hello", eof=True)
        assert await read_all(agent, execution_id) == b"hello"

    @pytest.mark.spec("SA-233")
    async def test_a_signal_that_was_asked_for_cancels_the_whole_tree(self, rig: Rig) -> None:
        agent = await created(rig)
        execution_id = uuid4()
        await agent.start(execution_id, ["sh", "-c", "sleep 777 & sleep 778"])
        await agent.signal(execution_id, 9)
        state = await asyncio.wait_for(agent.watch(execution_id), WAIT_SECONDS)
        assert (state.exit_code, state.reason) == (137, EndReason.CANCELED)

        async def gone() -> bool:
            found = await shell(agent, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || true")
            return "sleep 777" not in found and "sleep 778" not in found

        await until(gone)

    @pytest.mark.spec("SA-091")
    async def test_commands_run_as_1001_in_the_workspace_and_may_write_there(self, rig: Rig) -> None:
        agent = await created(rig)
        assert await shell(agent, "id -u; id -g; id -G; pwd; touch file && echo written") == (
            "1001\n1001\n1001\n/workspace\nwritten\n"
        )

    @pytest.mark.spec("SA-205")
    async def test_the_working_directory_of_the_revision_is_the_default(self, rig: Rig) -> None:
        agent = await created(rig, working_dir="/usr")
        assert await shell(agent, "pwd") == "/usr\n"
        result = await agent.run(uuid4(), ["pwd"], cwd="/", timeout_seconds=WAIT_SECONDS)
        assert result.stdout == b"/\n"

    @pytest.mark.spec("SA-205")
    async def test_a_working_directory_that_the_image_lacks_is_made(self, rig: Rig) -> None:
        agent = await created(rig, working_dir="/workspace/of/the team")
        assert await shell(agent, "pwd; touch made; stat -c %u .") == "/workspace/of/the team\n1001\n"

    @pytest.mark.spec("SA-098")
    async def test_no_variable_of_ours_is_in_a_commands_environment(self, rig: Rig) -> None:
        agent = await created(rig)
        found = await shell(agent, "env; cat /proc/self/environ | tr '\\0' '\\n'")
        assert "PATH=" in found
        assert not [line for line in found.splitlines() if line.startswith(("SANDBOX_AGENT_", "ATOLL_"))]

    @pytest.mark.spec("SA-204")
    async def test_an_entrypoint_that_exits_never_becomes_ready(self, rig: Rig) -> None:
        with pytest.raises(RuntimeFailure) as caught:
            await rig.driver.create(make_spec(rig, command=("sh", "-c", "exit 3")))
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert "exited with 3" in caught.value.message
        assert (await rig.driver.observe("one")).observed in {Observed.EXITED, Observed.ABSENT}
        await rig.driver.cleanup("one")
        assert rig.remains("one") == []

    async def test_an_entrypoint_that_does_not_exist_is_the_callers_mistake(self, rig: Rig) -> None:
        with pytest.raises(RuntimeFailure) as caught:
            await rig.driver.create(make_spec(rig, command=("/no/such/program",)))
        assert caught.value.code is ErrorCode.INVALID_REQUEST

    async def test_an_entrypoint_that_exits_later_ends_the_instance(self, rig: Rig) -> None:
        agent = await created(rig, command=("sh", "-c", "while [ ! -e /workspace/end ]; do sleep 0.05; done; exit 4"))
        await agent.start(uuid4(), ["touch", "/workspace/end"])
        await asyncio.wait_for(agent.wait_closed(), WAIT_SECONDS)

        async def ended() -> bool:
            return (await rig.driver.observe("one")).observed is Observed.EXITED

        await until(ended)
        assert (await rig.driver.observe("one")).detail == "entrypoint exited with 4"

    async def test_an_image_that_cannot_be_had_is_the_callers_mistake(self, rig: Rig) -> None:
        with pytest.raises(RuntimeFailure) as caught:
            await rig.driver.create(make_spec(rig, image_digest=rig.missing_digest))
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        with pytest.raises(RuntimeFailure):
            await rig.driver.prepare_image(rig.missing_digest)
        assert await rig.driver.list_instances() == []

    async def test_destroying_kills_everything_and_cleaning_up_leaves_nothing(self, rig: Rig) -> None:
        agent = await created(rig)
        await agent.start(uuid4(), ["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"])
        await rig.driver.destroy("one")
        assert not [what for what in rig.remains("one") if what.startswith("process")]
        await asyncio.wait_for(agent.wait_closed(), WAIT_SECONDS)
        seen = await rig.driver.observe("one")
        assert (seen.observed, seen.detail) == (Observed.EXITED, "killed")
        await rig.driver.cleanup("one")
        assert rig.remains("one") == []
        assert (await rig.driver.observe("one")).observed is Observed.ABSENT
        assert await rig.driver.list_instances() == []

    async def test_ending_what_is_not_there_is_fine(self, rig: Rig) -> None:
        for _ in range(2):
            await rig.driver.destroy("none")
            await rig.driver.cleanup("none")
        assert (await rig.driver.observe("none")).observed is Observed.ABSENT
        with pytest.raises(RuntimeFailure) as caught:
            await rig.driver.connect("none")
        assert caught.value.code is ErrorCode.SANDBOX_NOT_FOUND

    async def test_an_id_that_is_a_path_is_refused(self, rig: Rig) -> None:
        for bad in ("../one", "a/b", "", "."):
            with pytest.raises(RuntimeFailure):
                await rig.driver.create(make_spec(rig, bad))
            with pytest.raises(RuntimeFailure):
                await rig.driver.cleanup(bad)

    async def test_a_destroyed_instance_can_be_made_again(self, rig: Rig) -> None:
        agent = await created(rig)
        await shell(agent, "echo old > /workspace/file")
        await rig.driver.destroy("one")
        agent = await created(rig)
        assert await shell(agent, "ls /workspace") == ""

    async def test_the_newest_connection_wins_and_commands_go_on(self, rig: Rig) -> None:
        first = await created(rig)
        execution_id = uuid4()
        await first.start(execution_id, ["sh", "-c", "sleep 0.5; echo late"])
        second = await rig.driver.connect("one")
        await asyncio.wait_for(first.wait_closed(), WAIT_SECONDS)
        with pytest.raises(RuntimeFailure) as caught:
            await run(first, "true")
        assert caught.value.code is ErrorCode.AGENT_UNREACHABLE
        assert await read_all(second, execution_id) == b"late\n"

    async def test_commands_outlive_the_control_plane(self, rig: Rig) -> None:
        agent = await created(rig)
        execution_id = uuid4()
        await agent.start(execution_id, ["sh", "-c", "echo early; sleep 0.5; echo late"])
        await agent.close()
        await rig.driver.stop()
        driver = await rig.restarted()
        try:
            assert [(seen.instance_id, seen.observed) for seen in await driver.list_instances()] == [
                ("one", Observed.RUNNING)
            ]
            agent = await driver.connect("one")
            assert await read_all(agent, execution_id) == b"early\nlate\n"
        finally:
            await driver.destroy("one")
            await driver.cleanup("one")
            await driver.stop()

    async def test_an_instance_killed_from_outside_is_seen(self, rig: Rig) -> None:
        agent = await created(rig)
        await rig.kill_from_outside("one")
        await asyncio.wait_for(agent.wait_closed(), WAIT_SECONDS)

        async def ended() -> bool:
            return (await rig.driver.observe("one")).observed is Observed.EXITED

        await until(ended)
        with pytest.raises(RuntimeFailure) as caught:
            await rig.driver.connect("one")
        assert caught.value.code is ErrorCode.SANDBOX_NOT_FOUND
        await rig.driver.cleanup("one")
        assert rig.remains("one") == []

    async def test_every_instance_is_listed(self, rig: Rig) -> None:
        await asyncio.gather(*(rig.driver.create(make_spec(rig, name)) for name in ("one", "two", "three")))
        await rig.driver.destroy("two")
        seen = {found.instance_id: found.observed for found in await rig.driver.list_instances()}
        assert seen == {"one": Observed.RUNNING, "two": Observed.EXITED, "three": Observed.RUNNING}

    @pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.05, 0.1, 0.15])
    async def test_a_create_that_is_given_up_leaves_nothing_running(self, rig: Rig, seconds: float) -> None:
        making = asyncio.create_task(rig.driver.create(make_spec(rig)))
        await asyncio.sleep(seconds)
        making.cancel()
        with suppress(asyncio.CancelledError):
            await making
        if not making.cancelled():
            await rig.driver.destroy("one")
        assert not [what for what in rig.remains("one") if what.startswith("process")]
        agent = await created(rig)
        assert (await run(agent, "true")).state.exit_code == 0

    @pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05, 0.1])
    async def test_destroying_what_is_being_made_wins(self, rig: Rig, seconds: float) -> None:
        making = asyncio.create_task(rig.driver.create(make_spec(rig)))
        await asyncio.sleep(seconds)
        await rig.driver.destroy("one")
        with suppress(RuntimeFailure):
            await asyncio.wait_for(making, WAIT_SECONDS)
        await rig.driver.destroy("one")
        assert not [what for what in rig.remains("one") if what.startswith("process")]
        await rig.driver.cleanup("one")
        assert rig.remains("one") == []
