"""Domain objects for tests whose subject is what becomes of them: plausible in each field that a test does not name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from atoll.domain.identity import Principal, Role, Scope, TokenKind
from atoll.domain.sandbox import OwnerKind, Sandbox, SandboxStatus, WorkloadProfile
from atoll.domain.template import IsolationProfile, PersistenceMode, Revision
from atoll.ops.sandbox_create import CreateSandbox
from atoll.ops.template import CreateRevision

NOW = datetime(2026, 8, 7, 12, 0, 0, 123_000, tzinfo=UTC)
IMAGE = f"example.test/image@sha256:{'0' * 64}"

_SANDBOX: dict[str, Any] = {
    "id": "sandbox-1",
    "account_id": "account-1",
    "app_id": "app-1",
    "template_id": "template-1",
    "template_revision_id": "revision-1",
    "template_revision_number": 1,
    "region": "local",
    "workload_profile": WorkloadProfile.CODE_INTERPRETER_TURN,
    "isolation_profile": IsolationProfile.GVISOR,
    "persistence_mode": PersistenceMode.EPHEMERAL,
    "owner_kind": OwnerKind.EXTERNAL_SESSION,
    "owner_id": "owner-1",
    "caller_key": "user:user-1",
    "idempotency_key": "key-1",
    "status": SandboxStatus.REQUESTED,
    "generation": 0,
    "is_warm_allocation": False,
    "private": False,
    "zclouds": 1,
    "idle_timeout_seconds": 1_800,
    "suspended_retention_seconds": 604_800,
    "allocation_pending": False,
    "last_active_at": NOW,
    "expires_at": NOW + timedelta(days=1),
    "correlation_id": "correlation-1",
    "created_at": NOW,
    "updated_at": NOW,
}

_REVISION: dict[str, Any] = {
    "id": "revision-1",
    "template_id": "template-1",
    "revision": 1,
    "image_digest": IMAGE,
    "zclouds": 1,
    "persistence_mode": PersistenceMode.EPHEMERAL,
    "isolation_profile": IsolationProfile.GVISOR,
    "idle_timeout_seconds": 1_800,
    "hard_lifetime_seconds": 86_400,
    "suspended_retention_seconds": 604_800,
    "created_at": NOW,
}


def _build(kind: type[Any], known: dict[str, Any], changes: dict[str, Any]) -> Any:
    """Fill in what is known, then nothing: fields that come later are optional to those tests that do not name them."""
    names = {field.name for field in fields(kind)}
    unknown = changes.keys() - names
    assert not unknown, f"{kind.__name__} has no {unknown}"
    values = {field.name: None for field in fields(kind) if field.default is MISSING}
    return kind(**{**values, **{name: value for name, value in known.items() if name in names}, **changes})


def sandbox(**changes: Any) -> Sandbox:
    """A sandbox that has just been requested, but for `changes`."""
    built: Sandbox = _build(Sandbox, _SANDBOX, changes)
    return built


def revision(**changes: Any) -> Revision:
    """A revision with every default."""
    built: Revision = _build(Revision, _REVISION, changes)
    return built


def principal(**changes: Any) -> Principal:
    """An admin with every scope."""
    known = {
        "token_id": "token-1",
        "kind": TokenKind.USER,
        "user_id": "user-1",
        "account_id": "account-1",
        "role": Role.ADMIN,
        "scopes": frozenset(str(scope) for scope in Scope),
    }
    built: Principal = _build(Principal, known, changes)
    return built


def create_request(**changes: Any) -> CreateSandbox:
    """A valid create."""
    known = {
        "account_id": "account-1",
        "app_id": "app-1",
        "template_id": "template-1",
        "workload_profile": WorkloadProfile.CODE_INTERPRETER_TURN,
        "owner_kind": OwnerKind.EXTERNAL_SESSION,
        "owner_id": "owner-1",
        "region": "local",
        "idempotency_key": "key-1",
        "private": False,
    }
    built: CreateSandbox = _build(CreateSandbox, known, changes)
    return built


def create_revision_request(**changes: Any) -> CreateRevision:
    """A valid revision."""
    known = {
        "account_id": "account-1",
        "template_id": "template-1",
        "image_digest": IMAGE,
        "zclouds": 1,
        "persistence_mode": PersistenceMode.EPHEMERAL,
    }
    built: CreateRevision = _build(CreateRevision, known, changes)
    return built
