"""Where small sandboxes run, on trees like those of real machines; the contract proves it on the machine."""

import os
from pathlib import Path

import pytest

from atoll.drivers.gvisor.cgroups import Cgroups, CgroupsV1, CgroupsV2, Limits
from atoll.drivers.gvisor.processors import Placed, Processors, better_place, least_used

LIMITS = Limits(memory_bytes=560, reserve_bytes=128, cpus=0.5, host_tasks=2000)


def test_a_new_sandbox_goes_where_the_fewest_are() -> None:
    assert least_used([0, 1, 2], []) == 0
    assert least_used([0, 1, 2], [0, 2, 0]) == 1


def test_nothing_is_moved_while_the_processors_are_even() -> None:
    assert better_place({}, [0, 1]) is None
    assert better_place({"a": Placed(0, 0.5), "b": Placed(1, 0.5)}, [0, 1]) is None
    assert better_place({"a": Placed(0, 0.5)}, [0, 1]) is None
    assert better_place({"a": Placed(0, 0.05), "b": Placed(0, 0.05)}, [0, 1]) is None


def test_the_move_that_evens_out_most_is_made() -> None:
    placed = {"a": Placed(0, 0.5), "b": Placed(0, 0.45), "c": Placed(0, 0.01), "d": Placed(1, 0.0)}
    assert better_place(placed, [0, 1]) == ("a", 1)


def v1(tmp_path: Path) -> Cgroups:
    for controller in ("memory", "cpu", "pids", "cpuset"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").write_text("")
    for name, value in (("cpus", "0-3\n"), ("mems", "0\n")):
        (tmp_path / "cpuset" / f"cpuset.{name}").write_text(value)
    groups = CgroupsV1(tmp_path, "atoll-x")
    groups.start()
    assert (tmp_path / "cpuset/atoll-x/cpuset.cpus").read_text() == "0-3"
    assert (tmp_path / "cpuset/atoll-x/cpuset.mems").read_text() == "0"
    assert (tmp_path / "cpuset/atoll-x/cgroup.clone_children").read_text() == "1"
    return groups


def v2(tmp_path: Path) -> Cgroups:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    groups = CgroupsV2(tmp_path, "atoll-x")
    groups.start()
    assert "+cpuset" in (tmp_path / "atoll-x/cgroup.subtree_control").read_text()
    return groups


@pytest.mark.parametrize("make", [v1, v2])
def test_only_a_sandbox_of_at_most_one_processor_is_kept_on_one(tmp_path: Path, make: object) -> None:
    assert callable(make)
    groups = make(tmp_path)
    placing = Processors(groups, processors=[0, 1])
    for name in ("small", "second", "large"):
        groups.create(name, LIMITS)
        (groups.cpuset(name) / "cpuset.cpus").write_text("0-3\n")
    placing.place("small", 0.5)
    placing.place("second", 1.0)
    placing.place("large", 2.0)
    assert [groups.confined_to(name) for name in ("small", "second", "large")] == [0, 1, None]


def test_a_machine_without_cpusets_or_with_one_processor_is_left_alone(tmp_path: Path) -> None:
    for controller in ("memory", "cpu", "pids"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").write_text("")
    groups = CgroupsV1(tmp_path, "atoll-x")
    groups.start()
    groups.create("one", LIMITS)
    Processors(groups, processors=[0, 1]).place("one", 0.5)
    assert groups.confined_to("one") is None
    assert not (tmp_path / "cpuset").exists()


def test_a_busy_sandbox_leaves_the_processor_it_shares_with_another_busy_one(tmp_path: Path) -> None:
    groups = v1(tmp_path)
    time = [0.0]
    placing = Processors(groups, processors=[0, 1], seconds=lambda: time[0])
    for name in ("one", "two"):
        groups.create(name, LIMITS)
        (groups.cpuset(name) / "cpuset.cpus").write_text("0")
        # This process is busy enough: what it has used since the last look counts for both.
        (tmp_path / f"memory/atoll-x/{name}/cgroup.procs").write_text(f"{os.getpid()}\n")
    placing.balance()
    busy_until = os.times().user + 0.3
    while os.times().user < busy_until:
        pass
    time[0] = 0.5
    placing.balance()
    assert sorted([groups.confined_to("one"), groups.confined_to("two")]) == [0, 1]
