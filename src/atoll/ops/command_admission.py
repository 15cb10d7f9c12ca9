"""Admit a command into a sandbox, resuming a paused one within the request (SA-217 … SA-223, SA-243)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from atoll.domain.errors import AtollError, Conflict, ErrorCode
from atoll.domain.identity import Principal
from atoll.domain.sandbox import PROVISIONING, Sandbox
from atoll.ops.access import load_sandbox
from atoll.ops.sandbox_resume import resume_if_suspended
from atoll.ops.services import Services
from atoll.ops.waiting import wait_while
from atoll.store import identity, sandboxes
from atoll.store.database import Transaction

T = TypeVar("T")

RESUME_WAIT_SECONDS = 20.0
"""How long a request waits for the resume that it started or found."""


async def admit_or_resume(
    services: Services, principal: Principal, account_id: str, sandbox_id: str, admit: Callable[[Transaction], T]
) -> T:
    """Run `admit`; when it finds the sandbox paused, resume it and try once more when it is ready.

    `admit` authorises the caller first, so an unauthorised one never resumes anything.
    """
    try:
        return await services.database.write(admit)
    except Conflict as conflict:
        if conflict.code is not ErrorCode.SANDBOX_SUSPENDED:
            raise
        suspended = conflict
    if not await _resume(services, principal, account_id, sandbox_id):
        raise suspended
    return await services.database.write(admit)


async def _resume(services: Services, principal: Principal, account_id: str, sandbox_id: str) -> bool:
    def begin(tx: Transaction) -> Sandbox:
        account = identity.get_account(tx, account_id)
        if account is None:
            raise AtollError("the account is gone")
        sandboxes.fence_account(tx, account_id)
        sandbox = load_sandbox(tx, principal, account_id, sandbox_id, lock=True)
        return resume_if_suspended(tx, services, account, sandbox)

    sandbox = await wait_while(
        services,
        sandbox_id,
        lambda: services.database.write(begin),
        lambda sandbox: sandbox.status in PROVISIONING,
        RESUME_WAIT_SECONDS,
    )
    return sandbox.status not in PROVISIONING
