"""Databases for tests below the API: migrated once a run, copied for each test, with an account to work in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from sqlalchemy import update
from tests import samples
from tests.plane import migrated_sqlite
from tests.postgres import PostgresServer

from atoll.domain.identity import Account, Principal
from atoll.domain.sandbox import Sandbox, SandboxStatus
from atoll.ops.access import hash_token
from atoll.ops.identity import Bootstrapped, bootstrap
from atoll.store import identity, migrate, sandboxes, templates
from atoll.store.database import Database, Transaction, make_engine
from atoll.store.tables import accounts
from atoll.store.wakes import Wakes
from atoll.system import random_id

T = TypeVar("T")
_MIGRATED = "migrated"
_have_template: set[int] = set()


class Clock:
    """Time that stands still until a test lets it pass."""

    def __init__(self, now: datetime = samples.NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass at once."""
        self.now += timedelta(seconds=seconds)


@contextmanager
def migrated_database(folder: Path, server: PostgresServer | None) -> Iterator[str]:
    """The URL of an empty database at the present schema: SQLite in the folder, or on the server."""
    if server is None:
        file = folder / "atoll.db"
        file.write_bytes(migrated_sqlite())
        yield f"sqlite:///{file}"
        return
    if server.port not in _have_template:
        server.run(f"CREATE DATABASE {_MIGRATED}")
        engine = make_engine(server.url(_MIGRATED))
        migrate.upgrade(engine)
        engine.dispose()
        _have_template.add(server.port)
    name = f"copy_{random_id().replace('-', '')}"
    server.run(f"CREATE DATABASE {name} TEMPLATE {_MIGRATED}")
    try:
        yield server.url(name)
    finally:
        server.run(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True, slots=True)
class Store:
    """An open database with one account in it."""

    database: Database
    clock: Clock
    made: Bootstrapped
    principal: Principal

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a transaction."""
        return await self.database.write(function)

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Look."""
        return await self.database.read(function)

    async def sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox that must be there."""
        found = await self.read(lambda tx: sandboxes.get(tx, sandbox_id))
        assert found is not None
        return found

    async def add_sandbox(self, status: SandboxStatus = SandboxStatus.REQUESTED, **changes: object) -> Sandbox:
        """A sandbox of the account, put into the database as it is."""

        def add(tx: Transaction) -> Sandbox:
            template = templates.get(tx, self.made.template_id)
            assert template is not None
            revision = templates.current_revision(tx, template)
            assert revision is not None
            known = {
                "id": random_id(),
                "account_id": self.made.account_id,
                "app_id": self.made.app_id,
                "template_id": template.id,
                "template_revision_id": revision.id,
                "caller_key": self.principal.caller_key,
                "idempotency_key": random_id(),
                "status": status,
                "last_active_at": tx.now,
                "expires_at": tx.now + timedelta(days=1),
                "created_at": tx.now,
                "updated_at": tx.now,
            }
            made = samples.sandbox(**{**known, **changes})
            sandboxes.add(tx, made)
            return made

        return await self.write(add)

    async def set_ceiling(self, ceiling: int | None) -> None:
        """Give the account its own ceiling."""
        await self.write(lambda tx: tx.connection.execute(update(accounts).values(active_sandbox_limit=ceiling)))

    async def account(self) -> Account:
        """The account."""
        found = await self.read(lambda tx: identity.get_account(tx, self.made.account_id))
        assert found is not None
        return found


@asynccontextmanager
async def opened(url: str, clock: Clock | None = None) -> AsyncIterator[Store]:
    """Open a migrated database, with its account; also one that an earlier test life used."""
    clock = clock or Clock()
    database = Database(url, clock=clock, wakes=Wakes())
    try:
        made = await database.write(
            lambda tx: bootstrap(
                tx, random_id, account_name="default", image_digest=samples.IMAGE, image_ref="example:latest"
            )
        )
        found = await database.read(lambda tx: identity.find_principal(tx, hash_token(made.token)))
        assert found is not None
        yield Store(database, clock, made, found)
    finally:
        await database.close()
