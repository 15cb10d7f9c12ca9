"""What comes from a client while its request is served: its body, part by part, and that it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from atoll.domain.errors import Invalid
from atoll.ops.gateway_files import STALL_LIMIT_SECONDS
from atoll.ops.interruption import interrupted_by


class ClientGone(Exception):  # noqa: N818 - an outcome, not an error of anybody's
    """The client has closed the connection."""


def while_connected(receive: Receive, *, upload: asyncio.Task[None] | None = None) -> AbstractAsyncContextManager[None]:
    """Cancel what is inside once the client has gone, and raise `ClientGone`.

    The request's body has been read; or else `upload` reads it, and fails when the client goes in the middle of it.
    """

    async def gone() -> Exception:
        if upload is not None:
            await asyncio.wait({upload})
            if not upload.cancelled() and isinstance(upload.exception(), Invalid):
                return ClientGone()
        # Also past the rest of a body that the other side did not want: it may answer all the same.
        while (await receive())["type"] != "http.disconnect":
            pass
        return ClientGone()

    return interrupted_by(gone)


async def body_of(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes. Raises `Invalid` when the client goes away in the middle of it, or sends nothing."""
    parts = request.stream()
    try:
        while True:
            async with asyncio.timeout(STALL_LIMIT_SECONDS):
                part = await anext(parts, None)
            if part is None:
                return
            if part:
                yield part
    except TimeoutError:
        raise Invalid(f"The body stood still for {STALL_LIMIT_SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise Invalid("The body ended too early.") from None
