"""Serve a hook server that decides nothing, to measure the cost of a question without a decision.

python -m bench.stub_hook LISTEN ANSWER     answer every question with the bytes of the file ANSWER
python -m bench.stub_hook LISTEN            accept every request, and answer none
"""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from hooks.frontends.cri_hook.service import SERVICE, HookServer
from lading.grpc.server import Method
from lading.log import Level, open_log
from lading.sockets import listen
from tests.fakes.hook_server import HookServer as Stuck


class _Fixed:
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def methods(self) -> Mapping[bytes, Method]:
        return {
            f"/{SERVICE}/Adjust".encode(): lambda message: self._answer,
            f"/{SERVICE}/Observe".encode(): lambda message: b"",
        }


async def serve(path: Path, answer: bytes | None) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    if answer is None:
        stuck = Stuck(path)
        stuck.hang()
        async with stuck:
            await ended.wait()
        return
    with listen(path) as listener:
        server = HookServer(_Fixed(answer), open_log("fixed_hook", Level.INFO), listener=listener)
        await server.start()
        await ended.wait()
        await server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes() if sys.argv[2:] else None))
