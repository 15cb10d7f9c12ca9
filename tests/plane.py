"""A whole control plane for a test: real database, real workers, the real agent behind the fake driver, its callers.

`open_plane` is the way in; the fixtures of `tests/conftest.py` give one per test. Every answer that passes through an
`Api` is held against the OpenAPI document, so each test also proves shapes.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import insert, text
from tests.shapes import ShapeChecker

from atoll.api.app import create_app
from atoll.compose import ControlPlane
from atoll.domain.identity import Role, Scope, TokenKind
from atoll.domain.region import Region
from atoll.drivers.fake import FakeDriver
from atoll.ops.identity import Restrict, bootstrap, find_or_add_app, issue_token
from atoll.settings import Settings, load_settings
from atoll.storage.mounts import VolumeMounts
from atoll.store import migrate
from atoll.store.database import Transaction, make_engine
from atoll.store.tables import memberships
from atoll.store.wakes import SANDBOXES, STATUSES
from atoll.system import random_id, utc_now

PREFIX = "/api/public/v1"
AGENT = Path(__file__).parents[1] / "src/atoll/agent/bin/atoll-agent"
IMAGE = f"example.test/image@sha256:{'0' * 64}"
MISSING_IMAGE = f"example.test/missing@sha256:{'1' * 64}"
REGIONS = (
    Region("local"),
    Region("private", accounts=frozenset()),
    Region("bare", sandboxes=False),
    Region("dry", object_storage=False),
)
ALL_SCOPES = frozenset(str(scope) for scope in Scope)
SANDBOX_SCOPES = frozenset({Scope.READ, Scope.DEPLOY, Scope.CONFIG, Scope.DANGEROUS})


class Clock:
    """The real time, shifted by what a test has let pass."""

    def __init__(self) -> None:
        self.shift = timedelta(0)

    def __call__(self) -> datetime:
        return utc_now() + self.shift

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass at once."""
        self.shift += timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Ids:
    """What an account has from the start."""

    account: str
    account_name: str
    user: str
    app: str
    template: str


class Api:
    """One caller: sends requests, fills in the account, and has every answer checked."""

    def __init__(self, client: httpx.AsyncClient, token: str | None, ids: Ids, shapes: ShapeChecker) -> None:
        self.client = client
        self.token = token
        self.ids = ids
        self._shapes = shapes

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Any request."""
        headers = dict(options.pop("headers", {}))
        if self.token is not None:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        answer = await self.client.request(method, path, headers=headers, **options)
        self._shapes.check(answer)
        return answer

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """A read; `accountId` unless given (None leaves it out)."""
        query = {"accountId": self.ids.account, **query}
        return await self.send(
            "GET", PREFIX + path, params={name: value for name, value in query.items() if value is not None}
        )

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """A write; `accountId` unless given, `...` leaves a field out."""
        body = {"accountId": self.ids.account, **body}
        return await self.send(
            "POST", PREFIX + path, json={name: value for name, value in body.items() if value is not ...}
        )

    async def create(self, **body: Any) -> httpx.Response:
        """Create a sandbox, with everything that is required."""
        return await self.post("/sandbox/create", **create_body(self.ids, **body))

    async def ready_sandbox(self, **body: Any) -> dict[str, Any]:
        """Create a sandbox and wait until it settles as READY."""
        created = expect(await self.create(**body), 201)["sandbox"]
        sandbox = await self.settled(created["sandboxId"])
        assert sandbox["status"] in {"READY", "BUSY"}, sandbox
        return sandbox

    async def settled(self, sandbox_id: str) -> dict[str, Any]:
        """Wait until a sandbox is no longer being provisioned."""
        answer = expect(await self.get("/sandbox", sandboxId=sandbox_id, waitSeconds=25), 200)
        sandbox: dict[str, Any] = answer["sandbox"]
        return sandbox

    async def sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """A sandbox as it is now, from the list: listing is no activity."""
        for sandbox in expect(await self.get("/sandboxes", limit=100), 200)["sandboxes"]:
            if sandbox["sandboxId"] == sandbox_id:
                found: dict[str, Any] = sandbox
                return found
        raise AssertionError(f"no sandbox {sandbox_id}")

    async def execute(self, sandbox_id: str, *command: str, **body: Any) -> dict[str, Any]:
        """Run a command to its end."""
        answer = await self.post("/sandbox/execute", sandboxId=sandbox_id, command=list(command), **body)
        result: dict[str, Any] = expect(answer, 200)["result"]
        return result

    async def start(self, sandbox_id: str, *command: str, **body: Any) -> dict[str, Any]:
        """Start a command."""
        answer = await self.post("/sandbox/command/start", sandboxId=sandbox_id, command=list(command), **body)
        execution: dict[str, Any] = expect(answer, 201)["execution"]
        return execution

    async def command(self, sandbox_id: str, execution_id: str, **query: Any) -> dict[str, Any]:
        """Read a command."""
        answer = await self.get("/sandbox/command", sandboxId=sandbox_id, executionId=execution_id, **query)
        command: dict[str, Any] = expect(answer, 200)["command"]
        return command

    async def finished(self, sandbox_id: str, execution_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Read a command from its start to its end: its last state and all its events."""
        events: list[dict[str, Any]] = []
        cursor = 0
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            page = await self.command(sandbox_id, execution_id, **{"from": cursor, "waitSeconds": 5})
            events += page["events"]
            cursor = page["nextSeq"]
            if page["complete"]:
                return page, events
        raise AssertionError("the command did not end in time")


