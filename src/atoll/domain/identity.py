"""Who calls: accounts, users, roles, scopes and kinds of token, and what each of them may do.

Pure decisions; `atoll.ops.access` reads the rows that they are about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from atoll.domain.audit import NOWHERE, Channel, Origin
from atoll.domain.billing import Plan
from atoll.domain.errors import ErrorCode, Forbidden
from atoll.domain.restriction import Restriction


class TokenKind(StrEnum):
    """What a token stands for."""

    USER = "user"
    """A person."""
    OAUTH = "oauth"
    """An app that acts for a person."""
    MCP = "mcp"
    """An MCP client of a person; the MCP tools alone take it (SA-005)."""
    ENVIRONMENT = "environment"
    """A deployed environment; it is nobody, so no sandbox endpoint takes it (SA-006)."""
    INSTALLATION = "installation"
    """An installed app; the Sessions API alone takes it."""


class Role(StrEnum):
    """A member's role in an account."""

    ADMIN = "admin"
    """May do everything in the account."""
    TECHNICAL = "technical"
    """May create, change and use sandboxes."""
    MEMBER = "member"
    """May read."""


class Scope(StrEnum):
    """What a token allows, whatever its holder's role."""

    READ = "quave:read"
    """Lists and reads."""
    DEPLOY = "quave:write:deploy"
    """Creates, pauses, resumes and terminates sandboxes."""
    CONFIG = "quave:write:config"
    """Changes templates and revisions."""
    DANGEROUS = "quave:write:dangerous"
    """Runs commands."""
    SESSIONS_CREATE = "sessions:create"
    """Creates sessions."""
    TURNS_SUBMIT = "wamp.cloud.turns:submit"
    """Submits turns."""
    APPROVALS_RESPOND = "wamp.cloud.approvals:respond"
    """Answers approvals."""
    PUBLICATIONS_WRITE = "wamp.cloud.publications:write"
    """Publishes."""
    ENVIRONMENTS_MANAGE = "environments:manage"
    """Manages environments."""
    CLOUD_ENVIRONMENTS_MANAGE = "wamp.cloud.environments:manage"
    """Manages environments, as an installation."""


MANAGING_ROLES = frozenset({Role.ADMIN, Role.TECHNICAL})
"""Roles with permission to manage sandboxes."""

PERSONAL_KINDS = frozenset({TokenKind.USER, TokenKind.OAUTH})
"""Kinds that the sandbox endpoints take."""

KINDS_BY_CHANNEL = {
    Channel.MCP: PERSONAL_KINDS | {TokenKind.MCP},
    Channel.GATEWAY: PERSONAL_KINDS | {TokenKind.MCP},
}
"""Where more kinds are taken: an MCP key works through the MCP tools (SA-007) and through the sessions they open."""


@dataclass(frozen=True, slots=True)
class Account:
    """One tenant."""

    id: str
    name: str
    entitled: bool
    """Whether the account has the sandboxes entitlement (SA-120)."""
    active_sandbox_limit: int | None
    """The account's own ceiling; None is the deployment's."""
    plan: Plan = Plan.DIRECT
    credit_micros: int = 0
    """Credits granted, in millionths of the deployment's currency."""

    def sandbox_ceiling(self, default: int) -> int:
        """How many active sandboxes it may have (SA-422, SA-423); its own ceiling counts also when that is 0."""
        return default if self.active_sandbox_limit is None else self.active_sandbox_limit


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a valid token."""

    token_id: str
    kind: TokenKind
    user_id: str
    account_id: str
    role: Role
    scopes: frozenset[str]
    restriction: Restriction | None = None
    origin: Origin = NOWHERE
    """Where this call came from; set at the edge that took it."""

    @property
    def caller_key(self) -> str:
        """Provenance as a sandbox records it (SA-052)."""
        return f"user:{self.user_id}"


def require_person(principal: Principal) -> None:
    """Refuse a token of a kind that the way by which it came does not take (SA-005, SA-006)."""
    if principal.kind not in KINDS_BY_CHANNEL.get(principal.origin.channel, PERSONAL_KINDS):
        raise Forbidden(
            f"A token of the kind {principal.kind} cannot call this endpoint; use a user or an OAuth token.",
        )


def require_scope(principal: Principal, scope: Scope) -> None:
    """Refuse a token without the scope (SA-004) or of a kind that sandbox endpoints do not take."""
    require_person(principal)
    if scope not in principal.scopes:
        raise Forbidden(f"The token lacks the scope {scope}.", code=ErrorCode.INSUFFICIENT_SCOPE)


def require_membership(principal: Principal, account: Account | None, role: Role | None) -> Account:
    """Refuse a foreign or unknown account alike (SA-011), and an account without the entitlement (SA-120)."""
    if account is None or role is None:
        raise Forbidden("The token has no access to this account.")
    if not account.entitled:
        raise Forbidden("The account does not have the sandboxes entitlement.")
    return account


def require_manager(role: Role) -> None:
    """Refuse a role that may only read (SA-013, SA-014, SA-240, SA-280)."""
    if role not in MANAGING_ROLES:
        raise Forbidden("Managing sandboxes needs the admin or technical role.")
