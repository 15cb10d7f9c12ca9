"""What the driver writes into the folder of an instance, and reads again after a crash. Called by the driver only.

Each file appears whole or not at all: it is written under another name and renamed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from atoll.domain.egress import EgressPolicy
from atoll.drivers.base import HostMount, InstanceSpec
from atoll.drivers.gvisor.layout import InstancePaths


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)


def write_spec(paths: InstancePaths, spec: InstanceSpec) -> None:
    """The first thing that exists of an instance."""
    paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(paths.spec, json.dumps(asdict(spec)))


def read_spec(paths: InstancePaths) -> InstanceSpec | None:
    """The spec, None when there is none or it is not readable."""
    try:
        found = json.loads(paths.spec.read_text())
        command = found.pop("command")
        mounts = tuple(HostMount(**mount) for mount in found.pop("mounts", ()))
        egress = found.pop("egress", None)
        if egress is not None:
            egress = EgressPolicy(tuple(egress["addresses"]), tuple(egress["domains"]))
        return InstanceSpec(command=None if command is None else tuple(command), mounts=mounts, egress=egress, **found)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_slot(paths: InstancePaths, slot: int) -> None:
    """Which network namespace the instance is about to use."""
    write_whole(paths.network, json.dumps({"slot": slot}))


def read_slot(paths: InstancePaths) -> int | None:
    """The slot of its network namespace, None when it has none."""
    try:
        return int(json.loads(paths.network.read_text())["slot"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_ending(paths: InstancePaths) -> str | None:
    """Why the driver ended the instance, None when it did not."""
    try:
        return paths.ending.read_text().strip() or None
    except OSError:
        return None
