"""Test what an endpoint says of a server that could not be asked in time."""

import asyncio
import os
import socket
from pathlib import Path

from lading.log import Log
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.chain.endpoint import RETRY_PAUSE_S, Endpoint, Failure
from tests.fakes.simulated_time import SimulatedLoop, run_simulated


def test_a_server_that_is_away_is_not_called_late_by_a_busy_loop(sockets: Path, log: Log) -> None:
    """The time ran out between two attempts, of which the last one knew better."""

    async def run() -> bytes | Failure:
        endpoint = Endpoint(str(sockets / "none"), log, owner_uid=0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.call_later(0.5 * RETRY_PAUSE_S, loop.hold_up, 3 * RETRY_PAUSE_S)
        return await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 2 * RETRY_PAUSE_S, patient=True)

    answer = run_simulated(run())
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE


def test_a_server_that_came_late_is_not_said_to_have_been_slow(sockets: Path, log: Log) -> None:
    """The time left for the answer may have been too short, because the server was away before."""

    async def run() -> bytes | Failure:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as late:  # listens, and never accepts

            def come() -> None:
                late.bind(str(sockets / "late"))
                late.listen()

            loop.call_later(0.5 * RETRY_PAUSE_S, come)
            endpoint = Endpoint(str(sockets / "late"), log, owner_uid=os.geteuid())
            return await endpoint.adjust(hook.AdjustRequest(), until=loop.time() + 3 * RETRY_PAUSE_S, patient=True)

    answer = run_simulated(run())
    assert isinstance(answer, Failure)
    assert answer.reason is Reason.HOOK_UNAVAILABLE
