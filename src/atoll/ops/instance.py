"""What a sandbox's compute is made from: the driver's spec of a revision, and the pool that has it booted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from atoll.domain.egress import egress_policy
from atoll.domain.template import Revision
from atoll.drivers.base import HostMount, InstanceSpec


def instance_spec(instance_id: str, revision: Revision, mounts: tuple[HostMount, ...] = ()) -> InstanceSpec:
    """The spec of one instance of a revision. Raises INVALID_REQUEST for a `networkControl` that cannot be enforced."""
    return InstanceSpec(
        instance_id=instance_id,
        image_digest=revision.image_digest,
        command=revision.command,
        working_dir=revision.working_dir,
        zclouds=revision.zclouds,
        pid_limit=revision.pid_limit,
        ephemeral_disk_mb=revision.ephemeral_disk_mb,
        mounts=mounts,
        egress=egress_policy(revision.network_control),
    )


def pool_key(revision: Revision) -> str:
    """Name everything that is booted alike: instances of one key are interchangeable."""
    open_egress = replace(revision, network_control=None)
    control = None if revision.network_control is None else asdict(revision.network_control)
    spec = {**asdict(instance_spec("", open_egress)), "network_control": control}
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
