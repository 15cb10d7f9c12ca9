"""Creates from all sides at once: one identity makes one sandbox, and no ceiling is ever passed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text
from tests.databases import Store
from tests.samples import create_request, create_revision_request
from tests.scripted_driver import ScriptedDriver, services_of

from atoll.domain.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound
from atoll.domain.identity import Role, Scope, TokenKind
from atoll.domain.sandbox import SandboxStatus
from atoll.ops.access import authenticate
from atoll.ops.identity import find_or_add_app, issue_token
from atoll.ops.sandbox_create import Created, CreateSandbox, create_sandbox
from atoll.ops.services import Services
from atoll.ops.template import create_revision
from atoll.store import templates
from atoll.store.database import Transaction
from atoll.store.tables import sandbox_events
from atoll.store.tables import sandboxes as table
from atoll.system import random_id

pytestmark = pytest.mark.both_databases
S = SandboxStatus


@pytest.fixture
def services(store: Store, tmp_path: Path) -> Services:
    return services_of(store.database, ScriptedDriver(), tmp_path)


def wanted(store: Store, **changes: Any) -> CreateSandbox:
    known = {
        "account_id": store.made.account_id,
        "app_id": store.made.app_id,
        "template_id": store.made.template_id,
        "idempotency_key": random_id(),
    }
    return create_request(**{**known, **changes})


async def create(services: Services, store: Store, **changes: Any) -> Created:
    return await create_sandbox(services, store.principal, wanted(store, **changes), "correlation")


async def rows(store: Store) -> tuple[int, int]:
    """How many sandboxes and events there are."""

    def count(tx: Transaction) -> tuple[int, int]:
        one, other = (
            tx.connection.execute(select(func.count()).select_from(each)).scalar_one()
            for each in (table, sandbox_events)
        )
        return one, other

    return await store.read(count)


@pytest.mark.spec("SA-121", "SA-122", "SA-123", "SA-124", "SA-403")
async def test_twenty_creates_with_one_key_make_one_sandbox(services: Services, store: Store) -> None:
    made = await asyncio.gather(*(create(services, store, idempotency_key="k") for _ in range(20)))
    assert len({created.sandbox.id for created in made}) == 1
    assert sum(created.was_created for created in made) == 1
    assert await rows(store) == (1, 2), "requested and allocated, once"


@pytest.mark.spec("SA-121")
async def test_another_app_or_another_caller_with_the_same_key_is_another_sandbox(
    services: Services, store: Store
) -> None:
    app = await store.write(lambda tx: _add_app(tx, store))
    one = await create(services, store, idempotency_key="k")
    elsewhere = await create(services, store, idempotency_key="k", app_id=app)
    issued = await store.write(
        lambda tx: issue_token(
            tx,
            random_id,
            account_name="default",
            user_name="another",
            kind=TokenKind.USER,
            role=Role.TECHNICAL,
            scopes=frozenset({Scope.DEPLOY}),
        )
    )
    another = await authenticate(services, issued.token)
    theirs = await create_sandbox(services, another, wanted(store, idempotency_key="k"), "c")
    assert len({one.sandbox.id, elsewhere.sandbox.id, theirs.sandbox.id}) == 3
    assert theirs.was_created and elsewhere.was_created


def _add_app(tx: Transaction, store: Store) -> str:
    return find_or_add_app(tx, random_id, store.made.account_id, "another").id


@pytest.mark.spec("SA-412", "SA-413", "SA-424", "SA-426")
async def test_two_hundred_creates_at_a_ceiling_of_a_hundred_admit_exactly_a_hundred(
    services: Services, store: Store
) -> None:
    await store.set_ceiling(100)
    outcomes = await asyncio.gather(*(create(services, store) for _ in range(200)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, LimitReached)]
    assert sum(isinstance(outcome, Created) for outcome in outcomes) == 100
    assert len(refused) == 100
    assert {(error.reason, error.retry_after_seconds) for error in refused} == {("account_concurrency_exceeded", 30)}
    assert await rows(store) == (100, 200)


@pytest.mark.spec("SA-425", "SA-429", "SA-431")
async def test_concurrent_creates_of_a_project_stop_at_its_own_ceiling(services: Services, store: Store) -> None:
    outcomes = await asyncio.gather(
        *(create(services, store, project_id="p", max_project_concurrency=5) for _ in range(20)),
        *(create(services, store, project_id="q", max_project_concurrency=3) for _ in range(20)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, LimitReached)]
    assert len(refused) == 40 - 8
    assert {(error.reason, error.retry_after_seconds) for error in refused} == {("project_concurrency_exceeded", 30)}
    assert (await rows(store))[0] == 8


@pytest.mark.spec("SA-432")
async def test_without_a_project_the_own_ceiling_counts_the_app(services: Services, store: Store) -> None:
    await create(services, store, project_id="p")
    await create(services, store)
    await create(services, store, max_project_concurrency=3)
    with pytest.raises(LimitReached):
        await create(services, store, max_project_concurrency=3)
    app = await store.write(lambda tx: _add_app(tx, store))
    await create(services, store, app_id=app, max_project_concurrency=1)


@pytest.mark.spec("SA-414", "SA-415", "SA-416", "SA-418")
@pytest.mark.parametrize(
    ("status", "pending", "holds"),
    [
        (S.FAILED, False, True),
        (S.TERMINATING, False, True),
        (S.SUSPENDED, False, False),
        (S.SUSPENDED, True, True),
        (S.TERMINATED, False, False),
        (S.TERMINATED, True, True),
    ],
)
async def test_what_holds_the_last_place(
    services: Services, store: Store, status: SandboxStatus, pending: bool, holds: bool
) -> None:
    await store.set_ceiling(1)
    await store.add_sandbox(status, allocation_pending=pending, instance_id=random_id(), suspended_at=store.clock.now)
    if holds:
        with pytest.raises(LimitReached):
            await create(services, store)
    else:
        assert (await create(services, store)).was_created


@pytest.mark.spec("SA-419", "SA-126")
async def test_a_reconnect_at_the_ceiling_finds_its_sandbox_and_reserves_nothing(
    services: Services, store: Store
) -> None:
    await store.set_ceiling(1)
    first = await create(services, store, idempotency_key="k")
    store.clock.pass_seconds(5)
    again = await create(services, store, idempotency_key="k")
    assert (again.sandbox.id, again.was_created) == (first.sandbox.id, False)
    assert (await store.sandbox(first.sandbox.id)).last_active_at == store.clock.now
    assert await rows(store) == (1, 2), "requested and allocated, once"


@pytest.mark.spec("SA-126", "SA-417", "SA-172")
async def test_a_reconnect_resumes_a_paused_sandbox_once_and_only_while_there_is_room(
    services: Services, store: Store
) -> None:
    await store.set_ceiling(1)
    paused = await store.add_sandbox(S.SUSPENDED, idempotency_key="k", suspended_at=store.clock.now)
    holder = await store.add_sandbox(S.READY)
    assert (await create(services, store, idempotency_key="k")).sandbox.status is S.SUSPENDED
    await store.set_ceiling(2)
    resumed = await asyncio.gather(*(create(services, store, idempotency_key="k") for _ in range(10)))
    assert {created.sandbox.status for created in resumed} == {S.RESUMING}
    assert (await store.sandbox(paused.id)).generation == 1
    assert (await store.sandbox(holder.id)).generation == 0


@pytest.mark.spec("SA-430")
async def test_a_reconnect_changes_nothing_of_what_was_frozen(services: Services, store: Store) -> None:
    first = await create(services, store, idempotency_key="k", project_id="p", max_project_concurrency=4)
    again = await create(services, store, idempotency_key="k", project_id="q", max_project_concurrency=1)
    assert (again.sandbox.project_id, again.sandbox.max_project_concurrency) == ("p", 4)
    assert again.sandbox.id == first.sandbox.id


@pytest.mark.spec("SA-420", "SA-425")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"app_id": "nobody's"}, NotFound),
        ({"template_id": "nobody's"}, NotFound),
        ({"template_revision_id": "nobody's"}, NotFound),
        ({"template_id": None}, Invalid),
        ({"region": "nowhere"}, Invalid),
        ({"account_id": "nobody's"}, Forbidden),
    ],
)
async def test_a_create_that_is_refused_leaves_nothing(
    services: Services, store: Store, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await create(services, store, **changes)
    assert await rows(store) == (0, 0)


@pytest.mark.spec("SA-004", "SA-013")
async def test_a_caller_without_scope_or_role_makes_nothing(services: Services, store: Store) -> None:
    for caller in (
        replace(store.principal, role=Role.MEMBER),
        replace(store.principal, scopes=store.principal.scopes - {Scope.DEPLOY}),
    ):
        with pytest.raises(Forbidden):
            await create_sandbox(services, caller, wanted(store), "c")
    assert await rows(store) == (0, 0)


@pytest.mark.spec("SA-412", "SA-420")
async def test_a_create_whose_event_cannot_be_written_leaves_no_sandbox(services: Services, store: Store) -> None:
    await store.write(lambda tx: tx.connection.execute(text("DROP TABLE sandbox_events")))
    with pytest.raises(Exception, match="sandbox_events"):
        await create(services, store)
    assert await store.read(lambda tx: tx.connection.execute(select(func.count()).select_from(table)).scalar()) == 0


@pytest.mark.spec("SA-023", "SA-024", "SA-187", "SA-112", "SA-113")
async def test_revisions_appended_from_all_sides_get_numbers_without_gaps(services: Services, store: Store) -> None:
    request = create_revision_request(account_id=store.made.account_id, template_id=store.made.template_id)
    made = await asyncio.gather(*(create_revision(services, store.principal, request) for _ in range(10)))
    assert sorted(revision.revision for revision in made) == list(range(2, 12))
    template = await store.read(lambda tx: templates.get(tx, store.made.template_id))
    assert template is not None and template.current_revision_number == 11
    first = min(made, key=lambda revision: revision.revision)
    assert await store.read(lambda tx: templates.get_revision(tx, first.id)) == first
    latest, pinned = await create(services, store), await create(services, store, template_revision_id=first.id)
    assert (latest.sandbox.template_revision_number, pinned.sandbox.template_revision_number) == (11, 2)


@pytest.mark.spec("SA-106", "SA-107", "SA-108")
@pytest.mark.parametrize("change", [{"enabled": False}, {"deprecated_at": "now"}, {"current_revision_number": 0}])
async def test_a_template_that_offers_nothing_is_refused(
    services: Services, store: Store, change: dict[str, Any]
) -> None:
    values = {name: store.clock.now if value == "now" else value for name, value in change.items()}
    await store.write(lambda tx: templates.save(tx, store.made.template_id, **values))
    with pytest.raises(Conflict):
        await create(services, store)
    assert await rows(store) == (0, 0)
