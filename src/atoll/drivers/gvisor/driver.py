"""The gVisor driver: makes, finds and unmakes sandboxes on this machine (SA-001).

It only puts the steps in order; each part has a module of its own beside this one. All truth is on the machine: the
folder of an instance, written before the work, its control groups, its network namespace, and its shim, which
outlives this process. So every step may be cut off anywhere and is taken up, or undone, by looking again. Called by
workers and ops through `atoll.drivers.base`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from atoll.agent.binary import agent_binary
from atoll.agent.connection import AgentClient
from atoll.domain.egress import EgressPolicy
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers import process, shim
from atoll.drivers.base import AgentConnection, InstanceSpec, Observation, Observed
from atoll.drivers.gvisor import bundle, classify, mountpoints, records
from atoll.drivers.gvisor.cgroups import Cgroups, Limits, find_cgroups
from atoll.drivers.gvisor.disk import DiskWatcher, Watched
from atoll.drivers.gvisor.images import Image, ImageStore
from atoll.drivers.gvisor.layout import InstancePaths, Layout, is_instance_id
from atoll.drivers.gvisor.network import Namespace, Network
from atoll.drivers.gvisor.probe import RunscTraits, probe_runsc
from atoll.drivers.gvisor.processors import Processors
from atoll.drivers.gvisor.settings import (
    MIB,
    ZCLOUD_CPUS,
    ZCLOUD_MEMORY_BYTES,
    GvisorSettings,
    from_operator,
)
from atoll.drivers.removal import remove_tree
from atoll.settings import Settings

_KILL_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
_HOST_TASKS_SPARE = 1024
_HOSTNAME = "sandbox"
_log = structlog.get_logger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class GvisorDriver:
    """Implements `atoll.drivers.base.Driver` with runsc."""

    def __init__(
        self,
        settings: GvisorSettings,
        images: ImageStore,
        *,
        agent: Path,
        traits: RunscTraits | None = None,
        clock: Callable[[], datetime] = _utc_now,
        cgroups: Cgroups | None = None,
    ) -> None:
        """`agent` is the compiled agent. Without `traits` `start` probes runsc, which takes a quarter of a second."""
        self._settings = settings
        self._images = images
        self._clock = clock
        self._traits = traits
        self._layout = Layout.of(settings.data_dir, settings.run_base)
        self._shared = bundle.SharedFiles(agent, self._layout.resolv_conf, self._layout.hosts)
        self._cgroups = cgroups or find_cgroups(self._layout.cgroup_name)
        self._network = Network(
            self._layout,
            pool_size=settings.namespace_pool,
            address_range=settings.address_range,
            allowed_private=settings.allowed_private,
            name_servers=settings.name_servers,
        )
        self._disk = DiskWatcher(self._to_watch, self._evict, seconds=settings.disk_look_seconds)
        self._processors = Processors(self._cgroups)
        self._boots = asyncio.Semaphore(settings.boots_at_once)
        self._locks: dict[str, _CountedLock] = {}
        self._creating: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> GvisorDriver:
        """The driver as the control plane's settings want it."""
        return cls(from_operator(settings), ImageStore.from_settings(settings), agent=agent_binary())

    @property
    def name(self) -> str:
        """`gvisor`."""
        return "gvisor"

    @property
    def layout(self) -> Layout:
        """The names this driver uses on the machine; for the contract's leak checks and for `doctor`."""
        return self._layout

    async def start(self) -> None:
        """Make the folders, the parent control group, the packet rules and the first namespaces."""
        if self._traits is None:
            self._traits = await probe_runsc(self._settings.runsc)
        try:
            self._layout.instances_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._layout.run_dir.chmod(0o700)
            self._layout.disk_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            servers = "".join(f"nameserver {server}\n" for server in self._settings.name_servers)
            records.write_whole(self._layout.resolv_conf, servers)
            records.write_whole(self._layout.hosts, f"127.0.0.1 localhost {_HOSTNAME}\n::1 localhost ip6-localhost\n")
            self._cgroups.start()
        except OSError as error:
            raise classify.system_failure(error) from error
        await self._network.start(self._slots_in_use, self._restricted_slots())
        self._disk.start()
        self._processors.start()

    async def stop(self) -> None:
        """Stop the pool and the watchers; sandboxes go on."""
        await self._processors.stop()
        await self._disk.stop()
        await self._network.stop()

    async def remove_all(self) -> None:
        """End every instance and take all that this driver made off the machine, images apart. For a driver that was
        not started, while nobody else uses its data directory. May be repeated after a failure."""
        for observation in await self.list_instances():
            await self.destroy(observation.instance_id)
            await self.cleanup(observation.instance_id)
        await self._network.remove_all()
        await asyncio.to_thread(self._cgroups.remove_parent)
        await asyncio.to_thread(remove_tree, self._layout.run_dir, self._layout.disk_dir)

    async def prepare_image(self, image_digest: str) -> None:
        """Have the image unpacked."""
        await self._images.ensure(image_digest)

    async def create(self, spec: InstanceSpec) -> None:
        """Start a sandbox and return when its entrypoint stays up."""
        paths = self._layout.instance(spec.instance_id)
        async with self._alone(spec.instance_id):
            making = asyncio.create_task(self._make_or_again(spec, paths))
            self._creating[spec.instance_id] = making
            try:
                await making
            except BaseException as error:
                # Also for cancellation: what nobody waits for must not run.
                await asyncio.shield(self._end(paths))
                if isinstance(error, asyncio.CancelledError) and not _being_cancelled():
                    raise RuntimeFailure(
                        "the sandbox was terminated while it started", code=ErrorCode.SANDBOX_NOT_FOUND
                    ) from None
                if isinstance(error, process.ProgramError):
                    _log.warning("a program failed", instance_id=spec.instance_id, error=str(error))
                    raise classify.program_failure(error) from error
                if isinstance(error, OSError):
                    raise classify.system_failure(error) from error
                raise
            finally:
                del self._creating[spec.instance_id]

    async def connect(self, instance_id: str) -> AgentConnection:
        """A new connection through the shim; an earlier one ends."""
        paths = self._layout.instance(instance_id)
        if shim.alive(paths.folder) is None:
            raise _not_found()
        try:
            return await AgentClient.connect(paths.socket, timeout=_CONNECT_SECONDS)
        except RuntimeFailure as error:
            if shim.alive(paths.folder) is None:
                raise _not_found() from error
            raise

    async def destroy(self, instance_id: str) -> None:
        """Kill every process of it."""
        paths = self._layout.instance(instance_id)
        making = self._creating.get(instance_id)
        if making is not None:
            making.cancel()
            async with self._alone(instance_id):
                # Its creator has seen the cancellation and starts nothing any more.
                pass
        await self._end(paths)

    async def cleanup(self, instance_id: str) -> None:
        """Remove all that is left of it."""
        paths = self._layout.instance(instance_id)
        async with self._alone(instance_id):
            try:
                await self._remove(paths)
            except process.ProgramError as error:
                raise classify.program_failure(error) from error
            except OSError as error:
                raise classify.system_failure(error) from error

    async def observe(self, instance_id: str) -> Observation:
        """Look at its folder, its shim and its control group."""
        return self._look(self._layout.instance(instance_id))

    async def list_instances(self) -> list[Observation]:
        """Everything with our mark: folders, control groups and data, each possibly without the others."""
        # In a thread: a hundred instances are a tenth of a second of small files.
        return await asyncio.to_thread(self._look_at_all)

    async def collect_images(self, in_use: set[str]) -> list[str]:
        """Delete unused images; those of sandboxes on this machine are in use whatever the caller knows."""
        here = {spec.image_digest for paths in self._all_paths() if (spec := records.read_spec(paths)) is not None}
        return await self._images.collect(
            in_use | here, unused_for_seconds=self._settings.image_unused_seconds, now=self._clock()
        )

    async def _make_or_again(self, spec: InstanceSpec, paths: InstancePaths) -> None:
        """A start, and another in a second namespace where runsc rejects the first.

        The kernel goes on arranging an interface for a moment after it was made, later on a machine that is busy, and
        runsc gives up when what it reads changes meanwhile.
        """
        try:
            await self._make(spec, paths)
        except classify.NamespaceRejected:
            await self._make(spec, paths)  # begins by removing what is left

    async def _make(self, spec: InstanceSpec, paths: InstancePaths) -> None:
        """The steps of a start. The records are on disk before the thing they speak of is used."""
        if shim.alive(paths.folder) is not None and not paths.exit.exists():
            # A create that was cut off, or came twice: the sandbox is there, only its readiness may be open.
            if not paths.ready.exists():
                await self._finish(spec, paths)
            return
        if self._anything_left(paths):
            await self._remove(paths)
        image = await self._images.ensure(spec.image_digest)
        records.write_spec(paths, spec)
        namespace = await self._network.take()
        try:
            records.write_slot(paths, namespace.slot)
        except BaseException:
            self._network.give_back(namespace)
            raise
        # Once it is on record it is the instance's, and goes with it: given back, it would be two sandboxes'.
        await self._network.restrict(namespace.slot, spec.egress)
        limits = self._limits(spec)
        self._cgroups.create(spec.instance_id, limits)
        points = mountpoints.missing_points(spec.mounts)
        if points != [] and points != [bundle.WORKSPACE]:
            image = replace(image, rootfs=await mountpoints.make_view(paths.folder, image.rootfs, points))
        self._write_bundle(spec, image, paths, namespace, limits)
        async with self._boots:
            await shim.start(self._shim_argv(paths, limits), environment=_program_environment())
            await self._finish(spec, paths)

    async def _finish(self, spec: InstanceSpec, paths: InstancePaths) -> None:
        """Wait until the entrypoint stays up, then put the processor limit in force.

        The boot itself may use every processor, since it is mostly computing; what comes after it is mostly waking.
        """
        limits = self._limits(spec)
        await self._settled(paths, booted=lambda: self._processors.place(spec.instance_id, limits.cpus))
        self._cgroups.limit_cpu(spec.instance_id, limits)
        records.write_whole(paths.ready, "")

    async def _settled(self, paths: InstancePaths, *, booted: Callable[[], None]) -> None:
        seconds = self._settings.boot_timeout_seconds
        answered = False
        try:
            async with asyncio.timeout(seconds):
                client = await AgentClient.connect(paths.socket, timeout=2 * seconds)
                answered = True
                booted()
                try:
                    await client.wait_settled()
                finally:
                    await client.close()
        except TimeoutError:
            raise classify.boot_timeout(seconds) from None
        except RuntimeFailure as error:
            raise await self._boot_failure(paths, error, answered=answered) from error

    async def _boot_failure(self, paths: InstancePaths, error: RuntimeFailure, *, answered: bool) -> RuntimeFailure:
        """Why the connection ended before the sandbox was ready: the shim writes it down a moment after the end."""
        if not await shim.gone(paths.folder, seconds=_KILL_SECONDS):
            return error
        log = shim.log_tail(paths.folder)
        _log.warning("a sandbox ended while it started", instance_id=paths.instance_id, log=log[-2_000:])
        return classify.boot_failure(shim.ending(paths.folder), log, answered=answered)

    def _limits(self, spec: InstanceSpec) -> Limits:
        pid_limit = spec.pid_limit or self._settings.default_pid_limit
        return Limits(
            memory_bytes=spec.zclouds * ZCLOUD_MEMORY_BYTES + self._settings.sentry_allowance_bytes,
            reserve_bytes=self._settings.memory_reserve_bytes,
            cpus=spec.zclouds * ZCLOUD_CPUS,
            # A process of the sandbox is a few threads of the machine; this only stops gVisor itself from running away.
            host_tasks=4 * pid_limit + _HOST_TASKS_SPARE,
        )

    def _write_bundle(
        self, spec: InstanceSpec, image: Image, paths: InstancePaths, namespace: Namespace, limits: Limits
    ) -> None:
        for folder in (paths.bundle, paths.runsc_root, paths.overlay_dir, paths.tmp_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        pid_limit = spec.pid_limit or self._settings.default_pid_limit
        argv = bundle.agent_argv(spec, image, pid_limit=pid_limit, memory_limit=limits.memory_bytes)
        config = bundle.config(
            argv,
            image,
            paths,
            self._shared,
            namespace=namespace.path,
            hostname=_HOSTNAME,
            pid_limit=pid_limit,
            mounts=spec.mounts,
        )
        (paths.bundle / "config.json").write_text(json.dumps(config))
        paths.meminfo.write_text(bundle.meminfo(spec.zclouds * ZCLOUD_MEMORY_BYTES))

    def _shim_argv(self, paths: InstancePaths, limits: Limits) -> list[str]:
        traits = self._traits
        if traits is None:
            raise RuntimeFailure("the driver has not been started", code=ErrorCode.SANDBOX_NOT_READY)
        return bundle.shim_argv(
            self._shared.agent,
            paths.folder,
            bundle.runsc_argv(self._settings.runsc, paths),
            hide_proc_sys_net=traits.hide_proc_sys_net,
            meminfo=paths.meminfo,
            join=self._cgroups.join_files(paths.instance_id),
            kill=self._cgroups.kill_folders(paths.instance_id),
            memory=self._cgroups.memory_watch(paths.instance_id, limits),
        )

    async def _end(self, paths: InstancePaths) -> None:
        """Kill it: by its shim, and where that is dead or does not do it, by its control group."""
        if shim.alive(paths.folder) is not None and not await shim.kill(paths.folder, seconds=_KILL_SECONDS):
            await shim.kill_process(paths.folder, seconds=_KILL_SECONDS)
        if self._cgroups.processes(paths.instance_id) and not await asyncio.to_thread(
            self._cgroups.kill, paths.instance_id, seconds=_KILL_SECONDS
        ):
            raise RuntimeFailure("the sandbox could not be killed", code=ErrorCode.UNKNOWN)
        # The shim is the last to go, once it has written down how the sandbox ended.
        if not await shim.gone(paths.folder, seconds=_KILL_SECONDS):
            await shim.kill_process(paths.folder, seconds=_KILL_SECONDS)

    async def _remove(self, paths: InstancePaths) -> None:
        """Remove what a dead instance left; its folder goes last, since it names the rest."""
        await self._end(paths)
        slot = records.read_slot(paths)
        if slot is not None:
            await self._network.remove([slot])
        await mountpoints.remove_view(paths.folder)
        await asyncio.to_thread(self._remove_files, paths)

    def _remove_files(self, paths: InstancePaths) -> None:
        self._cgroups.remove(paths.instance_id)
        remove_tree(paths.disk)
        remove_tree(paths.folder)

    def _look(self, paths: InstancePaths) -> Observation:
        instance_id = paths.instance_id
        if shim.alive(paths.folder) is not None and not paths.exit.exists():
            ready = paths.ready.exists() and instance_id not in self._creating
            return Observation(instance_id, Observed.RUNNING if ready else Observed.STARTING)
        if instance_id in self._creating:
            return Observation(instance_id, Observed.STARTING)
        if not self._anything_left(paths):
            return Observation(instance_id, Observed.ABSENT)
        detail = records.read_ending(paths) or classify.ended_detail(
            shim.ending(paths.folder), was_ready=paths.ready.exists()
        )
        return Observation(instance_id, Observed.EXITED, detail)

    def _look_at_all(self) -> list[Observation]:
        names = _names(self._layout.instances_dir) | _names(self._layout.disk_dir)
        names |= {name for name in self._cgroups.instances() if is_instance_id(name)}
        seen = [self._look(self._layout.instance(instance_id)) for instance_id in sorted(names)]
        return [observation for observation in seen if observation.observed is not Observed.ABSENT]

    def _anything_left(self, paths: InstancePaths) -> bool:
        return paths.folder.exists() or paths.disk.exists() or self._cgroups.exists(paths.instance_id)

    def _all_paths(self) -> list[InstancePaths]:
        return [self._layout.instance(instance_id) for instance_id in _names(self._layout.instances_dir)]

    def _slots_in_use(self) -> set[int]:
        return {slot for paths in self._all_paths() if (slot := records.read_slot(paths)) is not None}

    def _restricted_slots(self) -> dict[int, EgressPolicy]:
        found = {}
        for paths in self._all_paths():
            slot, spec = records.read_slot(paths), records.read_spec(paths)
            if slot is not None and spec is not None and spec.egress is not None:
                found[slot] = spec.egress
        return found

    def _to_watch(self) -> list[Watched]:
        watched = []
        for paths in self._all_paths():
            spec = records.read_spec(paths)
            if spec is not None and paths.ready.exists() and not paths.exit.exists():
                limit = spec.ephemeral_disk_mb or self._settings.default_ephemeral_disk_mb
                processes = partial(self._cgroups.processes, paths.instance_id)
                counted = [mount.source for mount in spec.mounts if mount.counts_as_disk]
                counted += [mount.cache for mount in spec.mounts if mount.cache is not None]
                folders = tuple(Path(folder) for folder in counted)
                watched.append(Watched(paths.instance_id, paths.disk, limit * MIB, processes, folders))
        return watched

    async def _evict(self, instance_id: str) -> None:
        paths = self._layout.instance(instance_id)
        records.write_whole(paths.ending, classify.EVICTED)
        await self._end(paths)

    @contextlib.asynccontextmanager
    async def _alone(self, instance_id: str) -> AsyncIterator[None]:
        """One making or removing of an instance at a time in this process; other processes are kept off by leases."""
        counted = self._locks.setdefault(instance_id, _CountedLock())
        counted.users += 1
        try:
            async with counted.lock:
                yield
        finally:
            counted.users -= 1
            if not counted.users:
                del self._locks[instance_id]


class _CountedLock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


def _names(folder: Path) -> set[str]:
    """The folders in a folder that can be instances."""
    try:
        names = {entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)}
        return {name for name in names if is_instance_id(name)}
    except FileNotFoundError:
        return set()


def _being_cancelled() -> bool:
    """Whether it is this task that is to end, and not only the one it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _program_environment() -> dict[str, str]:
    """Of the shim and of runsc: nothing of the server's, whose variables may hold secrets."""
    return {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), "HOME": "/", "LANG": "C.UTF-8"}


def _not_found() -> RuntimeFailure:
    return RuntimeFailure("the sandbox does not run any more", code=ErrorCode.SANDBOX_NOT_FOUND)
