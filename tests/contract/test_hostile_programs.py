"""Programs in a sandbox that turn on what keeps it: its agent, the agent's file and descriptors."""

from __future__ import annotations

import pytest
from tests.contract.rigs import GvisorRig

from atoll.drivers.contract import created, run, shell

pytestmark = pytest.mark.gvisor

_HOSTILE = r"""
import ctypes, json, os, resource, signal
libc, done = ctypes.CDLL(None, use_errno=True), []
def attempt(name, work):
    try:
        if work() is not False: done.append(name)
    except (OSError, ValueError, PermissionError): pass
for number in range(1, 65): attempt(f"signal {number}", lambda: os.kill(1, number))
attempt("ptrace", lambda: libc.ptrace(16, 1, 0, 0) == 0)
attempt("seize", lambda: libc.ptrace(0x4206, 1, 0, 0) == 0)
attempt("prlimit", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1)))
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGTERM))
buffer = ctypes.create_string_buffer(8)
class Part(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
part = Part(ctypes.addressof(buffer), 8)
attempt("memory", lambda: libc.process_vm_readv(1, ctypes.byref(part), 1, ctypes.byref(part), 1, 0) >= 0)
attempt("memory file", lambda: os.close(os.open("/proc/1/mem", os.O_RDWR)))
for path in ("/.atoll/agent", "/proc/1/exe"): attempt(f"write {path}", lambda: os.close(os.open(path, os.O_WRONLY)))
attempt("unlink", lambda: os.unlink("/.atoll/agent"))
attempt("replace", lambda: os.rename("/tmp", "/.atoll"))
attempt("add", lambda: os.close(os.open("/.atoll/new", os.O_CREAT | os.O_WRONLY)))
attempt("mode", lambda: os.chmod("/.atoll/agent", 0o777))
attempt("mount", lambda: libc.mount(b"none", b"/.atoll", b"tmpfs", 0, None) == 0)
for name in ("environ", "cmdline"):
    text = open(f"/proc/1/{name}", "rb").read()
    if b"SANDBOX_AGENT_" in text or b"ATOLL_" in text: done.append(f"secrets in {name}")
for number in range(32):
    where = f"/proc/1/fd/{number}"
    def through(where=where):
        if os.path.realpath(where) == "/dev/null": return False
        os.write(os.open(where, os.O_WRONLY | os.O_NONBLOCK), b"x" * 9)
    attempt(f"write into {where}", through)
for name in ("oom_score_adj", "comm", "uid_map"):
    attempt(f"write {name}", lambda: open(f"/proc/1/{name}", "w").write("0") and open(f"/proc/1/{name}").read() == "0")
print(json.dumps(done))
"""


async def test_a_program_that_attacks_its_agent_gets_nowhere(rig: GvisorRig) -> None:
    # Without an entrypoint: whoever kills that one ends the sandbox, as it should be.
    agent = await created(rig, command=None)
    before = await shell(agent, "sha256sum /.atoll/agent")
    result = await run(agent, "python3", "-c", _HOSTILE, timeout_seconds=60)
    assert (result.stdout.decode().strip(), result.state.exit_code) == ("[]", 0), result.stderr.decode()
    assert await shell(agent, "sha256sum /.atoll/agent") == before
    await run(agent, "python3", "-c", "import os; os.kill(-1, 9)")
    assert await shell(agent, "echo still here") == "still here\n", "over the connection that there was"
    again = await rig.driver.connect("one")
    assert await shell(again, "echo and anew") == "and anew\n"
