"""What a sandbox is made of, read off the literal."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.drivers.base import InstanceSpec
from atoll.drivers.gvisor import bundle
from atoll.drivers.gvisor.images import Image
from atoll.drivers.gvisor.layout import Layout

IMAGE = Image(
    digest="sha256:" + "0" * 64,
    rootfs=Path("/images/x/rootfs"),
    entrypoint=("/entry",),
    cmd=("serve",),
    env=("PATH=/opt/bin", "SANDBOX_AGENT_TOKEN=s", "ATOLL_SECRET=s", "KEEP=1", "broken"),
    working_dir="/",
    user="",
    home="/home/sandbox",
    bytes=0,
)
PATHS = Layout("abc123", Path("/run/atoll/abc123"), Path("/data/ephemeral")).instance("one")
SHARED = bundle.SharedFiles(Path("/opt/agent"), Path("/run/atoll/abc123/resolv.conf"), Path("/run/atoll/abc123/hosts"))


def spec(**changes: object) -> InstanceSpec:
    values: dict[str, Any] = {
        "instance_id": "one",
        "image_digest": "debian@sha256:" + "0" * 64,
        "command": None,
        "working_dir": None,
        "zclouds": 1,
        "pid_limit": None,
        "ephemeral_disk_mb": None,
    }
    return InstanceSpec(**(values | changes))


def config(**changes: object) -> dict[str, Any]:
    argv = bundle.agent_argv(spec(**changes), IMAGE, pid_limit=100, memory_limit=1)
    return bundle.config(argv, IMAGE, PATHS, SHARED, namespace=Path("/run/netns/n"), hostname="sandbox", pid_limit=64)


@pytest.mark.spec("SA-098")
def test_no_variable_of_the_agent_or_of_atoll_reaches_the_sandbox() -> None:
    text = json.dumps(config())
    assert "SANDBOX_AGENT_" not in text
    assert "ATOLL_" not in text
    assert "KEEP=1" in text


def test_the_image_overrides_the_default_environment() -> None:
    assert "PATH=/opt/bin" in bundle.environment(IMAGE)
    assert "HOME=/home/sandbox" in bundle.environment(IMAGE)
    assert "LANG=C.UTF-8" in bundle.environment(IMAGE)


@pytest.mark.spec("SA-204")
def test_without_a_command_the_images_entrypoint_runs() -> None:
    assert bundle.entrypoint(spec(), IMAGE) == ("/entry", "serve")
    assert bundle.entrypoint(spec(command=("/mine", "a")), IMAGE) == ("/mine", "a")


@pytest.mark.spec("SA-205")
def test_the_working_directory_is_the_agents_default() -> None:
    argv = bundle.agent_argv(spec(working_dir="/srv"), IMAGE, pid_limit=9, memory_limit=1)
    assert argv[argv.index("--workdir") + 1] == "/srv"
    argv = bundle.agent_argv(spec(), IMAGE, pid_limit=9, memory_limit=1)
    assert argv[argv.index("--workdir") + 1] == "/workspace"


@pytest.mark.spec("SA-404")
def test_the_pid_limit_reaches_the_agent() -> None:
    argv = bundle.agent_argv(spec(), IMAGE, pid_limit=9, memory_limit=1)
    assert argv[argv.index("--nproc") + 1] == "9"


def test_an_entrypoint_cannot_pass_for_an_option_of_the_agent() -> None:
    argv = bundle.agent_argv(spec(command=("--uid", "0")), IMAGE, pid_limit=9, memory_limit=1)
    assert argv[argv.index("--") + 1 :] == ["--uid", "0"]


def test_the_security_settings_are_these() -> None:
    made = config()
    process, linux = made["process"], made["linux"]
    assert isinstance(process, dict)
    assert isinstance(linux, dict)
    assert process["noNewPrivileges"] is True
    assert process["capabilities"]["ambient"] == []
    for name in ("bounding", "effective", "permitted"):
        assert set(process["capabilities"][name]) == {
            "CAP_CHOWN",
            "CAP_DAC_OVERRIDE",
            "CAP_FOWNER",
            "CAP_KILL",
            "CAP_SETGID",
            "CAP_SETPCAP",
            "CAP_SETUID",
        }
    assert {namespace["type"] for namespace in linux["namespaces"]} == {"pid", "ipc", "uts", "mount", "network"}
    assert "devices" not in linux
    assert linux["resources"]["devices"] == [{"allow": False, "access": "rwm"}]


def test_the_only_host_paths_are_the_named_ones() -> None:
    mounts = config()["mounts"]
    assert isinstance(mounts, list)
    binds = {mount["destination"]: mount for mount in mounts if mount["type"] == "bind"}
    assert set(binds) == {"/.atoll/agent", "/etc/resolv.conf", "/etc/hosts", "/tmp"}
    for destination in ("/.atoll/agent", "/etc/resolv.conf", "/etc/hosts"):
        assert "ro" in binds[destination]["options"]
    # /tmp is not the folder itself: the annotation turns it into a tmpfs whose pages lie there.
    assert config()["annotations"]["dev.gvisor.spec.mount.tmp.type"] == "tmpfs"


def test_runsc_runs_isolated_and_leaves_no_test_or_debug_switch_on() -> None:
    argv = bundle.runsc_argv(Path("runsc"), PATHS)
    assert "--platform=systrap" in argv
    assert "--network=sandbox" in argv
    assert "--host-uds=none" in argv
    assert f"--overlay2=root:dir={PATHS.overlay_dir}" in argv
    assert not [word for word in argv if "TESTONLY" in word or "debug" in word or "rootless" in word]


def test_the_shim_is_told_what_to_join_what_to_watch_and_what_to_kill() -> None:
    memory = bundle.MemoryWatch("v1", Path("/cg/memory/x"), 100, 10)
    argv = bundle.shim_argv(
        Path("/agent"),
        Path("/run/x"),
        ["runsc", "run"],
        hide_proc_sys_net=True,
        join=[Path("/cg/memory/x/cgroup.procs")],
        kill=[Path("/cg/memory/x")],
        memory=memory,
    )
    assert argv[:4] == ["/agent", "shim", "--dir", "/run/x"]
    assert argv[argv.index("--") + 1 :] == ["runsc", "run"]
    assert "--hide-proc-sys-net" in argv
    assert argv[argv.index("--memory-limit") + 1] == "100"
    assert argv[argv.index("--kill-cgroup") + 1] == "/cg/memory/x"


@pytest.mark.spec("SA-029")
def test_the_sandbox_is_shown_its_own_memory() -> None:
    assert bundle.meminfo(512 * 1024 * 1024).startswith("MemTotal: 524288 kB\n")
    argv = bundle.shim_argv(Path("/agent"), Path("/run/x"), ["runsc"], meminfo=PATHS.meminfo)
    assert argv[argv.index("--meminfo") + 1] == str(PATHS.meminfo)
