"""Who may: the holder of a token, and what they may do in an account. Called first by every use case."""

from __future__ import annotations

import hashlib

from atoll.domain.errors import NotFound, Unauthenticated
from atoll.domain.identity import Account, Principal, Scope, require_manager, require_membership, require_scope
from atoll.domain.restriction import check_account, check_inside
from atoll.domain.sandbox import Sandbox, check_private_use
from atoll.domain.template import Template
from atoll.ops.services import Services
from atoll.store import identity, sandboxes, templates
from atoll.store.database import Transaction


def hash_token(token: str) -> str:
    """The form in which a token is stored (SA-436). Tokens hold 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


async def authenticate(services: Services, token: str | None) -> Principal:
    """Find the holder of a token; raises `Unauthenticated` (SA-434)."""
    if not token:
        raise Unauthenticated("Send a token: Authorization: Bearer TOKEN.")
    token_hash = hash_token(token)
    principal = await services.database.read(lambda tx: identity.find_principal(tx, token_hash))
    if principal is None:
        raise Unauthenticated("The token is not known or was revoked.")
    return principal


def authorize_read(tx: Transaction, principal: Principal, account_id: str, scope: Scope = Scope.READ) -> Account:
    """Admit any member of the account with the scope (SA-004, SA-011, SA-012, SA-120), with a token that is not
    restricted to another account (SA-009)."""
    require_scope(principal, scope)
    check_account(principal.restriction, account_id)
    account = identity.get_account(tx, account_id)
    member = account is not None and identity.is_member(tx, account_id, principal.user_id)
    return require_membership(principal, account, principal.role if member else None)


def authorize_manage(tx: Transaction, principal: Principal, account_id: str, scope: Scope) -> Account:
    """Admit a member that may manage sandboxes (SA-013, SA-014)."""
    account = authorize_read(tx, principal, account_id, scope)
    require_manager(principal.role)
    return account


def load_sandbox(
    tx: Transaction, principal: Principal, account_id: str, sandbox_id: str, *, lock: bool = False
) -> Sandbox:
    """Read a sandbox of the account; one of another account does not exist for the caller (SA-435), and one outside
    the restriction of the caller's token is refused (SA-009)."""
    sandbox = sandboxes.get(tx, sandbox_id, lock=lock)
    if sandbox is None or sandbox.account_id != account_id:
        raise NotFound("There is no such sandbox in this account.")
    check_inside(principal.restriction, app_id=sandbox.app_id, region=sandbox.region, template_id=sandbox.template_id)
    return sandbox


def load_usable_sandbox(
    tx: Transaction, principal: Principal, account_id: str, sandbox_id: str, *, lock: bool = False
) -> Sandbox:
    """Read a sandbox whose commands, files or sessions the caller is to use; not a private one of somebody else."""
    sandbox = load_sandbox(tx, principal, account_id, sandbox_id, lock=lock)
    check_private_use(sandbox, principal.caller_key)
    return sandbox


def load_template(
    tx: Transaction, principal: Principal, account_id: str, template_id: str, *, lock: bool = False
) -> Template:
    """Read a template of the account (SA-435) that the caller's token is not restricted from (SA-009); one without an
    app is every app's."""
    check_inside(principal.restriction, template_id=template_id)
    template = templates.get(tx, template_id, lock=lock)
    if template is None or template.account_id != account_id:
        raise NotFound("There is no such template in this account.")
    check_inside(principal.restriction, app_id=template.app_id)
    return template
