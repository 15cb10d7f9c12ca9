"""What an operator sets up by the command line: accounts, users, apps and tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from atoll.domain.audit import AuditAction, AuditTarget, Channel
from atoll.domain.billing import Plan
from atoll.domain.errors import Invalid, NotFound
from atoll.domain.identity import Account, Role, Scope, TokenKind
from atoll.domain.restriction import Restriction
from atoll.domain.template import (
    DEFAULT_HARD_LIFETIME_SECONDS,
    DEFAULT_IDLE_TIMEOUT_SECONDS,
    DEFAULT_SUSPENDED_RETENTION_SECONDS,
    DEFAULT_ZCLOUDS,
    IsolationProfile,
    PersistenceMode,
    Revision,
    Template,
    slug_of,
)
from atoll.ops.access import hash_token
from atoll.store import audit, identity, templates
from atoll.store.database import Transaction

DEFAULT_ACCOUNT = "default"
DEFAULT_USER = "admin"
DEFAULT_APP = "default"
DEFAULT_TEMPLATE = "default"
_LONGEST_NAME = 200
TOKEN_PREFIX = "atoll_"  # noqa: S105 - the start of every token, for secret scanners to find leaked ones by


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """The ids of an account that can be worked with, and a fresh token for it."""

    token: str
    account_id: str
    user_id: str
    app_id: str
    template_id: str


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token; its text is shown this once."""

    token: str
    principal_id: str


@dataclass(frozen=True, slots=True)
class Restrict:
    """What a new token is to be bound to inside its account; an empty set is all of a kind."""

    apps: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    templates: frozenset[str] = frozenset()


def bootstrap(
    tx: Transaction,
    new_id: Callable[[], str],
    *,
    account_name: str,
    image_digest: str | None,
    image_ref: str | None,
    plan: Plan | None = None,
    credit_micros: int | None = None,
) -> Bootstrapped:
    """Make or find an account with an admin, an app and the default template; issue a token with every scope.

    Idempotent but for the token. The template gets a new revision when the default image has changed. `plan` and
    `credit_micros` (millionths of the deployment's currency, all that were ever granted) change how the account pays.
    """
    account = _find_or_add_account(tx, new_id, account_name)
    if plan is not None or credit_micros is not None:
        identity.set_billing(
            tx,
            account.id,
            plan=account.plan if plan is None else plan,
            credit_micros=account.credit_micros if credit_micros is None else credit_micros,
        )
    user = identity.find_user(tx, account.id, DEFAULT_USER)
    if user is None:
        user = identity.User(new_id(), account.id, DEFAULT_USER)
        identity.add_user(tx, user)
    app = find_or_add_app(tx, new_id, account.id, DEFAULT_APP)
    template = _find_or_add_template(tx, new_id, account.id)
    if image_digest is not None:
        _pin_image(tx, new_id, template, image_digest, image_ref)
    every_scope = frozenset(str(scope) for scope in Scope)
    action = AuditAction.BOOTSTRAP
    token = _issue(tx, new_id, action, TokenKind.USER, user.id, account.id, Role.ADMIN, every_scope, None)
    return Bootstrapped(token, account.id, user.id, app.id, template.id)


def issue_token(
    tx: Transaction,
    new_id: Callable[[], str],
    *,
    account_name: str,
    user_name: str | None,
    kind: TokenKind,
    role: Role,
    scopes: frozenset[str],
    restrict: Restrict | None = None,
) -> IssuedToken:
    """Issue a token of an existing account; `user_name` makes or finds another user of it.

    Raises `Invalid` for an unknown scope, and for a restriction to what is not there.
    """
    unknown = scopes - {str(scope) for scope in Scope}
    if unknown:
        raise Invalid(f"Unknown scopes: {', '.join(sorted(unknown))}.", field="scopes")
    account = existing_account(tx, account_name)
    name = DEFAULT_USER if user_name is None else user_name
    _check_name(name, "user")
    user = identity.find_user(tx, account.id, name)
    if user is None:
        user = identity.User(new_id(), account.id, name)
        identity.add_user(tx, user)
    bound = None if restrict is None else _restriction(tx, account.id, restrict)
    token = _issue(tx, new_id, AuditAction.CREATE_TOKEN, kind, user.id, account.id, role, scopes, bound)
    return IssuedToken(token, user.id)


def list_tokens(tx: Transaction, account_name: str | None) -> list[identity.TokenRecord]:
    """The tokens of an account, or of all."""
    return identity.list_tokens(tx, None if account_name is None else existing_account(tx, account_name).id)


def revoke_token(tx: Transaction, *, token_id: str | None = None, token: str | None = None) -> str:
    """Revoke a token by its id or its text; twice is once. Returns its id; raises `NotFound`.

    It opens nothing from then on, and neither does a gateway session that it opened; what it began goes on.
    """
    found = identity.find_token(tx, token_id=token_id, token_hash=None if token is None else hash_token(token))
    if found is None:
        raise NotFound("There is no such token; atoll token list shows them.")
    revoked_id, account_id = found
    identity.revoke_token(tx, revoked_id)
    target = (AuditTarget.TOKEN, revoked_id)
    audit.record_unattended(tx, Channel.OPERATOR, AuditAction.REVOKE_TOKEN, account_id, target)
    return revoked_id


