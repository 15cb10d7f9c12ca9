"""Takes a sandbox from SUSPENDING to SUSPENDED, or back to where it came from.

Called by the sandbox worker, which holds the sandbox's lease. The order makes a crash harmless: the archive is stored,
then recorded, and only then is anything ended. Before the record a repeated pass takes another snapshot; after it, it
goes on with the ending.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from atoll.domain.command import EndReason
from atoll.domain.errors import Conflict, RuntimeFailure, StaleGeneration
from atoll.domain.sandbox import Action, Sandbox
from atoll.domain.snapshot import Pause, PauseFailure, Snapshot, SnapshotRules
from atoll.domain.template import DEFAULT_SNAPSHOT_MAX_MB, Revision
from atoll.domain.volume import inside_workspace
from atoll.ops.services import Services
from atoll.storage import snapshots as archives
from atoll.store import commands, sandboxes, snapshots
from atoll.store.database import Transaction
from atoll.store.transitions import transition
from atoll.workers.persistence import open_volume

log = structlog.get_logger()

_MIB = 1024 * 1024
_HELD_BEYOND_SECONDS = 60.0
"""For the record of a snapshot that took all the time it may take."""
_NOT_TAKEN = "The snapshot of the workspace could not be taken or stored."


class _GivenUp(Exception):  # noqa: N818 - reads as what happened
    """The pause ends here and the sandbox goes on."""

    def __init__(self, failure: PauseFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


async def archive(services: Services, sandbox: Sandbox, revision: Revision) -> Sandbox:
    """Take and record the snapshot that the mode wants; returns the sandbox, RUNNING again when that was given up.

    Whatever goes wrong gives the pause up: a sandbox left in SUSPENDING would be lost at its hard lifetime. Raises
    `StaleGeneration` and `Conflict` when the sandbox has moved on.
    """
    pause = sandbox.pause or Pause(attempt=sandbox.id)
    if pause.archived:
        return sandbox
    try:
        await _make_quiet(services, sandbox)
        if not sandbox.persistence_mode.takes_snapshots:
            await _make_sure_of_the_volume(services, sandbox)
            return await services.database.write(lambda tx: snapshots.commit_pause(tx, sandbox))
        snapshot = await _take(services, sandbox, pause, revision)
        log.info(
            "snapshot_taken",
            sandbox_id=sandbox.id,
            snapshot_id=snapshot.id,
            archive_bytes=snapshot.archive_bytes,
            files=snapshot.file_count,
            skipped=snapshot.skipped_count,
        )
        return await services.database.write(lambda tx: snapshots.record(tx, sandbox, snapshot))
    except (StaleGeneration, Conflict):
        raise
    except _GivenUp as given_up:
        log.warning("pause_given_up", sandbox_id=sandbox.id, failure=given_up.failure)
        failure = given_up
    except Exception:
        log.exception("pause_failed", sandbox_id=sandbox.id)
        failure = _GivenUp(PauseFailure.SNAPSHOT_FAILED, _NOT_TAKEN)
    await _let_go_on(services, sandbox)
    return await services.database.write(lambda tx: _go_back(tx, sandbox, pause, failure))


async def release(
    services: Services,
    sandbox: Sandbox,
    *,
    stop_commands: Callable[[Sandbox], Awaitable[None]],
    remove_instance: Callable[[str], Awaitable[None]],
) -> Sandbox:
    """End the compute and say that the sandbox is paused (SA-148, SA-158)."""
    if sandbox.instance_id is not None:
        await stop_commands(sandbox)
        await remove_instance(sandbox.instance_id)

    def finish(tx: Transaction) -> Sandbox:
        sandboxes.get(tx, sandbox.id, lock=True)  # before its commands, as everywhere
        commands.end_all(tx, sandbox.id, reason=EndReason.AGENT_SHUTDOWN)
        return transition(
            tx,
            sandbox,
            Action.FINISH_SUSPEND,
            suspended_at=tx.now,
            instance_id=None,
            allocation_pending=False,
            is_warm_allocation=False,
            desired_status=None,
        )

    return await services.database.write(finish)


async def _make_quiet(services: Services, sandbox: Sandbox) -> None:
    """End transfers of the gateway: what one of them has answered has to be in the snapshot, and nothing half done.

    Where a snapshot is taken, commands stand still too: it is of one moment, also of a database that is written to.
    """
    try:
        agent = await services.agents.get(str(sandbox.instance_id))
        if sandbox.persistence_mode.takes_snapshots:
            await agent.hold(limit_seconds=services.settings.snapshot_timeout_seconds + _HELD_BEYOND_SECONDS)
        else:
            await agent.end_streams()
    except RuntimeFailure:
        raise _GivenUp(
            PauseFailure.UNREACHABLE, "The sandbox cannot be reached yet, so it was not paused; retry shortly."
        ) from None


async def _let_go_on(services: Services, sandbox: Sandbox) -> None:
    """An agent that cannot be told goes on by itself, at the next connection or when its time is over."""
    with contextlib.suppress(RuntimeFailure):
        agent = await services.agents.get(str(sandbox.instance_id))
        await agent.release()


async def _make_sure_of_the_volume(services: Services, sandbox: Sandbox) -> None:
    """What the sandbox has closed is stored once it is dead, so the volume has to take it: asked while it can go on."""
    volume, opened = await open_volume(services, sandbox)
    try:
        await services.volumes.probe(opened, f"{volume.id}/.atoll-pause")
    except archives.StorageFailed as error:
        log.warning("volume_takes_nothing", sandbox_id=sandbox.id, error=str(error))
        message = "The volume cannot be written to now, so the sandbox was not paused."
        raise _GivenUp(PauseFailure.SNAPSHOT_FAILED, message) from error


async def _take(services: Services, sandbox: Sandbox, pause: Pause, revision: Revision) -> Snapshot:
    volume, opened = await open_volume(services, sandbox)
    rules = snapshot_rules(sandbox, pause, revision)
    limit = services.settings.snapshot_timeout_seconds
    try:
        return await archives.take(
            opened,
            services.volumes.workspaces.folder(str(sandbox.instance_id)),
            rules,
            # One id for one pause: what a pass that was cut off has stored and not recorded is replaced by the next.
            snapshot_id=pause.attempt,
            volume_id=volume.id,
            sandbox_id=sandbox.id,
            now=services.clock(),
            timeout=limit,
        )
    except archives.SnapshotTooLarge:
        raise _GivenUp(
            PauseFailure.SNAPSHOT_FAILED,
            f"The workspace holds more than snapshotMaxMb ({rules.max_bytes // _MIB} MB); exclude large paths with "
            "snapshotExclude or raise the cap.",
        ) from None
    except TimeoutError:
        raise _GivenUp(
            PauseFailure.TIMED_OUT,
            f"The snapshot did not finish within {limit:g} seconds; exclude large paths with snapshotExclude.",
        ) from None
    except (archives.StorageFailed, archives.ArchiveFailed, OSError) as error:
        log.warning("snapshot_failed", sandbox_id=sandbox.id, error=str(error))
        raise _GivenUp(PauseFailure.SNAPSHOT_FAILED, _NOT_TAKEN) from None


def snapshot_rules(sandbox: Sandbox, pause: Pause, revision: Revision) -> SnapshotRules:
    """What goes into the snapshot of a pause: its own words before the revision's (SA-153, SA-154)."""
    exclude = pause.snapshot_exclude if pause.snapshot_exclude is not None else revision.snapshot_exclude
    max_mb = pause.snapshot_max_mb or revision.snapshot_max_mb or DEFAULT_SNAPSHOT_MAX_MB
    return SnapshotRules(exclude or (), max_mb * _MIB, inside_workspace(sandbox.mount_path))


def _go_back(tx: Transaction, sandbox: Sandbox, pause: Pause, given_up: _GivenUp) -> Sandbox:
    """Return the sandbox to what it does: BUSY while commands run, READY otherwise (SA-166, SA-365)."""
    busy = commands.count_active(tx, sandbox.id) > 0
    snapshot_failed = given_up.failure is not PauseFailure.UNREACHABLE
    current = sandboxes.get(tx, sandbox.id, lock=True) or sandbox
    return transition(
        tx,
        sandbox,
        Action.ABORT_SUSPEND_BUSY if busy else Action.ABORT_SUSPEND_IDLE,
        desired_status=None,
        last_active_at=tx.now,
        last_snapshot_error=given_up.message if snapshot_failed else current.last_snapshot_error,
        pause=replace(pause, failure=given_up.failure, message=given_up.message),
    )
