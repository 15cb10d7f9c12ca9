"""Queries about accounts, users, apps and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, insert, select, update

from atoll.domain.billing import Plan
from atoll.domain.identity import Account, Principal, Role, TokenKind
from atoll.domain.restriction import Restriction
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import accounts, apps, memberships, tokens, users

_account_mapper = Mapper(accounts, Account)
_RESTRICTED = ("apps", "regions", "templates")


@dataclass(frozen=True, slots=True)
class App:
    """A grouping of sandboxes inside an account."""

    id: str
    account_id: str
    name: str


@dataclass(frozen=True, slots=True)
class User:
    """A person."""

    id: str
    account_id: str
    name: str


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as the operator sees it: everything but its text, which is not stored."""

    id: str
    kind: TokenKind
    account_name: str
    user_id: str
    user_name: str
    role: Role
    scopes: tuple[str, ...]
    restriction: Restriction | None
    created_at: datetime
    revoked_at: datetime | None


_app_mapper = Mapper(apps, App)
_user_mapper = Mapper(users, User)

# Built once: these run at every call, and building a statement costs ten times what running it does.
_FIND_PRINCIPAL = select(
    tokens.c.id,
    tokens.c.kind,
    tokens.c.user_id,
    tokens.c.account_id,
    tokens.c.role,
    tokens.c.scopes,
    tokens.c.restriction,
).where(tokens.c.hash == bindparam("hash"), tokens.c.revoked_at.is_(None))
_GET_ACCOUNT = select(*_account_mapper.columns).where(accounts.c.id == bindparam("id"))
_IS_MEMBER = select(memberships.c.user_id).where(
    memberships.c.account_id == bindparam("account_id"), memberships.c.user_id == bindparam("user_id")
)
_GET_APP = select(*_app_mapper.columns).where(apps.c.id == bindparam("id"))


def find_principal(tx: Transaction, token_hash: str) -> Principal | None:
    """The holder of a token, by the hash of it (SA-436); None when it is unknown or revoked."""
    row = tx.connection.execute(_FIND_PRINCIPAL, {"hash": token_hash}).first()
    if row is None:
        return None
    restriction = restriction_of(row.account_id, row.restriction)
    return Principal(row.id, row.kind, row.user_id, row.account_id, row.role, frozenset(row.scopes), restriction)


def get_account(tx: Transaction, account_id: str) -> Account | None:
    """One account."""
    return _account_mapper.maybe(tx.connection.execute(_GET_ACCOUNT, {"id": account_id}).first())


def find_account(tx: Transaction, name: str) -> Account | None:
    """One account by its name."""
    query = select(*_account_mapper.columns).where(accounts.c.name == name)
    return _account_mapper.maybe(tx.connection.execute(query).first())


def is_member(tx: Transaction, account_id: str, user_id: str) -> bool:
    """Whether the user belongs to the account."""
    return tx.connection.execute(_IS_MEMBER, {"account_id": account_id, "user_id": user_id}).first() is not None


def add_account(tx: Transaction, account: Account) -> None:
    """Insert an account."""
    tx.connection.execute(
        insert(accounts).values(
            id=account.id,
            name=account.name,
            entitled=account.entitled,
            active_sandbox_limit=account.active_sandbox_limit,
            plan=account.plan,
            credit_micros=account.credit_micros,
            created_at=tx.now,
        )
    )


def find_user(tx: Transaction, account_id: str, name: str) -> User | None:
    """One user of an account by name."""
    query = select(*_user_mapper.columns).where(users.c.account_id == account_id, users.c.name == name)
    return _user_mapper.maybe(tx.connection.execute(query).first())


def add_user(tx: Transaction, user: User) -> None:
    """Insert a user as a member of their account."""
    tx.connection.execute(
        insert(users).values(id=user.id, account_id=user.account_id, name=user.name, created_at=tx.now)
    )
    tx.connection.execute(insert(memberships).values(account_id=user.account_id, user_id=user.id, created_at=tx.now))


def get_app(tx: Transaction, app_id: str) -> App | None:
    """One app."""
    return _app_mapper.maybe(tx.connection.execute(_GET_APP, {"id": app_id}).first())


