"""Failures of a start: the right code, a sentence, and none of the runtime's own words."""

import errno

import pytest

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor import classify
from atoll.drivers.process import Completed, ProgramFailed, ProgramMissing, ProgramTimeout
from atoll.drivers.shim import Ending

LEAKS = ("/var/lib", "/run/", "runsc", "container:", "goroutine")


def ending(code: int = 0, signal: int = 0, *, oom: bool = False, killed: bool = False) -> Ending:
    return Ending(code, signal, oom, killed)


@pytest.mark.spec("SA-385", "SA-401")
@pytest.mark.parametrize(
    ("log", "code", "retryable"),
    [
        (
            "running container: creating container: cannot create sandbox: open /var/lib/x: no space left on device",
            ErrorCode.SANDBOX_NOT_READY,
            True,
        ),
        ("running container: starting sandbox: fork/exec: cannot allocate memory", ErrorCode.SANDBOX_NOT_READY, True),
        (
            "running container: creating container: joining netns /run/netns/x: no such file or directory",
            ErrorCode.NAMESPACE_DENIED,
            False,
        ),
        (
            "running container: starting container: starting root container: urpc method failed",
            ErrorCode.UNKNOWN,
            False,
        ),
        ("FATAL ERROR: something of runsc", ErrorCode.UNKNOWN, False),
        ("/run/x/meminfo: 1: exec: /usr/bin/runsc: not found", ErrorCode.UNKNOWN, False),
    ],
)
def test_the_runtimes_words_become_a_code_and_a_sentence(log: str, code: ErrorCode, retryable: bool) -> None:
    failure = classify.boot_failure(ending(128), log)
    assert failure.code is code
    assert failure.code.retryable is retryable
    assert not any(word in failure.message for word in LEAKS)


@pytest.mark.spec("SA-204")
def test_an_entrypoint_that_exits_is_not_retried() -> None:
    failure = classify.boot_failure(ending(3), "atoll-agent: entrypoint ended\n")
    assert failure.code is ErrorCode.INVALID_REQUEST
    assert failure.message == "the entrypoint exited with 3 before the sandbox was ready"


def test_an_entrypoint_cannot_forge_a_failure_of_the_runtime() -> None:
    failure = classify.boot_failure(ending(1), "running container: no space left on device", answered=True)
    assert failure.code is ErrorCode.INVALID_REQUEST


def test_a_sandbox_killed_from_outside_is_not_found() -> None:
    assert classify.boot_failure(ending(signal=9), "").code is ErrorCode.SANDBOX_NOT_FOUND
    assert classify.boot_failure(None, "").code is ErrorCode.SANDBOX_NOT_FOUND


def test_a_boot_that_takes_too_long_can_be_retried() -> None:
    assert classify.boot_timeout(30).code is ErrorCode.AGENT_UNREACHABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProgramMissing("runsc", "cannot be executed"), ErrorCode.UNKNOWN),
        (ProgramTimeout("ip", 3), ErrorCode.SANDBOX_NOT_READY),
        (ProgramFailed("x", Completed(1, b"", b"write: No space left on device")), ErrorCode.SANDBOX_NOT_READY),
        (ProgramFailed("x", Completed(1, b"", b"strange")), ErrorCode.UNKNOWN),
    ],
)
def test_programs_that_fail_have_a_code(error: Exception, code: ErrorCode) -> None:
    assert classify.program_failure(error).code is code  # type: ignore[arg-type]  # all are ProgramError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_a_full_machine_can_be_retried(number: int) -> None:
    failure = classify.system_failure(OSError(number, "no", "/var/lib/secret"))
    assert failure.code is ErrorCode.SANDBOX_NOT_READY
    assert "/var" not in failure.message


def test_the_reason_of_an_end_is_told() -> None:
    assert classify.ended_detail(ending(2), was_ready=True) == "entrypoint exited with 2"
    assert classify.ended_detail(ending(signal=9), was_ready=True) == "killed from outside"
    assert classify.ended_detail(ending(killed=True), was_ready=True) == "killed"
    assert classify.ended_detail(None, was_ready=True) == "killed from outside"
    assert classify.ended_detail(None, was_ready=False) == "its start was interrupted"


def test_every_failure_is_of_the_domain() -> None:
    assert isinstance(classify.boot_failure(None, ""), RuntimeFailure)
