"""What all parties to a command hold before and after many of them: server, shim, gVisor, the agent and the sandbox."""

from __future__ import annotations

from tests import leaks
from tests.client import Client
from tests.server import AtollServer

Holdings = dict[str, float]
"""By the names in `ALLOWED_GROWTH`."""

ALLOWED_GROWTH: Holdings = {
    "processes in the sandbox": 0,
    "children not reaped by the server": 0,
    "descriptors of the server": 2,
    "descriptors of the shim": 0,
    "descriptors of gVisor": 8,
    "processes of the sandbox on the machine": 8,
    "memory of the agent, KB": 512,
    "memory of the shim, KB": 256,
    "memory of the server, KB": 8_192,
    "memory of gVisor, KB": 8_192,
}
"""What may be there more afterwards: nothing that grows with the number of commands. gVisor keeps a varying number of
stub processes, and both it and Python let their heaps breathe."""


def look(server: AtollServer, client: Client, sandbox_id: str) -> Holdings:
    """What is held now; the sandbox is the only one of the server."""
    inside = client.execute(sandbox_id, ["sh", "-c", "set -- /proc/[0-9]*; echo $#; grep VmRSS /proc/1/status"])
    words = inside.stdout.split()
    [instance_id] = leaks.instances(server.data_dir)
    pids = leaks.instance_processes(server.data_dir, instance_id)
    ours = leaks.resources(server.pid)
    shim = leaks.resources(int(leaks.layout_of(server.data_dir).instance(instance_id).shim_pid.read_text()))
    sentry = max((leaks.resources(pid) for pid in pids), key=lambda held: held.pss_kb)
    return {
        "processes in the sandbox": float(words[0]),
        "children not reaped by the server": ours.zombies,
        "descriptors of the server": ours.descriptors,
        "descriptors of the shim": shim.descriptors,
        "descriptors of gVisor": sentry.descriptors,
        "processes of the sandbox on the machine": len(pids),
        "memory of the agent, KB": float(words[2]),
        "memory of the shim, KB": shim.resident_kb,
        "memory of the server, KB": ours.resident_kb,
        "memory of gVisor, KB": sentry.resident_kb,
    }


def growth_beyond(before: Holdings, after: Holdings) -> Holdings:
    """What grew by more than it may."""
    grown = {name: after[name] - before[name] for name in ALLOWED_GROWTH}
    return {name: more for name, more in grown.items() if more > ALLOWED_GROWTH[name]}
