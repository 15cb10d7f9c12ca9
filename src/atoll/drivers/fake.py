"""A driver without gVisor, for tests: the real agent behind the real shim, in a bubblewrap of the host.

API and worker tests use it where the sandbox is not the subject: commands, signals, output and files behave as in a
sandbox, it starts in milliseconds, and it needs neither runsc nor images. It isolates from accidents, not from
attackers, and enforces no limit of memory, processors, disk or network; it is never chosen unless a setting names it.
`Faults` lets a test break any call.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from atoll.agent.connection import AgentClient
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers import process, shim
from atoll.drivers.base import AgentConnection, HostMount, InstanceSpec, Observation, Observed

_AGENT = "/.atoll/agent"
_WORKSPACE = "/workspace"
_COMMAND_ID = 1001
_SECONDS = 10.0
_NO_PID_LIMIT = 65_536
"""RLIMIT_NPROC counts a user's processes over the whole machine here, so a small one would fail at random."""

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": _WORKSPACE, "USER": "sandbox", "LANG": "C.UTF-8"}

Moment = Literal["before", "after"]


@dataclass(slots=True)
class Faults:
    """What a test wants to go wrong. Calls are named as the methods of `Driver`."""

    _failures: dict[tuple[str, Moment], list[RuntimeFailure]] = field(default_factory=lambda: defaultdict(list))
    _delays: dict[str, float] = field(default_factory=dict)
    _gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def fail_next(self, call: str, failure: RuntimeFailure, *, moment: Moment = "before") -> None:
        """The next such call fails: before it does anything, or after it has done everything."""
        self._failures[call, moment].append(failure)

    def delay(self, call: str, seconds: float) -> None:
        """Every such call takes this much longer; 0 ends that."""
        self._delays[call] = seconds

    def hold(self, call: str) -> asyncio.Event:
        """Every such call waits until the event is set."""
        return self._gates.setdefault(call, asyncio.Event())

    @asynccontextmanager
    async def around(self, call: str) -> AsyncIterator[None]:
        """Used by the driver around each call."""
        if call in self._gates:
            await self._gates[call].wait()
        if self._delays.get(call):
            await asyncio.sleep(self._delays[call])
        self._raise(call, "before")
        yield
        self._raise(call, "after")

    def _raise(self, call: str, moment: Moment) -> None:
        if failures := self._failures[call, moment]:
            raise failures.pop(0)


