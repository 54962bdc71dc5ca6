"""Serve a hook server that accepts every request and answers none.

python -m bench.stuck_hook LISTEN
"""

import asyncio
import signal
import sys
from pathlib import Path

from tests.fakes.hook_server import HookServer


async def serve(listen: Path) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = HookServer(listen)
    server.hang()
    async with server:
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
