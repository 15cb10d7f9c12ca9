"""Gateway sessions: what their tokens allow, how long, and what ends them. Pure; `atoll.ops.gateway_session` reads the
rows that the decisions are about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from atoll.domain.errors import ErrorCode, Forbidden, Unauthenticated
from atoll.domain.sandbox import Sandbox, SandboxStatus

SESSION_SECONDS = 3_600
"""How long a token is good, unless its sandbox ends earlier (SA-354)."""


class GatewayScope(StrEnum):
    """What a gateway token allows (SA-352)."""

    EXEC = "exec"
    """Starts processes, follows them and gives them input; reaches ports."""
    FILE = "file"
    """Reads and writes files."""
    PTY = "pty"
    """Opens terminals and changes their size."""
    SIGNAL = "signal"
    """Signals processes."""
    STATUS = "status"
    """Reads the state of the sandbox and of its processes."""


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """A session as it was opened; its token is kept by its hash alone."""

    id: str
    sandbox_id: str
    account_id: str
    user_id: str
    token_id: str
    """The API token that opened it: the session can do no more than that one still can."""
    scopes: frozenset[GatewayScope]
    created_at: datetime
    expires_at: datetime


def session_end(sandbox: Sandbox, now: datetime) -> datetime:
    """When a session opened now ends: never after its sandbox."""
    return min(now + timedelta(seconds=SESSION_SECONDS), sandbox.expires_at)


def check_live(session: GatewaySession, sandbox: Sandbox | None, now: datetime) -> None:
    """Refuse a token after its time or after its sandbox (SA-354, SA-457)."""
    if session.expires_at <= now:
        raise Unauthenticated("The token has expired; open a new session.", code=ErrorCode.TOKEN_EXPIRED)
    if sandbox is None or sandbox.status in {SandboxStatus.TERMINATING, SandboxStatus.TERMINATED}:
        raise Unauthenticated("The sandbox of this token has ended.", code=ErrorCode.TOKEN_EXPIRED)


def require_gateway_scopes(held: frozenset[GatewayScope], needed: frozenset[GatewayScope]) -> None:
    """Refuse a call that needs a scope which the token was not issued with (SA-359)."""
    missing = sorted(needed - held)
    if missing:
        raise Forbidden(
            f"The gateway token lacks the scope {' and '.join(missing)}.", code=ErrorCode.INSUFFICIENT_SCOPE
        )
