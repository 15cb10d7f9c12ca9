"""Accounts, users, their memberships, apps and tokens."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Integer, String, Table, UniqueConstraint

from atoll.domain.billing import Plan
from atoll.domain.identity import Role, TokenKind
from atoll.store.tables.base import Moment, Name, metadata

accounts = Table(
    "accounts",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("entitled", Boolean, nullable=False),
    Column("active_sandbox_limit", Integer),
    Column("plan", Name(Plan), nullable=False),
    Column("credit_micros", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("created_at", Moment, nullable=False),
    UniqueConstraint("account_id", "name"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("account_id", String(36), ForeignKey("accounts.id"), primary_key=True),
    Column("user_id", String(36), ForeignKey("users.id"), primary_key=True),
    Column("created_at", Moment, nullable=False),
)

apps = Table(
    "apps",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("created_at", Moment, nullable=False),
    UniqueConstraint("account_id", "name"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("kind", Name(TokenKind), nullable=False),
    Column("user_id", String(36), ForeignKey("users.id"), nullable=False),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("role", Name(Role), nullable=False),
    Column("scopes", JSON, nullable=False),
    # What the token is bound to inside the account; absent where it is bound to nothing.
    Column("restriction", JSON(none_as_null=True)),
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
)
