"""Which stretches of a life are billed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from atoll.domain.sandbox import BILLED, SandboxStatus
from atoll.domain.usage import BilledInterval, StatusChange, billed_intervals

S = SandboxStatus
BEGIN = datetime(2026, 8, 7, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def life(*steps: tuple[SandboxStatus, float]) -> list[StatusChange]:
    return [StatusChange(status, at(seconds)) for status, seconds in steps]


@pytest.mark.spec("SA-379", "SA-380", "SA-383")
def test_a_sandbox_is_billed_from_its_start_to_its_end() -> None:
    changes = life(
        (S.REQUESTED, 0), (S.ALLOCATING, 1), (S.STARTING, 5), (S.READY, 6), (S.BUSY, 7), (S.READY, 8),
        (S.TERMINATING, 20), (S.TERMINATED, 25),
    )  # fmt: skip
    assert billed_intervals(changes) == [BilledInterval(at(5), at(20))]


@pytest.mark.spec("SA-381", "SA-382", "SA-384")
def test_a_pause_and_a_resume_each_begin_an_interval() -> None:
    changes = life(
        (S.STARTING, 0), (S.READY, 1), (S.SUSPENDING, 10), (S.SUSPENDED, 12), (S.RESUMING, 100), (S.READY, 103)
    )
    assert billed_intervals(changes) == [
        BilledInterval(at(0), at(10)),
        BilledInterval(at(10), at(12)),
        BilledInterval(at(100), None),
    ]


@pytest.mark.spec("SA-383")
def test_a_sandbox_that_failed_is_not_billed_any_more() -> None:
    assert billed_intervals(life((S.STARTING, 0), (S.FAILED, 3), (S.TERMINATING, 50), (S.TERMINATED, 51))) == [
        BilledInterval(at(0), at(3))
    ]


@pytest.mark.spec("SA-379")
def test_what_never_started_is_not_billed() -> None:
    assert billed_intervals(life((S.REQUESTED, 0), (S.ALLOCATING, 9), (S.FAILED, 60), (S.TERMINATED, 61))) == []


@pytest.mark.spec("SA-379", "SA-380", "SA-381", "SA-382", "SA-383")
def test_the_billed_statuses_are_those_of_the_page() -> None:
    assert {S.STARTING, S.READY, S.BUSY, S.SUSPENDING, S.RESUMING} == BILLED


@pytest.mark.spec("SA-375", "SA-376")
@pytest.mark.parametrize(("length", "billed"), [(0.0, 0), (0.999, 0), (1.0, 1), (61.5, 61)])
def test_seconds_are_whole_and_there_is_no_minimum(length: float, billed: int) -> None:
    assert BilledInterval(at(0), at(length)).seconds(at(-100), at(1000)) == billed


@pytest.mark.spec("SA-375")
def test_only_what_lies_in_the_report_counts() -> None:
    assert BilledInterval(at(0), at(100)).seconds(at(90), at(1000)) == 10
    assert BilledInterval(at(0), None).seconds(at(-5), at(30)) == 30
    assert BilledInterval(at(0), at(10)).seconds(at(20), at(30)) == 0
