"""The built default image for every suite that needs one, and the fixture that has it.

It is built once into a cache directory (`ATOLL_TEST_CACHE`, by default `.cache/` of the project) and shared by later
runs and by processes at the same time; the store's own locks see to that. Nothing here is ever collected by a test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from atoll.drivers.gvisor.images import Image, ImageStore
from atoll.drivers.gvisor.images.default_image import ensure_default_image


def cache_directory() -> Path:
    """Where suites keep what is costly to make."""
    return Path(os.environ.get("ATOLL_TEST_CACHE") or Path(__file__).parents[1] / ".cache").resolve()


def default_image_store() -> ImageStore:
    """The store that has, or is going to have, the default image."""
    return ImageStore(cache_directory() / "images")


def _say(line: str) -> None:
    print(f"default image: {line}", flush=True)


@cache
def default_image_digest(progress: Callable[[str], None] = _say) -> str:
    """The image digest of the default image, which is built (a minute or two) when this machine does not have it.

    Blocking, with an event loop of its own: call it from a plain fixture, not from a coroutine.
    """
    return asyncio.run(ensure_default_image(default_image_store(), progress=progress))


def default_image() -> Image:
    """The default image, unpacked. Blocking, as above."""
    digest = default_image_digest()
    return asyncio.run(default_image_store().ensure(digest))
