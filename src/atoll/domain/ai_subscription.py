"""Personal AI subscriptions: credentials of a user, put into the environment of single commands. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from atoll.domain.errors import Invalid

MAX_VALUE_BYTES = 16_384
"""With the longest command and its variables it still fits into one frame to the agent."""
MAX_VARIABLE_LENGTH = 200
MAX_PER_USER = 100

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_PREFIXES = ("SANDBOX_AGENT_", "ATOLL_", "LD_")
_RESERVED = frozenset({"PATH", "HOME", "USER", "SHELL", "PWD", "IFS", "ENV", "BASH_ENV", "LANG", "TERM", "_"})
"""What every program takes for a setting: a credential there would break commands, or be shown by them."""


@dataclass(frozen=True, slots=True)
class AiSubscription:
    """One credential of one user, without its value."""

    id: str
    user_id: str
    name: str
    env_var_name: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, repr=False)
class SealedSubscription:
    """A credential for one command: the variable, and the value as it is stored."""

    id: str
    env_var_name: str
    value: bytes


def value_context(subscription_id: str) -> str:
    """Where the value of a subscription is kept, for the sealer."""
    return f"ai_subscriptions.value:{subscription_id}"


def check_variable(name: str) -> None:
    """Refuse what is no POSIX name, or means something to programs already."""
    if len(name) > MAX_VARIABLE_LENGTH or not _VARIABLE.fullmatch(name):
        raise Invalid(
            "envVarName must be letters, digits and underscores, and must not begin with a digit.", field="envVarName"
        )
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise Invalid("envVarName is a reserved name.", field="envVarName")


def check_value(value: str) -> None:
    """Refuse what no environment can hold, and what is too long."""
    if not value or "\x00" in value:
        raise Invalid("value must not be empty or contain a NUL character.", field="value")
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise Invalid(f"value must not exceed {MAX_VALUE_BYTES} bytes.", field="value")
