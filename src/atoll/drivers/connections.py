"""The open connections to agents: one per instance, made when it is first needed and again after it was lost.

Ops ask for a connection; the watch worker is told of every command that ends and every connection that is lost. Holds
no truth: dropping all of it costs a reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from atoll.domain.command import CommandState
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import AgentConnection, Driver

ExitHandler = Callable[[str, CommandState], Awaitable[None]]
OpenHandler = Callable[[str, AgentConnection], None]
LostHandler = Callable[[str], None]

_CONNECT_TIMEOUT_SECONDS = 10
AGENT_RETRY_AFTER_SECONDS = 2


class _Making:
    """The making of one instance's connection; it lasts until the last who wants the connection is gone."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.drops = 0


class AgentConnections:
    """Connections by instance id."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._open: dict[str, AgentConnection] = {}
        self._makings: dict[str, _Making] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self.on_exit: ExitHandler | None = None
        self.on_open: OpenHandler | None = None
        self.on_lost: LostHandler | None = None

    async def get(self, instance_id: str) -> AgentConnection:
        """The connection to an instance. Raises AGENT_UNREACHABLE or SANDBOX_NOT_FOUND."""
        connection = self._open.get(instance_id)
        if connection is not None and not connection.closed:
            return connection
        async with self._alone(instance_id) as making:
            connection = self._open.get(instance_id)
            if connection is not None and not connection.closed:
                return connection
            drops = making.drops
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                    connection = await self._driver.connect(instance_id)
            except TimeoutError:
                raise _unreachable() from None
            if making.drops != drops:
                # Dropped while it was made: nobody else would ever close it.
                await connection.close()
                raise _unreachable()
            self._open[instance_id] = connection
            self._watch(instance_id, connection)
            if self.on_open is not None:
                self.on_open(instance_id, connection)
            return connection

    def is_open(self, instance_id: str) -> bool:
        """Whether there is a live connection."""
        connection = self._open.get(instance_id)
        return connection is not None and not connection.closed

    async def drop(self, instance_id: str) -> None:
        """Close the connection to an instance that is going away; nobody is told of the loss."""
        connection = self._open.pop(instance_id, None)
        making = self._makings.get(instance_id)
        if making is not None:
            making.drops += 1
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close every connection; commands go on."""
        for instance_id in self._open.keys() | self._makings.keys():
            await self.drop(instance_id)
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _alone(self, instance_id: str) -> AsyncIterator[_Making]:
        """One at a time makes the connection to an instance."""
        making = self._makings.setdefault(instance_id, _Making())
        making.users += 1
        try:
            async with making.lock:
                yield making
        finally:
            making.users -= 1
            if not making.users:
                del self._makings[instance_id]

    def _watch(self, instance_id: str, connection: AgentConnection) -> None:
        async def record(state: CommandState) -> None:
            if self.on_exit is not None:
                await self.on_exit(instance_id, state)

        connection.on_exit(record)
        task = asyncio.create_task(self._report_loss(instance_id, connection))
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    async def _report_loss(self, instance_id: str, connection: AgentConnection) -> None:
        await connection.wait_closed()
        if self._open.get(instance_id) is connection:
            del self._open[instance_id]
            if self.on_lost is not None:
                self.on_lost(instance_id)


def _unreachable() -> RuntimeFailure:
    return RuntimeFailure(
        "The agent of the sandbox does not answer; retry shortly.",
        code=ErrorCode.AGENT_UNREACHABLE,
        retry_after_seconds=AGENT_RETRY_AFTER_SECONDS,
    )
