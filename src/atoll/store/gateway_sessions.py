"""Queries about gateway sessions."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select

from atoll.domain.audit import Channel, Origin
from atoll.domain.gateway import GatewayScope, GatewaySession
from atoll.domain.identity import Principal
from atoll.store.database import Transaction
from atoll.store.identity import restriction_of
from atoll.store.rows import Mapper
from atoll.store.tables import gateway_sessions, tokens

_s = gateway_sessions.c
_mapper = Mapper(
    gateway_sessions, GatewaySession, {"scopes": lambda names: frozenset(GatewayScope(name) for name in names)}
)

# Built once: it runs at every call of the gateway.
_FIND = (
    select(*_mapper.columns, tokens.c.kind, tokens.c.role, tokens.c.scopes.label("token_scopes"), tokens.c.restriction)
    .join_from(gateway_sessions, tokens, tokens.c.id == _s.token_id)
    .where(_s.hash == bindparam("hash"), tokens.c.revoked_at.is_(None))
)


def add(tx: Transaction, session: GatewaySession, token_hash: str) -> None:
    """Insert a session by the hash of its token."""
    tx.connection.execute(
        insert(gateway_sessions).values(
            id=session.id,
            hash=token_hash,
            sandbox_id=session.sandbox_id,
            account_id=session.account_id,
            user_id=session.user_id,
            token_id=session.token_id,
            scopes=sorted(session.scopes),
            created_at=session.created_at,
            expires_at=session.expires_at,
        )
    )


def find(tx: Transaction, token_hash: str) -> tuple[GatewaySession, Principal] | None:
    """A session by the hash of its token, and who opened it with what they may do by now.

    None when there is none, or when the API token that opened it was revoked.
    """
    row = tx.connection.execute(_FIND, {"hash": token_hash}).first()
    if row is None:
        return None
    session = _mapper.one(row[: len(_mapper.columns)])  # type: ignore[arg-type]  # a part of a row is a plain tuple
    principal = Principal(
        session.token_id,
        row.kind,
        session.user_id,
        session.account_id,
        row.role,
        frozenset(row.token_scopes),
        restriction_of(session.account_id, row.restriction),
        origin=Origin(Channel.GATEWAY),
    )
    return session, principal


def remove_ended(tx: Transaction, *, before: datetime) -> None:
    """Forget sessions that expired before a time."""
    tx.connection.execute(delete(gateway_sessions).where(_s.expires_at < before))
