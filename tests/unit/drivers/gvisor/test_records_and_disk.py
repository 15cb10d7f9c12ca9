"""The files of an instance and the measuring of its disk, on real files."""

import os
from pathlib import Path

import pytest

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import InstanceSpec
from atoll.drivers.gvisor import records
from atoll.drivers.gvisor.disk import MIB, DiskWatcher, Watched
from atoll.drivers.gvisor.layout import InstancePaths, Layout

SPEC = InstanceSpec("one", "debian@sha256:" + "0" * 64, ("sh", "-c", "x"), None, 2, 64, None)


def paths(tmp_path: Path) -> InstancePaths:
    return Layout.of(tmp_path / "data", tmp_path / "run").instance("one")


def test_a_spec_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    records.write_spec(paths(tmp_path), SPEC)
    assert records.read_spec(paths(tmp_path)) == SPEC


def test_a_torn_or_missing_record_is_no_record(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert records.read_spec(found) is None
    assert records.read_slot(found) is None
    found.folder.mkdir(parents=True)
    found.spec.write_text('{"instance_id": "o')
    found.network.write_text("")
    assert records.read_spec(found) is None
    assert records.read_slot(found) is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b", ".hidden", "x" * 49, "a b"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        Layout.of(tmp_path, tmp_path).instance(name)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_two_data_directories_share_no_name(tmp_path: Path) -> None:
    one, two = (Layout.of(tmp_path / name, tmp_path / "run") for name in ("a", "b"))
    for attribute in ("cgroup_name", "interface_prefix", "namespace_prefix", "table", "instances_dir"):
        assert getattr(one, attribute) != getattr(two, attribute)


def test_names_fit_the_kernels_limits(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path, Path("/run/atoll"))
    assert len(f"{layout.interface_prefix}16383") <= 15
    socket = layout.instance("x" * 48).runsc_root / "runsc-sandbox.sock"
    assert len(os.fsencode(socket)) < 108


@pytest.mark.spec("SA-409")
def test_unlinked_files_that_a_process_holds_open_count(tmp_path: Path) -> None:
    disk = tmp_path / "one"
    disk.mkdir()

    async def never(instance_id: str) -> None:
        raise AssertionError(instance_id)

    sandbox = Watched("one", disk, MIB, lambda: [os.getpid()])
    watcher = DiskWatcher(lambda: [sandbox], never, seconds=1)
    assert watcher.over_limit() == []
    with (disk / "backing").open("w+b") as file, (disk / "second").open("w+b") as second:
        (disk / "backing").unlink()
        file.write(os.urandom(2 * MIB))
        file.flush()
        os.fsync(file.fileno())
        assert watcher.usage(sandbox) >= 2 * MIB
        assert watcher.over_limit() == ["one"]
        second.write(os.urandom(MIB))
        os.fsync(second.fileno())
        assert watcher.usage(sandbox) >= 3 * MIB
        # A hole costs nothing.
        file.truncate(0)
        file.truncate(900 * MIB)
        second.truncate(0)
        assert watcher.over_limit() == []
    assert watcher.usage(sandbox) == 0
