"""Deletes cached images that nothing has used for a while."""

from __future__ import annotations

import structlog

from atoll.ops.services import Services
from atoll.store import sandboxes, templates
from atoll.store.database import Transaction

log = structlog.get_logger()


class ImageWorker:
    """The worker of the image cache."""

    name = "images"
    topics: tuple[str, ...] = ()
    interval = 3_600.0
    patience = 0.0

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run_once(self) -> float | None:
        """Collect every image that no live sandbox and no current revision names."""
        in_use = await self._services.database.read(images_in_use)
        for digest in await self._services.driver.collect_images(in_use):
            log.info("image_deleted", image_digest=digest)
        return None

    async def close(self) -> None:
        """Nothing is under way between passes."""


def images_in_use(tx: Transaction) -> set[str]:
    """The image digests that live sandboxes and current revisions name."""
    revisions = sandboxes.revisions_in_use(tx) | templates.current_revision_ids(tx)
    return templates.image_digests(tx, revisions)
