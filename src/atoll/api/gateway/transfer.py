"""Answers whose body comes out of a sandbox while it is sent: a file, an archive, the events of a watch.

Each holds no more of the body than is under way. It ends with its source, its client or its token,
whichever is first; where it breaks off, the connection is cut, so that the client can tell a part from the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atoll.api.gateway.caller import GatewayCall
from atoll.api.gateway.connected import ClientGone, while_connected
from atoll.domain.errors import AtollError
from atoll.domain.gateway import GatewayScope
from atoll.ops.gateway_files import STALL_LIMIT_SECONDS, while_allowed
from atoll.ops.gateway_transfer import Transfer, Watch


class TransferResponse(Response):
    """Sends what `parts` gives; `source` is closed at the end in any case."""

    def __init__(
        self,
        call: GatewayCall,
        source: Transfer | Watch,
        parts: AsyncGenerator[bytes, None],
        *,
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, status, dict(headers))
        if "content-length" not in headers:
            del self.headers["content-length"]
        self._call = call
        self._source = source
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; where it breaks off, return without its last message: that cuts the connection."""
        del scope
        try:
            async with (
                while_allowed(self._call.services, self._call.caller, GatewayScope.FILE),
                while_connected(receive),
                aclosing(self._parts) as parts,
            ):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for part in parts:
                    async with asyncio.timeout(STALL_LIMIT_SECONDS):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (AtollError, TimeoutError, ClientGone):
            return
        finally:
            self._source.close()
