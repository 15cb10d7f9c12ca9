"""`atoll image`: the images of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson
from atoll.cli.output import emit, progress, reported_errors
from atoll.data_dir import with_the_servers_images
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.images.default_image import ensure_default_image
from atoll.settings import load_settings

app = typer.Typer(help="Images.", no_args_is_help=True)

DataDir = Annotated[
    Path, typer.Option("--data-dir", help="The data directory with atoll.toml.", envvar="ATOLL_DATA_DIR")
]


@app.command("build")
def build(data_dir: DataDir = Path(".atoll"), as_json: AsJson = False) -> None:
    """Build the default image, if this machine does not have it, and print its digest."""
    with reported_errors(as_json=as_json):
        store = ImageStore.from_settings(with_the_servers_images(load_settings(data_dir)))
        digest = asyncio.run(ensure_default_image(store, progress=progress))
        emit({"imageDigest": digest}, as_json=as_json, text=lambda: digest)


@app.command("list")
def list_images(data_dir: DataDir = Path(".atoll"), as_json: AsJson = False) -> None:
    """List the images that are unpacked on this machine."""
    with reported_errors(as_json=as_json):
        images = ImageStore.from_settings(load_settings(data_dir)).list_images()
        emit(
            {"images": [{"digest": image.digest, "bytes": image.bytes} for image in images]},
            as_json=as_json,
            text=lambda: "\n".join(f"{image.digest}  {image.bytes / 1e6:8.0f} MB" for image in images),
        )


@app.command("pull")
def pull(
    image_digest: Annotated[str, typer.Argument(help="repo/image@sha256:…")],
    data_dir: DataDir = Path(".atoll"),
    as_json: AsJson = False,
) -> None:
    """Fetch an image now, so that the first sandbox that runs it need not wait."""
    with reported_errors(as_json=as_json):
        store = ImageStore.from_settings(load_settings(data_dir))
        image = asyncio.run(store.ensure(image_digest))
        emit({"digest": image.digest, "bytes": image.bytes}, as_json=as_json, text=lambda: image.digest)
