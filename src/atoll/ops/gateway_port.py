"""A TCP connection from the gateway to a port inside a sandbox; what is said over it is nobody's business here."""

from __future__ import annotations

import asyncio

from atoll.agent.streams import AgentStream
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.ops.gateway_files import STALL_LIMIT_SECONDS, admit
from atoll.ops.gateway_session import GatewayCaller
from atoll.ops.services import Services


class PortConnection:
    """An open connection. Whoever opens one closes it."""

    def __init__(self, stream: AgentStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        """The next bytes; b"" once the program has sent all. Raises AGENT_UNREACHABLE."""
        return await self._stream.receive()

    async def send(self, data: bytes) -> None:
        """Send, as fast as the program takes it. Raises UNKNOWN when it takes nothing for a minute."""
        try:
            async with asyncio.timeout(STALL_LIMIT_SECONDS):
                await self._stream.send(data)
        except TimeoutError:
            raise RuntimeFailure("The program behind the port takes nothing.", code=ErrorCode.UNKNOWN) from None

    @property
    def closed(self) -> bool:
        """Whether the program has closed it both ways, so that what is sent goes nowhere."""
        return self._stream.code is not None

    def close(self) -> None:
        """End it."""
        self._stream.close()


async def open_port(services: Services, caller: GatewayCaller, port: int) -> PortConnection:
    """Connect to a port of the sandbox's loopback (SA-455). Raises `RuntimeFailure` UNKNOWN when nothing listens."""
    sandbox = await admit(services, caller)
    agent = await services.agents.get(str(sandbox.instance_id))
    stream = await agent.dial(port)
    if stream.code is not None:
        raise RuntimeFailure(
            f"Nothing listens on port {port} of the sandbox.", code=ErrorCode.UNKNOWN, reason="port_unreachable"
        )
    return PortConnection(stream)
