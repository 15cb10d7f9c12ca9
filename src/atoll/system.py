"""Time and randomness of the real world. Everything else gets them passed in."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def random_id() -> str:
    """A version-4 UUID."""
    return str(uuid.uuid4())