def _restriction(tx: Transaction, account_id: str, asked: Restrict) -> Restriction:
    """Bind to what exists: a typing error must not leave a key that is good for nothing, or for a later namesake."""
    for app_id in asked.apps:
        app = identity.get_app(tx, app_id)
        if app is None or app.account_id != account_id:
            raise Invalid(f"The account has no app {app_id!r}.", field="app")
    for template_id in asked.templates:
        template = templates.get(tx, template_id)
        if template is None or template.account_id != account_id:
            raise Invalid(f"The account has no template {template_id!r}.", field="template")
    return Restriction(account_id, asked.apps or None, asked.regions or None, asked.templates or None)


def create_app(tx: Transaction, new_id: Callable[[], str], account_name: str, name: str) -> identity.App:
    """Make or find an app of an existing account."""
    return find_or_add_app(tx, new_id, existing_account(tx, account_name).id, name)


def existing_account(tx: Transaction, name: str) -> Account:
    """An account by its name; raises `NotFound`."""
    account = identity.find_account(tx, name)
    if account is None:
        raise NotFound(f"There is no account {name!r}; run atoll bootstrap first.")
    return account


def find_or_add_app(tx: Transaction, new_id: Callable[[], str], account_id: str, name: str) -> identity.App:
    """Make or find an app of an account. Raises `Invalid` for a name that is none."""
    _check_name(name, "name")
    app = identity.find_app(tx, account_id, name)
    if app is None:
        app = identity.App(new_id(), account_id, name)
        identity.add_app(tx, app)
    return app


def _check_name(name: str, field: str) -> None:
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise Invalid(f"A name has 1 to {_LONGEST_NAME} characters.", field=field)


def _find_or_add_account(tx: Transaction, new_id: Callable[[], str], name: str) -> Account:
    _check_name(name, "account")
    account = identity.find_account(tx, name)
    if account is None:
        account = Account(new_id(), name, entitled=True, active_sandbox_limit=None)
        identity.add_account(tx, account)
    return account


def _find_or_add_template(tx: Transaction, new_id: Callable[[], str], account_id: str) -> Template:
    template = templates.find(tx, account_id, DEFAULT_TEMPLATE)
    if template is None:
        template = Template(
            id=new_id(),
            account_id=account_id,
            app_id=None,
            name=DEFAULT_TEMPLATE,
            slug=slug_of(DEFAULT_TEMPLATE),
            description="Debian 12 with Python 3, Node.js 22, git and build tools.",
            enabled=True,
            deprecated_at=None,
            current_revision_number=0,
            created_at=tx.now,
            updated_at=tx.now,
        )
        templates.add(tx, template)
    return template


def _pin_image(
    tx: Transaction, new_id: Callable[[], str], template: Template, image_digest: str, image_ref: str | None
) -> None:
    current = templates.current_revision(tx, template)
    if current is not None and current.image_digest == image_digest:
        return
    revision = Revision(
        id=new_id(),
        template_id=template.id,
        revision=template.current_revision_number + 1,
        image_digest=image_digest,
        image_ref=image_ref,
        command=None,
        working_dir=None,
        ports=None,
        zclouds=DEFAULT_ZCLOUDS,
        ephemeral_disk_mb=None,
        pid_limit=None,
        persistence_mode=PersistenceMode.EPHEMERAL,
        volume_size_mb=None,
        mount_path=None,
        snapshot_exclude=None,
        snapshot_max_mb=None,
        isolation_profile=IsolationProfile.GVISOR,
        idle_timeout_seconds=DEFAULT_IDLE_TIMEOUT_SECONDS,
        hard_lifetime_seconds=DEFAULT_HARD_LIFETIME_SECONDS,
        suspended_retention_seconds=DEFAULT_SUSPENDED_RETENTION_SECONDS,
        warm_pool=None,
        network_control=None,
        created_at=tx.now,
    )
    templates.append_revision(tx, revision)


def _issue(
    tx: Transaction,
    new_id: Callable[[], str],
    action: AuditAction,
    kind: TokenKind,
    user_id: str,
    account_id: str,
    role: Role,
    scopes: frozenset[str],
    restriction: Restriction | None,
) -> str:
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token_id = new_id()
    identity.add_token(
        tx,
        token_id=token_id,
        token_hash=hash_token(token),
        kind=kind,
        user_id=user_id,
        account_id=account_id,
        role=role,
        scopes=scopes,
        restriction=restriction,
    )
    target = (AuditTarget.TOKEN, token_id)
    audit.record_unattended(tx, Channel.OPERATOR, action, account_id, target, user_id=user_id)
    return token
