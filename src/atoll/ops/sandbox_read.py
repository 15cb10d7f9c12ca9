"""Get a sandbox, with or without waiting for it, and list an account's sandboxes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from atoll.domain.identity import Principal
from atoll.domain.restriction import check_inside
from atoll.domain.sandbox import PROVISIONING, Sandbox, SandboxStatus
from atoll.ops.access import authorize_read, load_sandbox
from atoll.ops.services import Services
from atoll.ops.waiting import wait_while
from atoll.store import sandboxes
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class SandboxPage:
    """One page of a list."""

    total: int
    sandboxes: list[Sandbox]


async def get_sandbox(
    services: Services, principal: Principal, account_id: str, sandbox_id: str, wait_seconds: float = 0
) -> Sandbox:
    """Read a sandbox; while it is being provisioned, wait up to `wait_seconds` for it to settle (SA-138 … SA-141)."""

    def look(tx: Transaction) -> Sandbox:
        authorize_read(tx, principal, account_id)
        sandbox = load_sandbox(tx, principal, account_id, sandbox_id)
        sandboxes.touch(tx, sandbox_id)
        return sandbox

    return await wait_while(
        services,
        sandbox_id,
        lambda: services.database.write(look),
        lambda sandbox: sandbox.status in PROVISIONING,
        wait_seconds,
    )


async def list_sandboxes(
    services: Services,
    principal: Principal,
    account_id: str,
    *,
    app_id: str | None,
    statuses: Collection[SandboxStatus] | None,
    limit: int,
    page: int,
) -> SandboxPage:
    """Read one page, newest first; `statuses` None means all (SA-128 … SA-135). A restricted token sees its part."""

    def look(tx: Transaction) -> SandboxPage:
        authorize_read(tx, principal, account_id)
        check_inside(principal.restriction, app_id=app_id)
        total, found = sandboxes.page(
            tx,
            account_id,
            app_id=app_id,
            statuses=statuses,
            restriction=principal.restriction,
            limit=limit,
            offset=(page - 1) * limit,
        )
        return SandboxPage(total, found)

    return await services.database.read(look)
