"""What a revision may hold: the image's digest, the egress lists, the fields of a persistence mode, the warm pool."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.domain.errors import Invalid
from atoll.domain.template import (
    MAX_SLUG_LENGTH,
    NetworkControl,
    PersistenceMode,
    WarmPool,
    check_image_digest,
    check_network_control,
    check_persistence_fields,
    check_warm_pool,
    slug_of,
)

HEX = "0123456789abcdef" * 4
component = st.from_regex(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", fullmatch=True).filter(lambda text: len(text) <= 40)
host = st.from_regex(r"[a-z0-9]{1,10}(?:\.[a-z0-9]{1,10}){0,3}(?::[1-9][0-9]{0,4})?", fullmatch=True)
digest = st.text("0123456789abcdef", min_size=64, max_size=64)
tag = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


@pytest.mark.spec("SA-201")
@given(host, st.lists(component, min_size=1, max_size=4), st.none() | tag, digest)
def test_a_repository_pinned_by_digest_is_taken(where: str, path: list[str], label: str | None, pin: str) -> None:
    suffix = "" if label is None else f":{label}"
    check_image_digest(f"{where}/{'/'.join(path)}{suffix}@sha256:{pin}")


@pytest.mark.spec("SA-201")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "repo/image",
        "repo/image:latest",
        "repo/image@sha256:",
        f"repo/image@sha256:{HEX[:-1]}",
        f"repo/image@sha256:{HEX}0",
        f"repo/image@sha256:{HEX.upper()}",
        f"repo/image@sha256:{HEX[:-1]}g",
        f"repo/image@sha512:{HEX}{HEX}",
        f"repo/image@md5:{HEX}",
        f"repo/image@sha256:{HEX}\n",
        f"\nrepo/image@sha256:{HEX}",
        f"repo/image@sha256:{HEX} ",
        f" repo/image@sha256:{HEX}",
        f"repo/image@sha256:{HEX[:-1]}\u0660",  # a digit, not of ASCII
        f"@sha256:{HEX}",
        f"/image@sha256:{HEX}",
        f"repo//image@sha256:{HEX}",
        f"repo/@sha256:{HEX}",
        f"repo/../image@sha256:{HEX}",
        f"../image@sha256:{HEX}",
        f"-repo/image@sha256:{HEX}",
        f"--flag@sha256:{HEX}",
        f"docker://repo/image@sha256:{HEX}",
        f"https://repo/image@sha256:{HEX}",
        f"user:password@repo/image@sha256:{HEX}",
        f"repo/Image@sha256:{HEX}",
        f"repo/im age@sha256:{HEX}",
        f"repo/image;rm@sha256:{HEX}",
        f"repo/$(id)@sha256:{HEX}",
        f"repo/image\x00@sha256:{HEX}",
        f"repo:port/image@sha256:{HEX}",
        f"repo:999999/image@sha256:{HEX}",
        f"repo/image@sha256:{HEX}@sha256:{HEX}",
        f"repo/image:@sha256:{HEX}",
        f"rеpo/image@sha256:{HEX}",  # noqa: RUF001 - a Cyrillic letter, which is the point
        f"{'r' * 450}/image@sha256:{HEX}",
    ],
)
def test_anything_else_is_refused_and_the_field_is_named(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_image_digest(text)
    assert refused.value.field == "imageDigest"


@pytest.mark.spec("SA-201")
@given(st.text(max_size=200))
def test_no_text_breaks_the_check_of_a_digest(text: str) -> None:
    with pytest.raises(Invalid):
        check_image_digest(text)


def test_a_long_hostile_reference_is_refused_at_once() -> None:
    began = time.perf_counter()
    for hostile in ("a" * 1_000_000, "a-" * 200 + "!", "a/" * 200, "a__" * 150 + "@", "0:0" * 150):
        with pytest.raises(Invalid):
            check_image_digest(hostile)
    assert time.perf_counter() - began < 1


def control(enabled: bool, addresses: tuple[str, ...] = (), domains: tuple[str, ...] = ()) -> NetworkControl:
    return NetworkControl(enabled, addresses, domains)


@pytest.mark.spec("SA-189", "SA-191", "SA-192", "SA-199")
@pytest.mark.parametrize(
    "valid",
    [
        control(False),
        control(False, (), ("example.com",)),
        control(False, ("", "  ")),
        control(True, ("10.0.0.1",)),
        control(True, ("", "10.0.0.0/8")),
        control(True, ("10.0.0.1",), ("example.com",)),
        control(True, ("10.0.0.1",), ("", "example.com")),
    ],
)
def test_lists_that_name_something_are_taken(valid: NetworkControl) -> None:
    check_network_control(valid)


@pytest.mark.spec("SA-190", "SA-194")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (control(True), "networkControl.addressAllowlist"),
        (control(True, ("", " ", "\t\n")), "networkControl.addressAllowlist"),
        (control(True, (), ("example.com",)), "networkControl.addressAllowlist"),
        (control(False, (), ("",)), "networkControl.domainAllowlist"),
        (control(False, (), (" ", "\u2003")), "networkControl.domainAllowlist"),
        (control(True, ("10.0.0.1",), ("  ",)), "networkControl.domainAllowlist"),
    ],
)
def test_lists_that_name_nothing_are_refused(wrong: NetworkControl, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_network_control(wrong)
    assert refused.value.field == field


M = PersistenceMode
FIELDS: dict[str, tuple[dict[str, Any], set[PersistenceMode]]] = {
    "volumeSizeMb": ({"volume_size_mb": 1}, {M.DIRECTORY, M.SNAPSHOT, M.BOTH}),
    "mountPath": ({"mount_path": "/data"}, {M.DIRECTORY, M.BOTH}),
    "snapshotExclude": ({"snapshot_exclude": ()}, {M.SNAPSHOT, M.BOTH}),
    "snapshotMaxMb": ({"snapshot_max_mb": 1}, {M.SNAPSHOT, M.BOTH}),
}


@pytest.mark.spec("SA-208", "SA-209", "SA-210")
@pytest.mark.parametrize(("mode", "name"), list(itertools.product(M, FIELDS)))
def test_a_persistence_field_is_for_the_modes_that_use_it(mode: PersistenceMode, name: str) -> None:
    value, modes = FIELDS[name]
    none: dict[str, Any] = {
        "volume_size_mb": None,
        "mount_path": None,
        "snapshot_exclude": None,
        "snapshot_max_mb": None,
    }
    check_persistence_fields(mode, **none)
    if mode in modes:
        check_persistence_fields(mode, **{**none, **value})
        return
    with pytest.raises(Invalid) as refused:
        check_persistence_fields(mode, **{**none, **value})
    assert refused.value.field == name


@pytest.mark.spec("SA-041")
@pytest.mark.parametrize("bounds", [(0, 0, 0), (1, 0, 1), (2, 1, 3), (3, 3, 3)])
def test_a_pool_wants_a_number_within_its_bounds(bounds: tuple[int, int, int]) -> None:
    check_warm_pool(WarmPool(*bounds), M.EPHEMERAL, pid_limit=None, ephemeral_disk_mb=None)


@pytest.mark.spec("SA-041")
@pytest.mark.parametrize("bounds", [(2, 0, 1), (0, 1, 2), (1, 2, 0), (-1, -1, 1), (0, -1, 1)])
def test_a_pool_of_wrong_bounds_is_refused(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(Invalid) as refused:
        check_warm_pool(WarmPool(*bounds), M.EPHEMERAL, pid_limit=None, ephemeral_disk_mb=None)
    assert refused.value.field == "warmPool"


@pytest.mark.spec("SA-042", "SA-101")
@pytest.mark.parametrize("mode", [M.DIRECTORY, M.SNAPSHOT, M.BOTH])
def test_a_pool_and_a_volume_exclude_each_other(mode: PersistenceMode) -> None:
    with pytest.raises(Invalid, match="persistence modes with a volume are not available on warm pools"):
        check_warm_pool(WarmPool(1, 0, 1), mode, pid_limit=None, ephemeral_disk_mb=None)


@pytest.mark.spec("SA-408")
@pytest.mark.parametrize(("limits", "field"), [((64, None), "pidLimit"), ((None, 512), "ephemeralDiskMb")])
def test_a_pool_and_limits_of_one_sandbox_exclude_each_other(limits: tuple[int | None, int | None], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_warm_pool(WarmPool(1, 0, 1), M.EPHEMERAL, pid_limit=limits[0], ephemeral_disk_mb=limits[1])
    assert refused.value.field == field


@pytest.mark.spec("SA-017")
@given(st.text(max_size=200))
def test_a_slug_is_safe_in_a_url_whatever_the_name(name: str) -> None:
    slug = slug_of(name)
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", slug)
    assert len(slug) <= MAX_SLUG_LENGTH
    assert slug_of(slug) == slug


@pytest.mark.spec("SA-017")
@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Data Science", "data-science"),
        ("  Café  crème ", "cafe-creme"),
        ("a/b?c#d", "a-b-c-d"),
        ("日本", "template"),
        ("⑽" * 200, ("10-" * 67)[:200].strip("-")),
    ],
)
def test_a_slug_is_derived_from_the_name(name: str, slug: str) -> None:
    assert slug_of(name) == slug
