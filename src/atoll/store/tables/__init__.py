"""The tables, one file a noun, on one metadata. The sum of the migrations equals it (a test proves that)."""

from atoll.store.tables.base import metadata
from atoll.store.tables.commands import commands
from atoll.store.tables.identity import accounts, apps, memberships, tokens, users
from atoll.store.tables.pools import warm_instances
from atoll.store.tables.sandboxes import sandbox_events, sandboxes
from atoll.store.tables.templates import revisions, templates

__all__ = [
    "accounts",
    "apps",
    "commands",
    "memberships",
    "metadata",
    "revisions",
    "sandbox_events",
    "sandboxes",
    "templates",
    "tokens",
    "users",
    "warm_instances",
]
