"""When time ends a sandbox, who may own it, and which ones accept commands."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from tests.samples import NOW, sandbox

from atoll.domain.errors import Conflict, ErrorCode, Forbidden, Invalid
from atoll.domain.region import Region, check_region
from atoll.domain.sandbox import (
    OwnerKind,
    SandboxStatus,
    TerminationReason,
    WorkloadProfile,
    check_accepts_commands,
    check_owner,
    due_termination,
)

S, R = SandboxStatus, TerminationReason
TICK = timedelta(milliseconds=1)
IDLE, LIFETIME, RETENTION = timedelta(seconds=1_800), timedelta(days=1), timedelta(days=7)
ENDED = {S.TERMINATING, S.TERMINATED}


@pytest.mark.spec("SA-370", "SA-061", "SA-211")
def test_a_ready_sandbox_is_ended_once_it_was_idle_for_its_timeout_and_not_before() -> None:
    idle = sandbox(status=S.READY)
    assert due_termination(idle, NOW + IDLE - TICK) is None
    assert due_termination(idle, NOW + IDLE) is R.IDLE_TIMEOUT


@pytest.mark.spec("SA-061", "SA-236")
def test_activity_counts_the_idle_time_anew() -> None:
    active = sandbox(status=S.READY, last_active_at=NOW + IDLE - TICK)
    assert due_termination(active, NOW + IDLE) is None
    assert due_termination(active, NOW + 2 * IDLE - TICK) is R.IDLE_TIMEOUT


@pytest.mark.spec("SA-244", "SA-370")
@pytest.mark.parametrize("status", [status for status in S if status is not S.READY])
def test_only_a_ready_sandbox_is_ever_idle_for_too_long(status: SandboxStatus) -> None:
    assert due_termination(sandbox(status=status), NOW + LIFETIME - TICK) is None


@pytest.mark.spec("SA-245", "SA-371", "SA-211", "SA-065")
@pytest.mark.parametrize("status", list(S))
def test_the_hard_lifetime_ends_every_sandbox_that_has_not_ended(status: SandboxStatus) -> None:
    expected = None if status in ENDED else R.HARD_LIFETIME
    assert due_termination(sandbox(status=status, suspended_at=NOW), NOW + LIFETIME) is expected


@pytest.mark.spec("SA-371")
def test_the_hard_lifetime_goes_before_idleness() -> None:
    assert due_termination(sandbox(status=S.READY, expires_at=NOW + IDLE), NOW + IDLE) is R.HARD_LIFETIME


@pytest.mark.spec("SA-040")
def test_a_paused_sandbox_is_kept_for_its_retention() -> None:
    paused = sandbox(status=S.SUSPENDED, suspended_at=NOW, expires_at=NOW + 2 * RETENTION)
    assert due_termination(paused, NOW + RETENTION - TICK) is None
    assert due_termination(paused, NOW + RETENTION) is R.SUSPENDED_RETENTION


OWNERS = {
    WorkloadProfile.CODE_INTERPRETER_TURN: OwnerKind.EXTERNAL_SESSION,
    WorkloadProfile.QUAVE_INTERACTIVE_AGENT: OwnerKind.AGENT_CONVERSATION,
    WorkloadProfile.QUAVE_AUTOMATION_RUN: OwnerKind.AGENT_RUN,
}


@pytest.mark.spec("SA-109", "SA-110")
@pytest.mark.parametrize(("profile", "owner"), list(itertools.product(WorkloadProfile, OwnerKind)))
def test_a_profile_takes_its_own_kind_of_owner_only(profile: WorkloadProfile, owner: OwnerKind) -> None:
    if OWNERS[profile] is owner:
        check_owner(profile, owner)
        return
    with pytest.raises(Invalid) as refused:
        check_owner(profile, owner)
    assert refused.value.field == "ownerKind"


@pytest.mark.spec("SA-214", "SA-218", "SA-219", "SA-220", "SA-221")
@pytest.mark.parametrize("status", list(S))
def test_commands_are_accepted_while_a_sandbox_runs_and_refused_with_the_right_advice_otherwise(
    status: SandboxStatus,
) -> None:
    if status in {S.READY, S.BUSY}:
        check_accepts_commands(sandbox(status=status))
        return
    with pytest.raises(Conflict) as refused:
        check_accepts_commands(sandbox(status=status))
    waiting_helps = status not in {S.FAILED, S.TERMINATING, S.TERMINATED}
    assert refused.value.code is not None
    assert refused.value.code.retryable is waiting_helps
    assert (refused.value.retry_after_seconds is not None) is waiting_helps


@pytest.mark.spec("SA-389")
def test_a_sandbox_whose_lifetime_is_over_says_so() -> None:
    with pytest.raises(Conflict) as refused:
        check_accepts_commands(sandbox(status=S.TERMINATED, termination_reason=R.HARD_LIFETIME))
    assert refused.value.code is ErrorCode.SANDBOX_EXPIRED


REGIONS = (Region("open"), Region("closed", accounts=frozenset({"friend"})), Region("bare", sandboxes=False))


@pytest.mark.spec("SA-117", "SA-118", "SA-119")
@pytest.mark.parametrize(
    ("name", "account", "error"),
    [
        ("open", "anyone", None),
        ("closed", "friend", None),
        ("nowhere", "anyone", Invalid),
        ("closed", "anyone", Forbidden),
        ("bare", "anyone", Conflict),
    ],
)
def test_a_region_must_be_known_open_to_the_account_and_have_sandboxes(name: str, account: str, error: Any) -> None:
    if error is None:
        assert check_region(REGIONS, name, account).name == name
        return
    with pytest.raises(error):
        check_region(REGIONS, name, account)
