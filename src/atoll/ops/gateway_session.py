"""Gateway sessions: open one, and find out at every call of the gateway whose it is and what it still allows.

A session never allows more than the API token that opened it does at the time of the call: whoever revokes that token,
changes its role, or ends its user's membership, ends what the session can do.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from atoll.domain.audit import AuditAction, Origin
from atoll.domain.errors import ErrorCode, Forbidden, Unauthenticated
from atoll.domain.gateway import GatewayScope, GatewaySession, check_live, require_gateway_scopes, session_end
from atoll.domain.identity import Principal, Scope
from atoll.domain.sandbox import Sandbox, check_accepts_commands
from atoll.ops.access import authorize_manage, hash_token, load_usable_sandbox
from atoll.ops.command_admission import admit_or_resume
from atoll.ops.services import Services
from atoll.store import audit, gateway_sessions, identity, sandboxes
from atoll.store.database import Transaction

GATEWAY_TOKEN_PREFIX = "atollgw_"  # noqa: S105 - the start of every gateway token, for secret scanners
_KEPT_AFTER_END = timedelta(days=1)
"""An ended session is kept for this long, so that its token is told from one that never was."""
_NO_TOKEN = ErrorCode.UNAUTHENTICATED
_TOUCHED_WITHIN = timedelta(seconds=1)
"""A sandbox that was active this recently is not written to again."""


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session; its token is shown this once."""

    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """Who calls the gateway, found valid for this call.

    `principal` goes with `account_id` and `sandbox_id` into the use cases of commands and into
    `ops.access.load_usable_sandbox`, which look again in the transaction that does the work.
    """

    session_id: str
    principal: Principal
    account_id: str
    sandbox_id: str
    scopes: frozenset[GatewayScope]
    expires_at: datetime
    token_hash: str = field(repr=False)


async def open_session(
    services: Services, principal: Principal, account_id: str, sandbox_id: str, scopes: frozenset[GatewayScope]
) -> OpenedSession:
    """Open a session on a sandbox that runs, resuming a paused one (SA-350 … SA-353, SA-360).

    Raises `Conflict` while the sandbox does not run; it says whether waiting helps. 403 in a private sandbox of
    somebody else (SA-333).
    """
    token = GATEWAY_TOKEN_PREFIX + secrets.token_urlsafe(32)
    session_id = services.new_id()

    def admit(tx: Transaction) -> GatewaySession:
        authorize_manage(tx, principal, account_id, Scope.DANGEROUS)
        sandbox = load_usable_sandbox(tx, principal, account_id, sandbox_id, lock=True)
        check_accepts_commands(sandbox)
        sandboxes.touch(tx, sandbox_id)
        gateway_sessions.remove_ended(tx, before=tx.now - _KEPT_AFTER_END)
        session = GatewaySession(
            id=session_id,
            sandbox_id=sandbox_id,
            account_id=account_id,
            user_id=principal.user_id,
            token_id=principal.token_id,
            scopes=scopes,
            created_at=tx.now,
            expires_at=session_end(sandbox, tx.now),
        )
        gateway_sessions.add(tx, session, hash_token(token))
        audit.record(tx, principal, AuditAction.OPEN_SESSION, account_id, sandbox_id=sandbox_id)
        return session

    session = await admit_or_resume(services, principal, account_id, sandbox_id, admit)
    return OpenedSession(token, session.expires_at)


async def authenticate_gateway(
    services: Services, token: str | None, sandbox_id: str, needed: frozenset[GatewayScope], origin: Origin
) -> GatewayCaller:
    """Find the caller of a gateway call to one sandbox; called at every call.

    Raises `Unauthenticated` for a token that is unknown or has ended (SA-354, SA-457), `Forbidden` for one of another
    sandbox or without a scope of `needed` (SA-359). Counts as activity of the sandbox.
    """
    if not token:
        raise Unauthenticated("Send the token of a gateway session: Authorization: Bearer TOKEN.", code=_NO_TOKEN)
    caller, sandbox = await _look_up(services, hash_token(token), sandbox_id, needed, origin)
    if sandbox.last_active_at + _TOUCHED_WITHIN <= services.clock():
        await services.database.write(lambda tx: sandboxes.touch(tx, sandbox_id))
    return caller


async def check_again(services: Services, caller: GatewayCaller, needed: frozenset[GatewayScope]) -> None:
    """Look the caller of a long call up again; raises as `authenticate_gateway` does. No activity of the sandbox."""
    await _look_up(services, caller.token_hash, caller.sandbox_id, needed, caller.principal.origin)


async def _look_up(
    services: Services, token_hash: str, sandbox_id: str, needed: frozenset[GatewayScope], origin: Origin
) -> tuple[GatewayCaller, Sandbox]:
    def look(tx: Transaction) -> tuple[GatewayCaller, Sandbox]:
        found = gateway_sessions.find(tx, token_hash)
        if found is None:
            raise Unauthenticated("The gateway token is not known or was revoked.", code=_NO_TOKEN)
        session, opener = found
        principal = replace(opener, origin=origin)
        if session.sandbox_id != sandbox_id:
            # The same whether there is such a sandbox or not.
            raise Forbidden("The gateway token is of another sandbox.", code=ErrorCode.NAMESPACE_DENIED)
        check_live(session, sandboxes.get(tx, sandbox_id), tx.now)
        if not identity.is_member(tx, session.account_id, session.user_id):
            raise Unauthenticated("The user of this token has left the account.", code=_NO_TOKEN)
        authorize_manage(tx, principal, session.account_id, Scope.DANGEROUS)
        sandbox = load_usable_sandbox(tx, principal, session.account_id, sandbox_id)
        require_gateway_scopes(session.scopes, needed)
        caller = GatewayCaller(
            session_id=session.id,
            # The gateway's own scopes decide from here on, so reading what one started needs no scope of the REST API.
            principal=replace(principal, scopes=frozenset({Scope.READ, Scope.DANGEROUS})),
            account_id=session.account_id,
            sandbox_id=sandbox_id,
            scopes=session.scopes,
            expires_at=session.expires_at,
            token_hash=token_hash,
        )
        return caller, sandbox

    return await services.database.read(look)
