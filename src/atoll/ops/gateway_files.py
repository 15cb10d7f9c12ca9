"""Files of a sandbox for its gateway: every operation is one worker inside the sandbox, run as the sandbox's user.

The sandbox decides what a path leads to (`atoll.agent.files`); here is who may ask, below which folders, for how long,
and what a fault means to the caller. Nothing of a file is kept: bytes pass through, no faster than both ends take them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from atoll.agent.files import FileFault, FileWorker, More, Refused, worker_arguments
from atoll.domain.errors import (
    AtollError,
    Conflict,
    ErrorCode,
    Forbidden,
    Invalid,
    LimitReached,
    NotFound,
    RuntimeFailure,
)
from atoll.domain.files import Counts, Fault, FileEntry
from atoll.domain.gateway import GatewayScope
from atoll.domain.sandbox import Sandbox, check_accepts_commands
from atoll.domain.volume import WORKSPACE
from atoll.ops.access import load_usable_sandbox
from atoll.ops.command_admission import admit_or_resume
from atoll.ops.gateway_session import GatewayCaller, check_again
from atoll.ops.interruption import interrupted_by
from atoll.ops.services import Services
from atoll.store import sandboxes
from atoll.store.database import Transaction

CHECK_SECONDS = 5.0
"""How often a transfer looks whether its token is still good."""
SHORT_LIMIT_SECONDS = 30.0
"""For an operation on one name."""
TREE_LIMIT_SECONDS = 300.0
"""For one that goes over folders: a list, a recursive delete."""
STALL_LIMIT_SECONDS = 60.0
"""How long a transfer may stand still, whichever end it waits for."""
_MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Of paths and of what links lead to, in one page, as the worker counts them."""
GATHERED_BYTES = 512 * 1024
"""Of a body, sent to a worker at once."""
MAX_PAGE_ENTRIES = 10_000
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, and the path after which it goes on, relative to the listed folder; None at the end."""

    entries: list[FileEntry]
    after: bytes | None


async def admit(services: Services, caller: GatewayCaller) -> Sandbox:
    """The caller's sandbox, resumed when it was paused (SA-360). Raises `Conflict` while it does not run."""

    return await admit_or_resume(
        services, caller.principal, caller.account_id, caller.sandbox_id, lambda tx: _accepting(tx, caller)
    )


def _accepting(tx: Transaction, caller: GatewayCaller) -> Sandbox:
    sandbox = load_usable_sandbox(tx, caller.principal, caller.account_id, caller.sandbox_id)
    check_accepts_commands(sandbox)
    return sandbox


async def open_worker(services: Services, caller: GatewayCaller, operation: str, *arguments: bytes) -> FileWorker:
    """Begin an operation; `async with` the worker. Paths begin at `/workspace`, or lie in it or the volume (SA-456)."""
    sandbox = await admit(services, caller)
    roots = [WORKSPACE.encode()]
    if sandbox.mount_path is not None:
        roots.append(sandbox.mount_path.encode())
    agent = await services.agents.get(str(sandbox.instance_id))
    stream = await agent.open_files(worker_arguments(operation, *arguments, roots=roots))
    try:
        # A pause that began before the worker ends none of it: what it would write could be missing in the snapshot.
        await services.database.read(lambda tx: _accepting(tx, caller))
    except BaseException:
        stream.close()
        raise
    return FileWorker(stream)


@asynccontextmanager
async def translated(limit_seconds: float | None) -> AsyncIterator[None]:
    """Raise a worker's fault as what it means to the caller, and its silence as a failure of the sandbox."""
    try:
        async with asyncio.timeout(limit_seconds):
            yield
    except FileFault as failure:
        raise refusal(failure) from None
    except TimeoutError:
        raise RuntimeFailure(
            "The sandbox did not finish the work on its files in time.", code=ErrorCode.UNKNOWN
        ) from None


