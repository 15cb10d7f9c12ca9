"""A process that owns a gVisor driver, for tests that kill it: `owner.py DATA_DIR IMAGES DIGEST RUNSC HIDE` creates
`one`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from atoll.agent.binary import agent_binary
from atoll.drivers.base import InstanceSpec
from atoll.drivers.gvisor.driver import GvisorDriver
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.probe import RunscTraits
from atoll.drivers.gvisor.settings import GvisorSettings


async def main(data_dir: str, images: str, digest: str, runsc: str, hide: str) -> None:
    traits = RunscTraits("test", "systrap", hide_proc_sys_net=hide == "1")
    settings = GvisorSettings(Path(data_dir), runsc=Path(runsc), namespace_pool=2)
    driver = GvisorDriver(settings, ImageStore(Path(images)), agent=agent_binary(), traits=traits)
    await driver.start()
    print("started", flush=True)
    await driver.create(InstanceSpec("one", digest, ("sleep", "1000"), None, 1, None, None))
    print("created", flush=True)
    await asyncio.sleep(60)


asyncio.run(main(*sys.argv[1:]))
