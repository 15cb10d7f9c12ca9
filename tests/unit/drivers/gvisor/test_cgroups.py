"""Control groups on trees like those of real machines; version 1 is also proven on the machine by the contract."""

from pathlib import Path

import pytest

from atoll.domain.errors import RuntimeFailure
from atoll.drivers.gvisor.cgroups import CgroupsV1, CgroupsV2, Limits, find_cgroups

LIMITS = Limits(memory_bytes=560, reserve_bytes=128, cpus=1.5, host_tasks=2000)
V2_FILES = ("memory.swap.max", "cpu.max.burst", "cgroup.kill", "cgroup.procs", "memory.current")


def v2_root(tmp_path: Path, controllers: str = "cpuset cpu io memory hugetlb pids rdma misc") -> Path:
    (tmp_path / "cgroup.controllers").write_text(controllers + "\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    return tmp_path


def v2_group(root: Path, *names: str) -> Path:
    folder = root / "atoll-x" / "one"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    return folder


def v1_root(tmp_path: Path) -> Path:
    for controller in ("memory", "cpu", "pids"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").write_text("")
    return tmp_path


def test_the_version_is_found_by_where_the_memory_controller_is(tmp_path: Path) -> None:
    assert isinstance(find_cgroups("atoll-x", v1_root(tmp_path)), CgroupsV1)
    (tmp_path / "unified").mkdir()
    assert isinstance(find_cgroups("atoll-x", v2_root(tmp_path / "unified")), CgroupsV2)
    hybrid = tmp_path / "hybrid"
    hybrid.mkdir()
    assert isinstance(find_cgroups("atoll-x", v2_root(hybrid, "hugetlb")), CgroupsV1)


def test_version_2_hands_the_missing_controllers_down(tmp_path: Path) -> None:
    groups = CgroupsV2(v2_root(tmp_path), "atoll-x")
    groups.start()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +pids +cpuset"
    assert (tmp_path / "atoll-x" / "cgroup.subtree_control").read_text() == "+memory +cpu +pids +cpuset"


def test_version_2_says_which_controller_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="pids"):
        CgroupsV2(v2_root(tmp_path, "cpu memory"), "atoll-x").start()


def test_version_1_says_which_controller_is_missing(tmp_path: Path) -> None:
    root = v1_root(tmp_path)
    (root / "cpu" / "cgroup.procs").unlink()
    with pytest.raises(RuntimeFailure, match="cpu"):
        CgroupsV1(root, "atoll-x").start()


@pytest.mark.spec("SA-030")
def test_version_2_limits_memory_below_the_hard_limit_and_forbids_swap(tmp_path: Path) -> None:
    groups = CgroupsV2(v2_root(tmp_path), "atoll-x")
    folder = v2_group(tmp_path, *V2_FILES)
    groups.create("one", LIMITS)
    assert (folder / "memory.high").read_text() == "560"
    assert (folder / "memory.max").read_text() == "688"
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "2000"
    assert not (folder / "cpu.max").exists()
    watch = groups.memory_watch("one", LIMITS)
    assert (watch.version, watch.cgroup, watch.limit_bytes, watch.reserve_bytes) == ("v2", folder, 560, 128)


@pytest.mark.spec("SA-030")
def test_version_2_limits_the_processors_after_the_boot(tmp_path: Path) -> None:
    groups = CgroupsV2(v2_root(tmp_path), "atoll-x")
    folder = v2_group(tmp_path, *V2_FILES)
    groups.limit_cpu("one", LIMITS)
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert (folder / "cpu.weight").read_text() == "150"
    assert (folder / "cpu.max.burst").read_text() == "150000"


def test_version_2_does_without_what_an_older_kernel_lacks(tmp_path: Path) -> None:
    groups = CgroupsV2(v2_root(tmp_path), "atoll-x")
    folder = v2_group(tmp_path, "cgroup.procs")
    groups.create("one", LIMITS)
    groups.limit_cpu("one", LIMITS)
    assert groups.kill("one")
    assert {path.name for path in folder.iterdir()}.isdisjoint({"memory.swap.max", "cpu.max.burst", "cgroup.kill"})


def test_version_2_kills_through_the_kernel(tmp_path: Path) -> None:
    groups = CgroupsV2(v2_root(tmp_path), "atoll-x")
    folder = v2_group(tmp_path, *V2_FILES)
    assert groups.kill("one")
    assert (folder / "cgroup.kill").read_text() == "1"


@pytest.mark.spec("SA-030")
def test_version_1_freezes_instead_of_killing_the_sandbox(tmp_path: Path) -> None:
    groups = CgroupsV1(v1_root(tmp_path), "atoll-x")
    groups.start()
    groups.create("one", LIMITS)
    groups.limit_cpu("one", LIMITS)
    memory, cpu = tmp_path / "memory/atoll-x/one", tmp_path / "cpu/atoll-x/one"
    assert (memory / "memory.limit_in_bytes").read_text() == "688"
    assert (memory / "memory.oom_control").read_text() == "1"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"
    assert (cpu / "cpu.shares").read_text() == "1536"
    assert (tmp_path / "pids/atoll-x/one/pids.max").read_text() == "2000"


def test_groups_without_a_folder_of_their_instance_are_found(tmp_path: Path) -> None:
    groups = CgroupsV1(v1_root(tmp_path), "atoll-x")
    assert groups.instances() == set()
    (tmp_path / "pids/atoll-x/left").mkdir(parents=True)
    assert groups.instances() == {"left"}
    assert groups.exists("left")
    groups.remove("left")
    assert not groups.exists("left")


def test_the_processes_of_every_hierarchy_count(tmp_path: Path) -> None:
    groups = CgroupsV1(v1_root(tmp_path), "atoll-x")
    groups.create("one", LIMITS)
    (tmp_path / "memory/atoll-x/one/cgroup.procs").write_text("11\n12\n")
    (tmp_path / "pids/atoll-x/one/cgroup.procs").write_text("12\n13\n")
    assert groups.processes("one") == {11, 12, 13}
    assert groups.processes("none") == set()
