"""What the bench makes of its samples."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from bench.figures import Result, summarize
from bench.machine import Machine
from bench.report import Report, markdown, update_readme


def test_percentiles_of_a_hundred_and_one_samples_are_those_samples() -> None:
    summary = summarize([float(value) for value in range(101)])
    assert (summary.n, summary.p50, summary.p90, summary.p99) == (101, 50.0, 90.0, 99.0)


def test_nothing_measured_is_an_error_and_no_figure() -> None:
    with pytest.raises(ValueError, match="nothing"):
        summarize([])


def test_the_table_names_date_machine_and_every_missed_target() -> None:
    result = Result("cold", "Cold start")
    result.samples("create", "ms", [10.0, 20.0])
    result.target("at most 5 ms", "15 ms", met=False)
    machine = Machine("a processor", 2, 24.0, "6.18", "v1", "1.0")
    table = markdown(Report(datetime(2026, 11, 30, tzinfo=UTC), machine, False, [result], {"warm": "no server"}))
    assert "2026-11-30" in table
    assert "2 cores (a processor), 24 GB, Linux 6.18, cgroup v1, runsc 1.0" in table
    assert "| at most 5 ms | 15 ms | **no** |" in table
    assert "warm was not measured: no server" in table


def test_the_table_goes_between_the_markers_of_the_readme_and_nowhere_else() -> None:
    text = "before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n"
    assert update_readme(text, "new\n") == "before\n<!-- bench -->\nnew\n<!-- /bench -->\nafter\n"
    with pytest.raises(ValueError, match="bench"):
        update_readme("no markers", "new")
