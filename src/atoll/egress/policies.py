"""Whose connection it is, and which names they may reach: the files that the driver writes, and the patterns in them.

Read anew for every connection and query, so a policy holds from the moment its file is there.
"""

from __future__ import annotations

import json
import os
import re
from ipaddress import IPv6Address, ip_address
from pathlib import Path

_LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
"""Nothing that a name server could read otherwise, such as an escaped dot."""


def peer_of(address: str) -> str:
    """The address of a peer in the form that files are named by; that of an IPv4 peer on a socket of both versions
    without its prefix."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)


def normal_name(text: str) -> str | None:
    """A name as patterns are written: lower case, ASCII, without a final dot; None when it is none."""
    name = text.lower().removesuffix(".")
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        return None
    return name


def is_listed(name: str, patterns: list[str]) -> bool:
    """Whether a pattern covers a normal name. `*.a` covers what is below `a`, at any depth, and not `a`."""
    return any(name.endswith(each[1:]) if each.startswith("*.") else name == each for each in patterns)


class Policies:
    """The policies in a folder."""

    def __init__(self, folder: Path) -> None:
        # By its descriptor, since the folders above it are closed to the user that this process becomes.
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def allows(self, peer: str, name: str) -> bool:
        """Whether the sandbox at an address may reach a normal name. One without a readable policy may reach none."""
        try:
            descriptor = os.open(f"{peer}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                domains = json.load(file)["domains"]
            return is_listed(name, domains)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
