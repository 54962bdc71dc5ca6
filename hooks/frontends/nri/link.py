"""Keep a plugin connected to the runtime: connect, and connect again when the runtime drops the connection or restarts.

The runtime calls its plugins one after the other, for one pod after the other. So calls that need no waiting are answered in
the order of their arrival. A call that waits is a separate task, which continues when the connection is lost.

Tests: tests/unit/hooks/frontends/nri/test_front_end.py
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hooks.frontends.nri.conversation import LIST, NriCall, NriCallError, NriConversation, Reply
from hooks.frontends.nri.plugin import METHODS, RUNTIME_SERVICE, NriService, Plugin
from hooks.frontends.nri.sieve import MalformedError
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from protos.nri.v1alpha1 import nri_pb2 as nri

# Maximum seconds of a call: the runtime creates no other container of the node during a call.
BUDGET_S: Final = 0.05
_RETRY_S: Final = 0.2  # seconds between two attempts, so that a restarted runtime is reached within a second
# Seconds between two attempts at most. The wait is doubled while a runtime accepts connections and does not call the plugin:
# each attempt costs a slow node a list of all pods.
_LONGEST_RETRY_S: Final = 10.0
_READ: Final = 1 << 16
_SPEAKS_S: Final = 10.0  # seconds to wait for the answer to the registration; a socket that is silent for longer is not NRI's
# Seconds to wait for the list of pods afterwards: a runtime sends it once no pod or container is being created.
_LISTS_S: Final = 60.0
# A runtime ignores a plugin whose answer to the list comes after its time limit, and leaves the connection open. The answer
# needs some of the time too.
_IN_TIME: Final = 0.9


@dataclass(slots=True, kw_only=True)
class NriLink:
    """Keep one plugin connected to one runtime. `changed` gets True when the runtime begins to call the plugin, and False when
    it ceases. `answered` gets the method and the seconds of each call."""

    socket: Path
    plugin: Plugin
    log: Log
    changed: Callable[[bool], object] = lambda _: None
    answered: Callable[[str, float], object] = lambda *_: None
    take_place: Callable[[], str] = lambda: ""  # returns an error if another process is this plugin, else ""
    problem: str = "it has not connected yet"  # reason why the runtime does not call the plugin; empty while it does
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _in_vain: bool = False  # whether the runtime has accepted the last connection, and did not call the plugin

    async def keep_connected(self) -> None:
        """Connect to the runtime, and reconnect after each loss, until cancelled. Never returns."""
        wait_s = _RETRY_S
        while True:
            self._in_vain = False
            try:
                if another := self.take_place():
                    self._lost(another)
                else:
                    await self._be_asked()
                    self._lost("the runtime closed the connection")
            except OSError as e:  # also a TimeoutError, which has no strerror
                self._lost(f"{self.socket}: {e.strerror or 'nothing speaks NRI there'}")
            except (MalformedError, NriCallError) as e:
                self._lost(str(e))
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S) if self._in_vain else _RETRY_S
            await asyncio.sleep(wait_s)

    async def drain(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for the unanswered calls."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def _be_asked(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        self._in_vain = True
        connection = _Connection(NriService(self.plugin, self.log), writer, self)
        try:
            connection.register()
            async with asyncio.timeout(_SPEAKS_S) as silence:
                while data := await reader.read(_READ):
                    if connection.receive(data):
                        silence.reschedule(asyncio.get_running_loop().time() + _LISTS_S)
                    if connection.service.synchronized and self.problem:
                        silence.reschedule(None)
                        self._connected(connection.service)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _connected(self, service: NriService) -> None:
        self.problem, self._in_vain = "", False
        self.log.info(Event.NRI_CONNECTED, runtime=service.runtime, plugin=f"{self.plugin.index}-{self.plugin.name}")
        self.changed(True)

    def _lost(self, problem: str) -> None:
        """Log the loss of the connection; a reason that repeats is logged once."""
        was, self.problem = self.problem, problem
        if was != problem:
            self.log.warning(Event.NRI_LOST, problem, plugin=f"{self.plugin.index}-{self.plugin.name}")
        if not was:
            self.changed(False)

    def run(self, work: Awaitable[None]) -> None:
        """Run the work to its end, even if the connection is lost."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


class _Connection:
    def __init__(self, service: NriService, writer: asyncio.StreamWriter, link: NriLink) -> None:
        self.service = service
        self._conversation = NriConversation()
        self._writer = writer
        self._link = link
        self._began = 0.0  # time.monotonic() when the first bytes of the current message were read

    def register(self) -> None:
        plugin = self.service.plugin
        request = nri.RegisterPluginRequest(plugin_name=plugin.name, plugin_idx=plugin.index)
        _, data = self._conversation.call(RUNTIME_SERVICE, "RegisterPlugin", request.SerializeToString())
        self._writer.write(data)

    def receive(self, data: bytes) -> bool:
        """Answer the calls in these bytes. Return whether they contain the runtime's acceptance of the registration. Raise
        MalformedError, and NriCallError if the runtime refuses the registration, or ignores the plugin because the list of pods
        took too long."""
        accepted = False
        if self._conversation.is_idle:
            self._began = time.monotonic()
        for one in self._conversation.receive(data):
            if isinstance(one, Reply):
                if one.error is not None:
                    raise NriCallError(one.error.status, f"the runtime refused the plugin: {one.error.message}"[:500])
                accepted = True
            else:
                self._asked(one)
                if one.method == LIST:
                    self._check_in_time(one)
            self._began = time.monotonic()
        return accepted

    def _check_in_time(self, call: NriCall) -> None:
        took_s = time.monotonic() - self._began
        if 0 < call.timeout_s * _IN_TIME < took_s:
            raise NriCallError(
                GrpcStatus.DEADLINE_EXCEEDED,
                f"the runtime ignores a plugin that answers to its list of pods after {call.timeout_s:.3g} s, and this plugin "
                "does not answer within nine tenths of that: set plugin_request_timeout in its configuration",
            )

    def _asked(self, call: NriCall) -> None:
        began = time.monotonic()
        try:
            answer = self.service.answer(call)
        except NriCallError as e:
            self._send(call, self._conversation.refuse(call, e), began)
            return
        if isinstance(answer, bytes):
            self._send(call, self._conversation.answer(call, answer), began)
        else:
            self._link.run(self._later(call, answer, began))

    async def _later(self, call: NriCall, answer: Awaitable[bytes], began: float) -> None:
        try:
            data = self._conversation.answer(call, await answer)
        except NriCallError as e:
            data = self._conversation.refuse(call, e)
        self._send(call, data, began)

    def _send(self, call: NriCall, data: bytes, began: float) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)
        took_s = time.monotonic() - began
        self._link.answered(call.method if call.method in METHODS else "other", took_s)
        if took_s > 2 * BUDGET_S:
            self._link.log.warning(Event.NRI_SLOW, f"{call.method} took {took_s * 1000:.0f} ms", method=call.method)
