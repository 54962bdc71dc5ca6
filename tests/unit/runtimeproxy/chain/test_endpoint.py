"""What an endpoint says of a server that could not be asked in time."""

import asyncio
import time
from pathlib import Path

from lading.log import Log
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.chain.endpoint import RETRY_PAUSE_S, Endpoint, Failure


def test_a_server_that_is_away_is_not_called_late_by_a_busy_loop(sockets: Path, log: Log) -> None:
    """The time ran out between two attempts, of which the last one knew better."""

    async def run() -> bytes | Failure:
        endpoint = Endpoint(str(sockets / "none"), log, owner_uid=0)
        loop = asyncio.get_running_loop()
        loop.call_later(0.5 * RETRY_PAUSE_S, time.sleep, 3 * RETRY_PAUSE_S)
        return await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 2 * RETRY_PAUSE_S, patient=True)

    answer = asyncio.run(run())
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE
