"""Queries about templates and revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from atoll.domain.template import NetworkControl, Revision, Template, WarmPool
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import revisions, sandboxes, templates

_template_mapper = Mapper(templates, Template)


def _network_control(value: dict[str, Any]) -> NetworkControl:
    return NetworkControl(value["enabled"], tuple(value["address_allowlist"]), tuple(value["domain_allowlist"]))


_revision_mapper = Mapper(
    revisions,
    Revision,
    {
        "command": tuple,
        "ports": tuple,
        "snapshot_exclude": tuple,
        "warm_pool": lambda value: WarmPool(**value),
        "network_control": _network_control,
    },
)


# Built once: building a statement costs ten times what running it does. SQLite leaves out the lock.
_GET = select(*_template_mapper.columns).where(templates.c.id == bindparam("id"))
_GET_LOCKED = _GET.with_for_update()
_GET_REVISION = select(*_revision_mapper.columns).where(revisions.c.id == bindparam("id"))
_GET_NUMBERED = select(*_revision_mapper.columns).where(
    revisions.c.template_id == bindparam("template_id"), revisions.c.revision == bindparam("number")
)


def get(tx: Transaction, template_id: str, *, lock: bool = False) -> Template | None:
    """One template; `lock` holds its row until the transaction ends."""
    query = _GET_LOCKED if lock else _GET
    return _template_mapper.maybe(tx.connection.execute(query, {"id": template_id}).first())


def find(tx: Transaction, account_id: str, name: str) -> Template | None:
    """The oldest template of a name."""
    query = (
        select(*_template_mapper.columns)
        .where(templates.c.account_id == account_id, templates.c.name == name)
        .order_by(templates.c.created_at, templates.c.id)
    )
    return _template_mapper.maybe(tx.connection.execute(query).first())


def list_of_account(
    tx: Transaction, account_id: str, *, app_id: str | None, include_deprecated: bool
) -> list[Template]:
    """The templates of an account, oldest first (SA-173 … SA-175)."""
    query = select(*_template_mapper.columns).where(templates.c.account_id == account_id)
    if app_id is not None:
        query = query.where(templates.c.app_id == app_id)
    if not include_deprecated:
        query = query.where(templates.c.deprecated_at.is_(None))
    rows = tx.connection.execute(query.order_by(templates.c.created_at, templates.c.id))
    return [_template_mapper.one(row) for row in rows]


def add(tx: Transaction, template: Template) -> None:
    """Insert a template."""
    tx.connection.execute(insert(templates).values(**asdict(template)))


def save(tx: Transaction, template_id: str, **changes: Any) -> None:
    """Write changed columns of a template."""
    tx.connection.execute(update(templates).where(templates.c.id == template_id).values(**changes))


def get_revision(tx: Transaction, revision_id: str) -> Revision | None:
    """One revision."""
    return _revision_mapper.maybe(tx.connection.execute(_GET_REVISION, {"id": revision_id}).first())


def current_revision(tx: Transaction, template: Template) -> Revision | None:
    """The latest revision, or None while there is none (SA-177, SA-178)."""
    number = {"template_id": template.id, "number": template.current_revision_number}
    return _revision_mapper.maybe(tx.connection.execute(_GET_NUMBERED, number).first())


def append_revision(tx: Transaction, revision: Revision) -> None:
    """Insert a revision and make it its template's current one. The caller holds the template's row."""
    values = asdict(revision)
    for name in ("command", "ports", "snapshot_exclude"):
        values[name] = None if values[name] is None else list(values[name])
    tx.connection.execute(insert(revisions).values(**values))
    save(tx, revision.template_id, current_revision_number=revision.revision, updated_at=tx.now)


def pooled_revisions(tx: Transaction) -> list[Revision]:
    """The current revisions, of live templates, that ask for a warm pool."""
    query = (
        select(*_revision_mapper.columns)
        .join(templates, templates.c.id == revisions.c.template_id)
        .where(
            revisions.c.revision == templates.c.current_revision_number,
            revisions.c.warm_pool.is_not(None),
            templates.c.enabled,
            templates.c.deprecated_at.is_(None),
        )
    )
    return [_revision_mapper.one(row) for row in tx.connection.execute(query)]


def missed_pools(tx: Transaction, revision_ids: Sequence[str], since: datetime) -> set[str]:
    """Those of the revisions of which a sandbox was created since then that no waiting instance was there for."""
    accounts = (
        select(templates.c.account_id)
        .join(revisions, revisions.c.template_id == templates.c.id)
        .where(revisions.c.id.in_(revision_ids))
    )
    query = (
        select(sandboxes.c.template_revision_id)
        .where(
            sandboxes.c.account_id.in_(accounts),
            sandboxes.c.created_at >= since,
            sandboxes.c.template_revision_id.in_(revision_ids),
            sandboxes.c.is_warm_allocation.is_(False),
        )
        .distinct()
    )
    return set(tx.connection.execute(query).scalars()) if revision_ids else set()


def current_revision_ids(tx: Transaction) -> set[str]:
    """Ids of every template's current revision."""
    query = select(revisions.c.id).join(
        templates,
        (templates.c.id == revisions.c.template_id) & (templates.c.current_revision_number == revisions.c.revision),
    )
    return set(tx.connection.execute(query).scalars())


def image_digests(tx: Transaction, revision_ids: set[str]) -> set[str]:
    """The images of some revisions."""
    query = select(revisions.c.image_digest).where(revisions.c.id.in_(revision_ids)).distinct()
    return set(tx.connection.execute(query).scalars())