class FakeDriver:
    """Implements `Driver` below one folder, which also is its only truth."""

    def __init__(
        self,
        root: Path,
        *,
        agent: Path,
        entrypoint: Sequence[str] = ("sleep", "infinity"),
        missing_images: frozenset[str] = frozenset(),
    ) -> None:
        """`root` must be short (socket paths end at 107 bytes). `entrypoint` plays the image's own; `missing_images`
        are refused."""
        self.faults = Faults()
        self._root = root
        self._agent = agent
        self._entrypoint = tuple(entrypoint)
        self._missing_images = missing_images
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def name(self) -> str:
        """`fake`."""
        return "fake"

    async def start(self) -> None:
        """Make the folder. Raises UNKNOWN without bubblewrap."""
        async with self.faults.around("start"):
            if shutil.which("bwrap") is None:
                raise RuntimeFailure("the fake driver needs bubblewrap", code=ErrorCode.UNKNOWN)
            self._root.mkdir(parents=True, exist_ok=True)

    async def stop(self) -> None:
        """Nothing of this process is needed; instances go on."""
        async with self.faults.around("stop"):
            pass

    async def prepare_image(self, image_digest: str) -> None:
        """Refuses only the images that are said to be missing."""
        async with self.faults.around("prepare_image"):
            self._check_image(image_digest)

    async def create(self, spec: InstanceSpec) -> None:
        """Start the agent and return when its entrypoint stays up."""
        folder = self._folder(spec.instance_id)
        async with self._locks[spec.instance_id]:
            making = asyncio.create_task(self._make(spec, folder))
            self._creating[spec.instance_id] = making
            try:
                await making
            except BaseException as error:
                await asyncio.shield(self._end(folder))
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling():
                    raise RuntimeFailure(
                        "the sandbox was terminated while it started", code=ErrorCode.SANDBOX_NOT_FOUND
                    ) from None
                if isinstance(error, process.ProgramError | OSError):
                    raise RuntimeFailure("the fake sandbox could not start", code=ErrorCode.UNKNOWN) from error
                raise
            finally:
                del self._creating[spec.instance_id]

    async def connect(self, instance_id: str) -> AgentConnection:
        """A new connection through the shim."""
        async with self.faults.around("connect"):
            folder = self._folder(instance_id)
            if shim.alive(folder) is None:
                raise RuntimeFailure("the sandbox does not run any more", code=ErrorCode.SANDBOX_NOT_FOUND)
            return await AgentClient.connect(folder / "agent.sock", timeout=_SECONDS)

    async def destroy(self, instance_id: str) -> None:
        """Kill its process namespace."""
        async with self.faults.around("destroy"):
            folder = self._folder(instance_id)
            if making := self._creating.get(instance_id):
                making.cancel()
                async with self._locks[instance_id]:
                    pass
            await self._end(folder)

    async def cleanup(self, instance_id: str) -> None:
        """Remove its folder."""
        async with self.faults.around("cleanup"):
            folder = self._folder(instance_id)
            await self._end(folder)
            shutil.rmtree(folder, ignore_errors=True)

    async def observe(self, instance_id: str) -> Observation:
        """Look at its folder and shim."""
        async with self.faults.around("observe"):
            return self._look(instance_id)

    async def list_instances(self) -> list[Observation]:
        """Every folder."""
        async with self.faults.around("list_instances"):
            names = sorted(entry.name for entry in os.scandir(self._root)) if self._root.exists() else []
            return [self._look(name) for name in names]

    async def collect_images(self, in_use: set[str]) -> list[str]:
        """There are none."""
        async with self.faults.around("collect_images"):
            return []

    async def kill_from_outside(self, instance_id: str) -> None:
        """What an administrator's `kill -9` does: the shim and everything below it are gone, unannounced."""
        await shim.kill_process(self._folder(instance_id), seconds=_SECONDS)

    async def _make(self, spec: InstanceSpec, folder: Path) -> None:
        async with self.faults.around("create"):
            self._check_image(spec.image_digest)
            if shim.alive(folder) is None or (folder / "exit").exists():
                shutil.rmtree(folder, ignore_errors=True)
                (folder / "workspace").mkdir(parents=True)
                os.chown(folder / "workspace", _identity(), _identity())
                (folder / "spec.json").write_text(json.dumps(asdict(spec)))
                environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
                await shim.start(self._argv(spec, folder), environment=environment)
            elif (folder / "ready").exists():
                return
            await self._settled(folder)
            (folder / "ready").touch()

    async def _settled(self, folder: Path) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                client = await AgentClient.connect(folder / "agent.sock", timeout=2 * _SECONDS)
                try:
                    await client.wait_settled()
                finally:
                    await client.close()
        except TimeoutError:
            raise RuntimeFailure("the sandbox did not become ready", code=ErrorCode.AGENT_UNREACHABLE) from None
        except RuntimeFailure:
            await shim.gone(folder, seconds=_SECONDS)
            ending = shim.ending(folder)
            if ending is None or ending.killed or ending.signal:
                raise
            raise RuntimeFailure(
                f"the entrypoint exited with {ending.code} before the sandbox was ready", code=ErrorCode.INVALID_REQUEST
            ) from None

    def _argv(self, spec: InstanceSpec, folder: Path) -> list[str]:
        identity = _identity()
        variables = [word for item in _ENVIRONMENT.items() for word in ("--setenv", *item)]
        bwrap = [
            "bwrap",
            *("--die-with-parent", "--as-pid-1", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
            *("--hostname", "sandbox", *_system_folders(), "--proc", "/proc", "--dev", "/dev"),
            *("--perms", "1777", "--tmpfs", "/tmp", "--perms", "0755", "--dir", "/.atoll"),  # noqa: S108 - inside
            *("--bind", str(folder / "workspace"), _WORKSPACE, "--ro-bind", str(self._agent), _AGENT),
            *(word for mount in spec.mounts for word in _mounted(mount)),
            *("--clearenv", *variables, "--chdir", "/"),
        ]
        agent = [_AGENT, "agent", "--uid", str(identity), "--gid", str(identity), "--nproc", str(_NO_PID_LIMIT)]
        agent += ["--workdir", spec.working_dir or _WORKSPACE, "--", *(spec.command or self._entrypoint)]
        return [str(self._agent), "shim", "--dir", str(folder), "--", *bwrap, "--", *agent]

    def _look(self, instance_id: str) -> Observation:
        folder = self._folder(instance_id)
        if shim.alive(folder) is not None and not (folder / "exit").exists():
            ready = (folder / "ready").exists() and instance_id not in self._creating
            return Observation(instance_id, Observed.RUNNING if ready else Observed.STARTING)
        if instance_id in self._creating:
            return Observation(instance_id, Observed.STARTING)
        if not folder.exists():
            return Observation(instance_id, Observed.ABSENT)
        ending = shim.ending(folder)
        if ending is None or (ending.signal and not ending.killed):
            return Observation(instance_id, Observed.EXITED, "killed from outside")
        return Observation(
            instance_id, Observed.EXITED, "killed" if ending.killed else f"entrypoint exited with {ending.code}"
        )

    async def _end(self, folder: Path) -> None:
        if shim.alive(folder) is None:
            return
        await shim.kill(folder, seconds=_SECONDS)
        if not await shim.gone(folder, seconds=_SECONDS):
            await shim.kill_process(folder, seconds=_SECONDS)

    def _folder(self, instance_id: str) -> Path:
        if not instance_id or "/" in instance_id or instance_id.startswith("."):
            raise RuntimeFailure("the instance id is malformed", code=ErrorCode.INVALID_REQUEST)
        return self._root / instance_id

    def _check_image(self, image_digest: str) -> None:
        if image_digest in self._missing_images:
            raise RuntimeFailure("the image does not exist", code=ErrorCode.INVALID_REQUEST)


def _identity() -> int:
    """Commands run as 1001 where the tests run as root, and as the caller elsewhere."""
    return _COMMAND_ID if os.getuid() == 0 else os.getuid()


def _mounted(mount: HostMount) -> list[str]:
    """Bind a folder, making the folders above it such that everybody may pass."""
    above = [path for path in reversed(PurePosixPath(mount.target).parents) if str(path) not in {"/", _WORKSPACE}]
    made = [word for path in above for word in ("--perms", "0755", "--dir", str(path))]
    return [*made, "--bind", mount.source, mount.target]


def _system_folders() -> list[str]:
    """The host's programs, read-only."""
    words = [word for path in ("/usr", "/etc", "/opt") if Path(path).exists() for word in ("--ro-bind", path, path)]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", f"usr/{name}", str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    return words
