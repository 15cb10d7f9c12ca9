"""The status machine: every status with every action, and nothing moves but what the table says."""

from __future__ import annotations

import itertools

import pytest

from atoll.domain.errors import Conflict
from atoll.domain.sandbox import (
    BILLED,
    HOLDS_CAPACITY,
    PROVISIONING,
    RUNNING,
    TRANSITIONS,
    Action,
    SandboxStatus,
    next_status,
)

S, A = SandboxStatus, Action

# Written out once more, from the specification's text and not from the table.
ALLOWED = {
    S.REQUESTED: {A.ALLOCATE: S.ALLOCATING, A.FAIL: S.FAILED},
    S.ALLOCATING: {A.START: S.STARTING, A.FAIL: S.FAILED},
    S.STARTING: {A.BECOME_READY: S.READY, A.FAIL: S.FAILED},
    S.READY: {A.BEGIN_WORK: S.BUSY, A.SUSPEND: S.SUSPENDING, A.FAIL: S.FAILED, A.TERMINATE: S.TERMINATING},
    S.BUSY: {A.END_WORK: S.READY, A.SUSPEND: S.SUSPENDING, A.FAIL: S.FAILED, A.TERMINATE: S.TERMINATING},
    S.SUSPENDING: {
        A.ABORT_SUSPEND_IDLE: S.READY,
        A.ABORT_SUSPEND_BUSY: S.BUSY,
        A.FINISH_SUSPEND: S.SUSPENDED,
        A.FAIL: S.FAILED,
        A.TERMINATE: S.TERMINATING,
    },
    S.SUSPENDED: {A.RESUME: S.RESUMING, A.TERMINATE: S.TERMINATING},
    S.RESUMING: {A.BECOME_READY: S.READY, A.FAIL: S.FAILED},
    S.FAILED: {A.TERMINATE: S.TERMINATING},
    S.TERMINATING: {A.FINISH_TERMINATE: S.TERMINATED},
    S.TERMINATED: {},
}


@pytest.mark.spec("SA-361", "SA-362", "SA-363", "SA-365", "SA-366", "SA-368", "SA-369", "SA-372", "SA-373")
@pytest.mark.parametrize(("status", "action"), list(itertools.product(S, A)))
def test_a_status_moves_by_the_actions_of_the_table_and_by_no_other(status: SandboxStatus, action: Action) -> None:
    expected = ALLOWED[status].get(action)
    if expected is not None:
        assert next_status(status, action) is expected
        return
    with pytest.raises(Conflict) as refused:
        next_status(status, action)
    assert status in refused.value.message


def test_the_table_holds_nothing_beyond_these_steps() -> None:
    assert {(status, action): to for status, steps in ALLOWED.items() for action, to in steps.items()} == TRANSITIONS


@pytest.mark.spec("SA-361")
def test_the_statuses_are_those_of_the_specification() -> None:
    named = "REQUESTED ALLOCATING STARTING READY BUSY SUSPENDING SUSPENDED RESUMING FAILED TERMINATING TERMINATED"
    assert [status.value for status in S] == named.split()


@pytest.mark.spec("SA-369")
def test_nothing_moves_a_terminated_sandbox() -> None:
    assert not [action for status, action in TRANSITIONS if status is S.TERMINATED]


def test_every_status_can_reach_terminated() -> None:
    reaches = {S.TERMINATED}
    for _ in S:
        reaches |= {status for (status, _action), to in TRANSITIONS.items() if to in reaches}
    assert reaches == set(S)


@pytest.mark.spec("SA-144")
def test_what_never_ran_is_terminated_by_way_of_failed() -> None:
    for status in PROVISIONING:
        assert (status, A.TERMINATE) not in TRANSITIONS
        assert next_status(next_status(status, A.FAIL), A.TERMINATE) is S.TERMINATING


@pytest.mark.spec("SA-414", "SA-416")
def test_every_status_but_suspended_and_terminated_holds_capacity() -> None:
    assert set(S) - HOLDS_CAPACITY == {S.SUSPENDED, S.TERMINATED}


@pytest.mark.spec("SA-379", "SA-380", "SA-381", "SA-382", "SA-383")
def test_the_statuses_that_hold_compute_for_the_caller_are_billed() -> None:
    assert {S.STARTING, S.READY, S.BUSY, S.SUSPENDING, S.RESUMING} == BILLED


def test_running_and_provisioning_do_not_overlap() -> None:
    assert {S.READY, S.BUSY} == RUNNING
    assert not RUNNING & PROVISIONING
