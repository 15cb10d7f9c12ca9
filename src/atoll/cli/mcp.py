"""`atoll mcp`: the MCP server for clients that start a program and speak with it over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module

from atoll.cli.output import reported_errors
from atoll.domain.errors import Invalid


def mcp() -> None:
    """Serve the tools of an Atoll over stdin and stdout, to an MCP client that starts this command.

    Takes the server's address from ATOLL_URL and a token, best an MCP key, from ATOLL_TOKEN: arguments of a command can
    be read by every user of the machine.
    """
    with reported_errors(as_json=False):
        url, token = _from_environment("ATOLL_URL"), _from_environment("ATOLL_TOKEN")
        # Loaded here: it takes a second, which no other command should pay.
        bridge = import_module("atoll.mcp.stdio").bridge
        asyncio.run(bridge(url, token))


def _from_environment(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise Invalid(f"Set {name} in the environment of the MCP client's entry for Atoll.", field=name)
    return value
