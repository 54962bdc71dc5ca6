"""Start, ask or stop the MPS daemon of a card, as lading-hooks does: tests/node/test_mps.py runs it in the sandbox of its unit.

python -m tests.node.mps_trial start|ask|other|stop <UUID> <nvidia-cuda-mps-control> <folder in /dev/shm>
"""

import asyncio
import sys
from dataclasses import replace

from hooks.isolation.mps import Limits, MpsFolders
from hooks.mps.control import Control
from lading.vocabulary import GpuUuid
from tests.unit.hooks.inventories import uuid as uuid_of


async def main(what: str, uuid: str, command: str, shm_dir: str) -> None:
    folders = MpsFolders(mps_dir="/run/lading/mps", shm_dir=shm_dir)
    control = Control(uuid=GpuUuid(uuid), folders=folders, command=command)
    match what:
        case "start":
            control.make_folders()
            await control.start()
        case "ask":
            assert control.pid() is not None
            await control.set_limits(Limits(1044, 30), await control.servers())
        case "other":
            assert control.pid() is not None
            assert replace(control, uuid=uuid_of(1)).pid() is None
        case "stop":
            await control.quit(await control.servers())
            assert control.pid() is None
            await control.remove_folders()


asyncio.run(main(*sys.argv[1:]))