@asynccontextmanager
async def while_allowed(services: Services, caller: GatewayCaller, scope: GatewayScope) -> AsyncIterator[None]:
    """Cancel what is inside once the token has ended, and raise why (SA-354, SA-457). Until then it is activity."""

    async def refused() -> Exception:
        while True:
            left = (caller.expires_at - services.clock()).total_seconds()
            await asyncio.sleep(min(CHECK_SECONDS, max(left, 0)))
            try:
                await check_again(services, caller, frozenset({scope}))
                await services.database.write(lambda tx: sandboxes.touch(tx, caller.sandbox_id))
            except AtollError as error:
                return error
            except Exception:  # what cannot be checked is not allowed
                return RuntimeFailure("The session could not be looked up.", code=ErrorCode.UNKNOWN)

    async with interrupted_by(refused):
        yield


async def stat(services: Services, caller: GatewayCaller, path: bytes) -> FileEntry:
    """What lies at a path; a link itself, not what it leads to. Raises `NotFound`."""
    return await _one_entry(services, caller, "stat", path)


async def make_folder(services: Services, caller: GatewayCaller, path: bytes, mode: int) -> FileEntry:
    """Make a folder and those above it; one that is there already keeps its mode. Raises `Conflict` for a file."""
    return await _one_entry(services, caller, "mkdir", path, b"%o" % mode)


async def move(services: Services, caller: GatewayCaller, source: bytes, target: bytes, *, replace: bool) -> FileEntry:
    """Rename within one file system, making the folders above the target. Raises `Conflict` for a taken name."""
    return await _one_entry(services, caller, "move", source, target, b"replace" if replace else b"keep")


async def delete(services: Services, caller: GatewayCaller, path: bytes, *, recursive: bool) -> None:
    """Remove a file, a link or a folder; one with content only when `recursive`. Raises `NotFound`, `Conflict`."""
    async with (
        translated(TREE_LIMIT_SECONDS),
        await open_worker(services, caller, "delete", path, b"recursive" if recursive else b"empty") as worker,
    ):
        await worker.finished()


async def list_folder(
    services: Services, caller: GatewayCaller, path: bytes, *, depth: int, limit: int, after: bytes
) -> Page:
    """A folder's entries in the order of their names, `depth` folders deep; a folder comes before what is in it."""
    arguments = (path, b"%d" % depth, b"%d" % limit, after)
    entries: list[FileEntry] = []
    size = 0
    async with (
        translated(TREE_LIMIT_SECONDS),
        await open_worker(services, caller, "list", *arguments) as worker,
    ):
        while (record := await worker.record()) is not None:
            if isinstance(record, More):
                return Page(entries, record.after)
            if isinstance(record, FileEntry):
                entries.append(record)
                size += len(record.path) + len(record.target)
            if not isinstance(record, FileEntry) or len(entries) > limit or size > _MAX_PAGE_BYTES:
                raise RuntimeFailure("The sandbox listed its files in a form without sense.", code=ErrorCode.UNKNOWN)
    return Page(entries, None)


async def write(
    services: Services, caller: GatewayCaller, path: bytes, mode: int | None, body: AsyncIterator[bytes]
) -> FileEntry:
    """Put a file in place of what was there, in one step once all of it has come (SA-451).

    A body that breaks off, a full disk or a token that ends meanwhile leaves what was there, and nothing else.
    """
    if path.endswith(b"/"):
        raise Invalid("the path of a file does not end with a slash.", field="path")
    given = b"" if mode is None else b"%o" % mode
    async with await open_worker(services, caller, "write", path, given) as worker:
        await _send(worker, body)
        async with translated(STALL_LIMIT_SECONDS):
            return await worker.entry()


async def unpack(services: Services, caller: GatewayCaller, path: bytes, body: AsyncIterator[bytes]) -> Counts:
    """Unpack a tar stream into a folder (SA-453). It is not one step: what came before a refused entry stays.

    Raises PATH_ESCAPE for an entry that would lie outside the folder, and `Invalid` for what is no tar stream.
    """
    async with await open_worker(services, caller, "unpack", path) as worker:
        await _send(worker, body)
        async with translated(STALL_LIMIT_SECONDS):
            record = await worker.record()
            if isinstance(record, Counts):
                await worker.finished()
                return record
            try:
                await worker.finished()
            except FileFault as failure:
                raise FileFault(failure.fault, record.path if isinstance(record, Refused) else None) from None
    raise RuntimeFailure("The sandbox unpacked the archive and did not say how.", code=ErrorCode.UNKNOWN)