class Plane:
    """One control plane, served, with an account to work in."""

    def __init__(
        self, control: ControlPlane, driver: FakeDriver, clock: Clock, app: FastAPI, client: httpx.AsyncClient
    ) -> None:
        self.control = control
        self.services = control.services
        self.driver = driver
        self.clock = clock
        self.app = app
        self.client = client
        self.shapes = ShapeChecker(app)
        self.api: Api

    async def add_account(self, name: str) -> Api:
        """Another account, by its admin."""

        def add(tx: Transaction) -> tuple[str, Ids]:
            made = bootstrap(tx, random_id, account_name=name, image_digest=IMAGE, image_ref="example:latest")
            return made.token, Ids(made.account_id, name, made.user_id, made.app_id, made.template_id)

        token, ids = await self.services.database.write(add)
        return Api(self.client, token, ids, self.shapes)

    async def caller(
        self,
        *,
        user: str | None = None,
        kind: TokenKind = TokenKind.USER,
        role: Role = Role.ADMIN,
        scopes: Iterable[str] = ALL_SCOPES,
        restrict: Restrict | None = None,
    ) -> Api:
        """Another caller of the first account."""
        issued = await self.services.database.write(
            lambda tx: issue_token(
                tx,
                random_id,
                account_name=self.api.ids.account_name,
                user_name=user,
                kind=kind,
                role=role,
                scopes=frozenset(scopes),
                restrict=restrict,
            )
        )
        return Api(self.client, issued.token, self.api.ids, self.shapes)

    def anonymous(self, token: str | None = None) -> Api:
        """A caller with no token, or with one of their own making."""
        return Api(self.client, token, self.api.ids, self.shapes)

    async def add_app(self, name: str) -> str:
        """Another app of the first account, by its id."""
        app = await self.services.database.write(lambda tx: find_or_add_app(tx, random_id, self.api.ids.account, name))
        return app.id

    async def leave_account(self, user_id: str) -> None:
        """End a membership."""
        await self.services.database.write(
            lambda tx: tx.connection.execute(memberships.delete().where(memberships.c.user_id == user_id))
        )

    async def join_account(self, account_id: str, user_id: str) -> None:
        """Begin a membership."""
        await self.services.database.write(
            lambda tx: tx.connection.execute(
                insert(memberships).values(account_id=account_id, user_id=user_id, created_at=tx.now)
            )
        )

    def stop_workers(self) -> None:
        """Leave what a test forges to the test."""
        for task in self.control._tasks:
            task.cancel()

    async def let_pass(self, seconds: float) -> None:
        """Let time pass at once, and have every worker look."""
        self.clock.pass_seconds(seconds)
        self.services.wakes.publish([SANDBOXES, STATUSES])
        await asyncio.sleep(0.1)

    async def ended(self, sandbox_id: str) -> dict[str, Any]:
        """Wait until a sandbox of the first account is terminated."""

        async def look() -> dict[str, Any] | None:
            sandbox = await self.api.sandbox(sandbox_id)
            return sandbox if sandbox["status"] == "TERMINATED" else None

        found: dict[str, Any] = await until(look)
        return found

    async def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Look into, or change, the database behind everyone's back."""

        def run(tx: Transaction) -> list[tuple[Any, ...]]:
            result = tx.connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

        return await self.services.database.write(run)


