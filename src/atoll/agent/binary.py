"""Where the compiled agent is. Called by the drivers; it compiles nothing."""

from __future__ import annotations

import os
from pathlib import Path

_OVERRIDE = "ATOLL_AGENT_BINARY"


class AgentBinaryMissingError(Exception):
    """The package was used without being built."""


def agent_binary() -> Path:
    """The static program `atoll-agent`, as the package build made it, or as ATOLL_AGENT_BINARY names it (tests use a
    build with sanitizers). Raises AgentBinaryMissingError."""
    override = os.environ.get(_OVERRIDE)
    path = Path(override) if override else Path(__file__).with_name("bin") / "atoll-agent"
    if not os.access(path, os.X_OK):
        raise AgentBinaryMissingError(
            f"there is no agent at {path}; run `pip install .`, or `make -C src/atoll/agent/csrc agent` in a checkout"
        )
    return path.absolute()
