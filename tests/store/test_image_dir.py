"""The default image is found wherever bootstrap and the server were told to keep images, and in whatever order."""

from __future__ import annotations

from pathlib import Path

from atoll.compose import _bring_images
from atoll.data_dir import recorded_image_dir, with_the_servers_images
from atoll.ops.identity import bootstrap
from atoll.settings import Settings, load_settings
from atoll.store.opening import open_database
from atoll.store.wakes import Wakes
from atoll.system import random_id, utc_now

HEX = "a" * 64
OTHER_HEX = "b" * 64


def built(image_dir: Path, *digests: str) -> None:
    """What the build of the default image leaves in an image directory."""
    for digest in digests:
        layout = image_dir / "local" / digest
        layout.mkdir(parents=True)
        (layout / "index.json").write_text(digest)


def settings_of(tmp_path: Path, images: str) -> Settings:
    return load_settings(tmp_path / "data", image_dir=tmp_path / images)


async def test_a_server_takes_over_what_bootstrap_built_into_another_directory_and_pinned(tmp_path: Path) -> None:
    by_bootstrap = with_the_servers_images(settings_of(tmp_path, "first"))
    assert by_bootstrap.image_dir == tmp_path / "first"
    built(tmp_path / "first", HEX, OTHER_HEX)
    server = settings_of(tmp_path, "second")
    database = open_database(server.store_url, clock=utc_now, wakes=Wakes())
    try:
        image = f"atoll/default@sha256:{HEX}"
        await database.write(
            lambda tx: bootstrap(tx, random_id, account_name="a", image_digest=image, image_ref="atoll/default")
        )
        for _ in range(2):
            await _bring_images(server, database)
            assert [path.name for path in (tmp_path / "second" / "local").iterdir()] == [HEX]
        assert (tmp_path / "second" / "local" / HEX / "index.json").read_text() == HEX
        assert recorded_image_dir(server.data_dir) == tmp_path / "second"
        # An earlier directory that is gone hinders nothing.
        (tmp_path / "second").rename(tmp_path / "gone")
        await _bring_images(settings_of(tmp_path, "third"), database)
    finally:
        await database.close()


def test_bootstrap_builds_where_the_server_looks(tmp_path: Path) -> None:
    assert with_the_servers_images(settings_of(tmp_path, "first")).image_dir == tmp_path / "first"
    assert with_the_servers_images(settings_of(tmp_path, "second")).image_dir == tmp_path / "first"
