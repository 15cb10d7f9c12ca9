"""The state of a sandbox as its gateway tells it."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.domain.command import AgentStats
from atoll.domain.sandbox import RUNNING, Sandbox, SandboxStatus
from atoll.ops.access import load_usable_sandbox
from atoll.ops.gateway_session import GatewayCaller
from atoll.ops.services import Services
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The status, and what the agent counts while the sandbox runs."""

    status: SandboxStatus
    stats: AgentStats | None


async def read_status(services: Services, caller: GatewayCaller) -> GatewayStatus:
    """Look at the row, and while it runs ask the agent (SA-454). A paused sandbox stays paused (SA-373)."""

    def look(tx: Transaction) -> Sandbox:
        return load_usable_sandbox(tx, caller.principal, caller.account_id, caller.sandbox_id)

    sandbox = await services.database.read(look)
    if sandbox.status not in RUNNING or sandbox.instance_id is None:
        return GatewayStatus(sandbox.status, None)
    agent = await services.agents.get(sandbox.instance_id)
    return GatewayStatus(sandbox.status, await agent.stats())