async def _one_entry(services: Services, caller: GatewayCaller, operation: str, *arguments: bytes) -> FileEntry:
    async with (
        translated(SHORT_LIMIT_SECONDS),
        await open_worker(services, caller, operation, *arguments) as worker,
    ):
        return await worker.entry()


async def _send(worker: FileWorker, body: AsyncIterator[bytes]) -> None:
    """The whole body, each part within the limit; stops early when the worker has failed.

    Small parts are gathered: each one sent wakes the agent and the worker, which costs more than its bytes.
    """
    waiting = bytearray()
    while not worker.over:
        part = await anext(body, None)
        waiting += part or b""
        if part is None or len(waiting) >= GATHERED_BYTES:
            async with translated(STALL_LIMIT_SECONDS):
                await worker.send(bytes(waiting))
            waiting.clear()
        if part is None:
            worker.finish()
            return


_MEANINGS: dict[Fault, AtollError] = {
    Fault.NOT_FOUND: NotFound("There is no such file or folder."),
    Fault.ESCAPE: Invalid("The path leads outside the workspace and the volume.", code=ErrorCode.PATH_ESCAPE),
    Fault.IS_FOLDER: Conflict("It is a folder.", reason="is_folder"),
    Fault.NOT_FOLDER: Conflict("A part of the path is not a folder.", reason="not_folder"),
    Fault.DENIED: Forbidden("The sandbox's user may not do that.", reason="permission_denied"),
    Fault.NO_SPACE: Conflict("The disk of the sandbox is full.", reason="no_space"),
    Fault.EXISTS: Conflict("The name is taken.", reason="exists"),
    Fault.NOT_EMPTY: Conflict("The folder is not empty; delete it with recursive=true.", reason="not_empty"),
    Fault.LINK_LOOP: Invalid("The path holds too many symbolic links."),
    Fault.READ_ONLY: Conflict("The file system is read-only.", reason="read_only"),
    Fault.NAME_TOO_LONG: Invalid("A name of the path is too long."),
    Fault.TOO_DEEP: Invalid("The folders are nested too deeply."),
    Fault.NOT_REGULAR: Conflict("It is neither a file nor a folder.", reason="not_regular"),
    Fault.OTHER_FILE_SYSTEM: Conflict("It cannot be moved to another file system.", reason="other_file_system"),
    Fault.BAD_INPUT: Invalid("What was sent is not in the form that the operation takes."),
    Fault.CUT: Invalid("The body ended too early."),
    Fault.CHANGED: Conflict("It changed while it was worked on; try again.", reason="changed"),
    Fault.BUSY: Conflict("The workspace and the volume themselves stay where they are.", reason="busy"),
    Fault.TOO_MANY: LimitReached("There are more folders to watch than are watched at once."),
    Fault.NO_PROCESS: RuntimeFailure(
        "The sandbox has no process left for work on its files.", code=ErrorCode.TOO_MANY_EXECUTIONS
    ),
    Fault.STOPPED: Conflict("The sandbox is being paused or stopped.", code=ErrorCode.SANDBOX_NOT_READY),
}


def refusal(failure: FileFault) -> AtollError:
    """What a fault means to the caller; a fresh exception each time."""
    known = _MEANINGS.get(failure.fault)
    if known is None:
        return RuntimeFailure("The work on the files of the sandbox failed.", code=ErrorCode.UNKNOWN)
    where = "" if failure.path is None else f" (entry {shown(failure.path)[:500]})"
    message = known.message.removesuffix(".") + where + "."
    if isinstance(known, RuntimeFailure):
        return RuntimeFailure(message, code=known.code)
    return (
        type(known)(message, code=known.code)
        if isinstance(known, Invalid)
        else type(known)(message, code=known.code, reason=known.reason)
    )


def shown(name: bytes) -> str:
    """A name as text; what is no UTF-8 in it becomes U+FFFD."""
    return name.decode("utf-8", "replace")
