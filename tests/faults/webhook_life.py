"""One life of a control plane whose webhooks are delivered, as a process of its own, to be killed.

Run as `python -m tests.faults.webhook_life DATA_DIR INSTANCES DESTINATIONS` by `test_webhook_crash`: ends a command and
goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.plane import AGENT, running_plane
from tests.webhook_receiver import WEBHOOK

from atoll.drivers.fake import FakeDriver

_LONGEST_LIFE_SECONDS = 60


async def live(data_dir: Path, instances: Path, destinations: str) -> None:
    """Live until killed."""
    driver = FakeDriver(instances, agent=AGENT)
    async with running_plane(data_dir, driver, webhook_test_destinations=json.loads(destinations)) as plane:
        sandbox = await plane.api.ready_sandbox(executionWebhook=WEBHOOK)
        await plane.api.start(sandbox["sandboxId"], "sh", "-c", "exit 3")
        await asyncio.sleep(_LONGEST_LIFE_SECONDS)


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
