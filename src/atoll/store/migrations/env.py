"""Alembic's entry point: runs the migrations on the engine that `atoll.store.migrate` hands over."""

from typing import Literal

from alembic import context

from atoll.store.tables import metadata
from atoll.store.tables.base import Moment, Name


def render_item(kind: str, item: object, autogen_context: object) -> str | Literal[False]:
    """Write our column types as the plain ones they are stored as, so that a migration never changes with the code."""
    del autogen_context
    if kind == "type" and isinstance(item, Moment):
        return "sa.BigInteger()"
    if kind == "type" and isinstance(item, Name):
        return "sa.String(length=64)"
    return False


engine = context.config.attributes["engine"]
with engine.connect() as connection:
    if connection.dialect.name == "postgresql":
        # One migrator at a time: several control planes may start at once.
        connection.exec_driver_sql("SELECT pg_advisory_lock(7104871)")
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    context.configure(connection=connection, target_metadata=metadata, render_item=render_item)
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
