"""The bodies, queries and answers of the gateway's files and archives, and names as JSON and queries write them.

Names are bytes. In JSON they are text: what is no UTF-8 becomes U+FFFD, and then a field beside it (`rawPath`) holds
the name percent-encoded. Queries take any bytes percent-encoded, so a `rawPath` can be put into one as it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydantic import ConfigDict, Field
from starlette.requests import Request

from atoll.api.sandbox.answers import Success
from atoll.api.sandbox.fields import Answer, Body, Moment, Query, QueryBoolean, QueryInteger
from atoll.domain.errors import Invalid
from atoll.domain.files import FileEntry
from atoll.domain.times import rfc3339
from atoll.ops.gateway_files import MAX_DEPTH, MAX_PAGE_ENTRIES, shown

MAX_PATH_BYTES = 16_383
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MODE = r"^0?[0-7]{3}$"

PathText = Annotated[str, Field(max_length=MAX_PATH_BYTES, pattern=r"^[^\x00]*$")]
RawPath = Annotated[
    str, Field(max_length=3 * MAX_PATH_BYTES, pattern=r"^[\x21-\x7e]*$", description="Percent-encoded, in its place.")
]
Mode = Annotated[str, Field(pattern=_MODE, description="Permission bits in octal.", examples=["0644"])]


class PathQuery(Query):
    """Which file or folder. Any bytes, percent-encoded; relative to `/workspace`, or absolute."""

    path: Annotated[str, Field(description="Relative to `/workspace`, or absolute and inside it or the volume.")]


class FolderQuery(Query):
    """Which folder; the workspace where none is named."""

    path: Annotated[str, Field(description="Relative to `/workspace`, or absolute and inside it or the volume.")] = ""


class WriteQuery(PathQuery):
    """Which file, and its mode."""

    mode: Annotated[Mode | None, Field(description="Octal; without it a new file gets 0644, an old one keeps its.")] = (
        None
    )


class DeleteQuery(PathQuery):
    """What to delete."""

    recursive: Annotated[QueryBoolean, Field(description="Whether a folder goes with what is in it.")] = False


class ListQuery(FolderQuery):
    """Which folder, and how much of it."""

    depth: Annotated[QueryInteger, Field(ge=1, le=MAX_DEPTH, description="How many folders deep.")] = 1
    limit: Annotated[QueryInteger, Field(ge=1, le=MAX_PAGE_ENTRIES, description="Entries in one answer.")] = 1_000
    cursor: Annotated[str | None, Field(description="nextCursor of the answer before.")] = None


class WatchQuery(FolderQuery):
    """What to watch."""

    recursive: Annotated[QueryBoolean, Field(description="Whether the folders in it are watched too.")] = False


class MkdirBody(Body):
    """A folder to make."""

    model_config = ConfigDict(json_schema_extra={"example": {"path": "data/input", "mode": "0755"}})

    path: PathText | None = None
    raw_path: RawPath | None = None
    mode: Mode = "0755"


class MoveBody(Body):
    """What to move, and where to."""

    model_config = ConfigDict(json_schema_extra={"example": {"from": "draft.txt", "to": "done/final.txt"}})

    source: Annotated[PathText | None, Field(alias="from")] = None
    raw_from: RawPath | None = None
    to: PathText | None = None
    raw_to: RawPath | None = None
    replace: Annotated[bool, Field(description="Whether a file of that name is replaced.")] = False


class Entry(Answer):
    """A file, folder or link."""

    name: str
    path: Annotated[str, Field(description="Absolute, without links.")]
    raw_path: Annotated[str | None, Field(description="Percent-encoded; only where the path is no UTF-8.")] = None
    type: Literal["file", "directory", "symlink", "other"]
    size: Annotated[int, Field(description="Bytes of a file; 0 for everything else.")]
    mode: Annotated[str, Field(description="Permission bits in octal.", examples=["0644"])]
    modified_at: Moment
    link_target: Annotated[str | None, Field(description="Of a symbolic link, as it is written there.")]


class EntryAnswer(Answer):
    """One file, folder or link."""

    success: Success
    entry: Entry


class ListAnswer(Answer):
    """A page of a list, in the order of the names' bytes; a folder comes before what is in it."""

    success: Success
    entries: list[Entry]
    next_cursor: Annotated[str | None, Field(description="Where to go on; null at the end.")]


class UnpackAnswer(Answer):
    """What was unpacked."""

    success: Success
    files: int
    folders: int
    links: int
    skipped: Annotated[int, Field(description="Devices, pipes and what else is not made.")]
    bytes: int


def query_bytes(request: Request, name: str) -> bytes:
    """A query parameter as the bytes it stands for; the last one of that name, empty when there is none."""
    found = b""
    for part in request.scope["query_string"].split(b"&"):
        key, _, value = part.partition(b"=")
        if unquote_to_bytes(key.replace(b"+", b" ")) == name.encode():
            found = unquote_to_bytes(value.replace(b"+", b" "))
    return checked(found, name)


def body_bytes(text: str | None, raw: str | None, name: str) -> bytes:
    """A path of a body, in whichever of its two forms it came. Raises `Invalid` for none or both."""
    if (text is None) == (raw is None):
        raw_name = f"raw{name.capitalize()}"
        raise Invalid(f"give it as text, or percent-encoded as {raw_name}; one of the two.", field=name)
    try:
        return checked(unquote_to_bytes(raw or "") if text is None else text.encode(), name)
    except UnicodeEncodeError:
        raise Invalid("it holds half of a surrogate pair, which is no text.", field=name) from None


def checked(path: bytes, name: str) -> bytes:
    """A path that an operation can be given. Raises `Invalid`."""
    if b"\0" in path or len(path) > MAX_PATH_BYTES:
        raise Invalid(f"a path has at most {MAX_PATH_BYTES} bytes and no NUL.", field=name)
    return path


def entry(found: FileEntry) -> dict[str, Any]:
    """An entry as its object."""
    return {
        "name": shown(found.path.rpartition(b"/")[2] or b"/"),
        **path_fields(found.path),
        "type": str(found.type),
        "size": found.size,
        "mode": f"{found.mode:04o}",
        "modifiedAt": rfc3339(modified_at(found)),
        "linkTarget": shown(found.target) if found.target else None,
    }


def path_fields(path: bytes) -> dict[str, str]:
    """A path, with its bytes beside it where text cannot hold them."""
    text = shown(path)
    return {"path": text} if text.encode() == path else {"path": text, "rawPath": quote_from_bytes(path)}


def modified_at(found: FileEntry) -> datetime:
    """The time of the last change, within the years 1 to 9999: a program may set any."""
    try:
        return _EPOCH + timedelta(microseconds=found.modified_ns // 1_000)
    except OverflowError:
        return _FIRST if found.modified_ns < 0 else _LAST