def create_body(ids: Ids, **body: Any) -> dict[str, Any]:
    """A body of create that is valid but for what `body` changes."""
    return {
        "accountId": ids.account,
        "appId": ids.app,
        "templateId": ids.template,
        "workloadProfile": "QUAVE_INTERACTIVE_AGENT",
        "ownerKind": "AGENT_CONVERSATION",
        "ownerId": "conversation-1",
        "region": "local",
        "idempotencyKey": random_id(),
        **body,
    }


def expect(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The body of an answer that must have this status."""
    assert answer.status_code == status, (
        f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    )
    body: dict[str, Any] = answer.json()
    return body


def refused(answer: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """The body of a refusal that must have this status and say these words."""
    body = expect(answer, status)
    assert body["success"] is False
    for word in words:
        assert word in body["error"], body
    return body


def decoded(text: str | None) -> bytes:
    """Base64 undone; nothing for a key that was left out."""
    return base64.b64decode(text or "", validate=True)


async def until(condition: Callable[[], Awaitable[Any]], *, seconds: float = 20) -> Any:
    """Wait, with a limit, until a look at something gives a truth."""
    deadline = time.monotonic() + seconds
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        await asyncio.sleep(0.02)


@cache
def migrated_sqlite() -> bytes:
    """An empty SQLite database at the present schema; made once, copied for each test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "atoll.db"
        engine = make_engine(f"sqlite:///{path}")
        migrate.upgrade(engine)
        engine.dispose()
        return path.read_bytes()


@asynccontextmanager
async def open_plane(database_url: str | None = None, **settings: Any) -> AsyncIterator[Plane]:
    """Run a control plane on SQLite, or on the database given, and leave nothing of it."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-", dir="/tmp"))  # short: socket paths end at 107 bytes
    driver = FakeDriver(folder / "i", agent=AGENT, missing_images=frozenset({MISSING_IMAGE}))
    try:
        async with running_plane(folder / "d", driver, database_url, **settings) as plane:
            yield plane
    finally:
        for instance in await driver.list_instances():
            await driver.cleanup(instance.instance_id)
        mounts = VolumeMounts((folder / "d" / "mounts").absolute(), folder / "d" / "mount-cache")
        for instance_id in mounts.instances():
            await mounts.detach(instance_id)
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def running_plane(
    data_dir: Path, driver: FakeDriver, database_url: str | None = None, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Plane]:
    """One life of a control plane in a data directory; its sandboxes outlive it."""
    clock = clock or Clock()
    control = await ControlPlane.open(_settings(data_dir, database_url, **settings), driver=driver, clock=clock)
    try:
        with _application(control) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://atoll.test", timeout=60) as client:
                plane = Plane(control, driver, clock, app, client)
                plane.api = await plane.add_account("default")
                yield plane
    finally:
        await control.close()


_idle_applications: list[FastAPI] = []


@contextmanager
def _application(control: ControlPlane) -> Iterator[FastAPI]:
    """An application over the control plane, used again by the next test: what it is made of is only code, and making
    it and its document takes a second."""
    app = _idle_applications.pop() if _idle_applications else create_app(control.services, readiness=control.readiness)
    app.state.services, app.state.readiness = control.services, control.readiness
    try:
        yield app
    finally:
        _idle_applications.append(app)


def _settings(data_dir: Path, database_url: str | None, **settings: Any) -> Settings:
    data_dir.mkdir(mode=0o700, exist_ok=True)
    if database_url is None and not (data_dir / "atoll.db").exists():
        (data_dir / "atoll.db").write_bytes(migrated_sqlite())
    return load_settings(
        data_dir, **{"database_url": database_url, "regions": REGIONS, "warm_pool_size": 0, **settings}
    )
