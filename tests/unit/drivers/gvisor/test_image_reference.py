"""Names of images: what is one, what is not, and that a tag decides nothing."""

from __future__ import annotations

import pytest

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.images.reference import parse_image_digest

HEX = "a1" * 32


@pytest.mark.parametrize(
    ("name", "registry", "path"),
    [
        ("docker.io/library/debian:bookworm-slim", "docker.io", "library/debian"),
        ("debian", "", "debian"),
        ("library/debian", "", "library/debian"),
        ("localhost/team/tool", "localhost", "team/tool"),
        ("127.0.0.1:5000/team/tool", "127.0.0.1:5000", "team/tool"),
        ("127.0.0.1:5000/team/tool:v1.2", "127.0.0.1:5000", "team/tool"),
        ("registry.example.com/a/b/c__d", "registry.example.com", "a/b/c__d"),
        ("[::1]:5000/tool", "[::1]:5000", "tool"),
    ],
)
def test_a_name_is_taken_apart_and_its_tag_dropped(name: str, registry: str, path: str) -> None:
    reference = parse_image_digest(f"{name}@sha256:{HEX}")
    assert (reference.registry, reference.path, reference.digest) == (registry, path, f"sha256:{HEX}")


@pytest.mark.spec("SA-201")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "debian",
        "debian:12",
        f"@sha256:{HEX}",
        f"debian@sha256:{HEX[:-1]}",
        f"debian@sha256:{HEX}0",
        f"debian@sha256:{HEX.upper()}",
        f"debian@sha512:{HEX}",
        f"debian@sha256:{HEX}\n",
        f"--help@sha256:{HEX}",
        f"-x.y/image@sha256:{HEX}",
        f"a b@sha256:{HEX}",
        f"../../etc@sha256:{HEX}",
        f"a//b@sha256:{HEX}",
        f"Team/Tool@sha256:{HEX}",
        f"user:password@host.example/a@sha256:{HEX}",
        f"a:b:c@sha256:{HEX}",
        f"{'a' * 600}@sha256:{HEX}",
    ],
)
def test_what_is_no_image_digest_is_refused_for_good(text: str) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        parse_image_digest(text)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_only_images_built_here_are_local() -> None:
    assert parse_image_digest(f"atoll/default@sha256:{HEX}").local
    assert not parse_image_digest(f"host.example/atoll/default@sha256:{HEX}").local
    assert not parse_image_digest(f"team/atoll@sha256:{HEX}").local
