"""The tables, one file a noun, on one metadata. The sum of the migrations equals it (a test proves that)."""

from atoll.store.tables.ai_subscriptions import ai_subscriptions
from atoll.store.tables.audit import audit_entries
from atoll.store.tables.base import metadata
from atoll.store.tables.commands import commands
from atoll.store.tables.gateway_sessions import gateway_sessions
from atoll.store.tables.identity import accounts, apps, memberships, tokens, users
from atoll.store.tables.pools import warm_instances
from atoll.store.tables.sandboxes import sandbox_events, sandboxes
from atoll.store.tables.templates import revisions, templates
from atoll.store.tables.volumes import shared_volumes, snapshots, storage_points
from atoll.store.tables.webhooks import execution_webhooks, webhook_deliveries

__all__ = [
    "accounts",
    "ai_subscriptions",
    "apps",
    "audit_entries",
    "commands",
    "execution_webhooks",
    "gateway_sessions",
    "memberships",
    "metadata",
    "revisions",
    "sandbox_events",
    "sandboxes",
    "shared_volumes",
    "snapshots",
    "storage_points",
    "templates",
    "tokens",
    "users",
    "warm_instances",
    "webhook_deliveries",
]