def find_app(tx: Transaction, account_id: str, name: str) -> App | None:
    """One app of an account by name."""
    query = select(*_app_mapper.columns).where(apps.c.account_id == account_id, apps.c.name == name)
    return _app_mapper.maybe(tx.connection.execute(query).first())


def add_app(tx: Transaction, app: App) -> None:
    """Insert an app."""
    tx.connection.execute(insert(apps).values(id=app.id, account_id=app.account_id, name=app.name, created_at=tx.now))


def add_token(
    tx: Transaction,
    *,
    token_id: str,
    token_hash: str,
    kind: TokenKind,
    user_id: str,
    account_id: str,
    role: Role,
    scopes: frozenset[str],
    restriction: Restriction | None = None,
) -> None:
    """Insert a token by its hash."""
    tx.connection.execute(
        insert(tokens).values(
            id=token_id,
            hash=token_hash,
            kind=kind,
            user_id=user_id,
            account_id=account_id,
            role=role,
            scopes=sorted(scopes),
            restriction=None if restriction is None else _restriction_column(restriction),
            created_at=tx.now,
        )
    )


def list_tokens(tx: Transaction, account_id: str | None = None) -> list[TokenRecord]:
    """Every token of an account, or of all, oldest first; the revoked ones too."""
    query = (
        select(tokens, accounts.c.name.label("account_name"), users.c.name.label("user_name"))
        .join_from(tokens, accounts, accounts.c.id == tokens.c.account_id)
        .join(users, users.c.id == tokens.c.user_id)
        .order_by(tokens.c.created_at, tokens.c.id)
    )
    if account_id is not None:
        query = query.where(tokens.c.account_id == account_id)
    return [
        TokenRecord(
            id=row.id,
            kind=row.kind,
            account_name=row.account_name,
            user_id=row.user_id,
            user_name=row.user_name,
            role=row.role,
            scopes=tuple(row.scopes),
            restriction=restriction_of(row.account_id, row.restriction),
            created_at=row.created_at,
            revoked_at=row.revoked_at,
        )
        for row in tx.connection.execute(query)
    ]


def revoke_token(tx: Transaction, token_id: str) -> None:
    """Make a token good for nothing from this commit on; one that was revoked before keeps its time."""
    statement = update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
    tx.connection.execute(statement.values(revoked_at=tx.now))


def find_token(
    tx: Transaction, *, token_id: str | None = None, token_hash: str | None = None
) -> tuple[str, str] | None:
    """The ids of a token and its account, by its id or its hash; also of a revoked one."""
    query = select(tokens.c.id, tokens.c.account_id)
    query = query.where(tokens.c.id == token_id) if token_hash is None else query.where(tokens.c.hash == token_hash)
    row = tx.connection.execute(query).first()
    return None if row is None else (row.id, row.account_id)


def list_accounts(tx: Transaction) -> list[Account]:
    """Every account, by name."""
    query = select(*_account_mapper.columns).order_by(accounts.c.name)
    return [_account_mapper.one(row) for row in tx.connection.execute(query)]


def set_admission(tx: Transaction, account_id: str, *, entitled: bool, active_sandbox_limit: int | None) -> None:
    """Change whether an account may use sandboxes, and how many."""
    values = {"entitled": entitled, "active_sandbox_limit": active_sandbox_limit}
    tx.connection.execute(update(accounts).where(accounts.c.id == account_id).values(**values))


def set_billing(tx: Transaction, account_id: str, *, plan: Plan, credit_micros: int) -> None:
    """Change how an account pays."""
    tx.connection.execute(
        update(accounts).where(accounts.c.id == account_id).values(plan=plan, credit_micros=credit_micros)
    )


def restriction_of(account_id: str, column: Mapping[str, list[str]] | None) -> Restriction | None:
    """What a token is restricted to, from its column; None where that is nothing."""
    if column is None:
        return None
    chosen = {name: frozenset(column[name]) for name in _RESTRICTED if name in column}
    return Restriction(account_id, **chosen)


def _restriction_column(restriction: Restriction) -> dict[str, list[str]]:
    """The account stands in a column of its own: a token is of one."""
    chosen = {name: getattr(restriction, name) for name in _RESTRICTED}
    return {name: sorted(values) for name, values in chosen.items() if values is not None}
