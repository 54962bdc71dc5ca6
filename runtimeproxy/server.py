"""Accept kubelet's connections, join each to a new connection to the runtime, and end them in order.

While the runtime cannot be reached, the proxy answers clients itself. Once the runtime is back, the proxy closes their
connections, so that they dial again.

Tests: tests/unit/runtimeproxy/test_link.py
"""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Final

from lading.liveness import find_own_silence
from lading.log import Event, Log
from lading.sockets import Peer, accepts, parse_endpoint
from runtimeproxy.gate import Gate
from runtimeproxy.link import Link
from runtimeproxy.metrics import Metrics
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.settings import Settings

HELD_BYTES: Final = 64 << 20
# The proxy checks at this interval, in seconds, whether the runtime is back, while a client waits for it.
REDIAL_S: Final = 0.2
# Rejected connections are logged at most once in this many seconds.
REJECTION_LOG_S: Final = 10.0


class Server:
    def __init__(self, settings: Settings, *, runtime: Path, gate: Gate, metrics: Metrics, log: Log) -> None:
        self._settings = settings
        self._runtime_path = str(runtime)
        self._listen_path = parse_endpoint(settings.listen)
        self._gate = gate
        self._metrics = metrics
        self._log = log
        self._budget = HoldBudget(HELD_BYTES)
        self._links: set[Link] = set()
        self._number = 0
        self._rejection_logged_at = float("-inf")
        self._listener: socket.socket | None = None
        self._redialling: asyncio.Task[None] | None = None
        self._runtime_reachable: bool | None = None
        self._probes: set[bytes] = set()  # socket addresses from which the proxy probes its own listener
        self.stopping = False
        self.rejections = 0

    @property
    def connections(self) -> int:
        return len(self._links)

    @property
    def connections_opened(self) -> int:
        return self._number

    @property
    def open_calls(self) -> int:
        return sum(link.relay.open_calls for link in self._links)

    @property
    def runtime_reachable(self) -> bool:
        """Return whether the last dial of the runtime succeeded; true before the first."""
        return self._runtime_reachable is not False

    def start(self, listener: socket.socket) -> None:
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def hold(self) -> None:
        """Apply the changed set of held calls to all open connections."""
        for link in self._links:
            link.relay.held_paths = self._gate.held_paths

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection, without awaiting: a task could be cancelled between getting a connection and using it."""
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as e:  # out of descriptors: accepting is tried again later, and open connections continue
            self._reject(f"cannot accept: {e.strerror}")
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(REDIAL_S, self._accept_again, listener)
            return
        connection.setblocking(False)
        if address in self._probes:
            with connection, contextlib.suppress(OSError):
                connection.send(b"!")
        elif len(self._links) >= self._settings.max_connections:
            self._reject(f"max_connections = {self._settings.max_connections} are open")
            connection.close()
        else:
            self._join(connection)

    def _accept_again(self, listener: socket.socket) -> None:
        if not self.stopping:
            self.start(listener)

    def _join(self, connection: socket.socket) -> None:
        self._number += 1
        link = Link(
            number=self._number,
            gate=self._gate,
            budget=self._budget,
            runtime_path=self._runtime_path,
            log=self._log,
            metrics=self._metrics,
            ended=self._links.discard,
            runtime_dialled=self._note_runtime,
        )
        self._links.add(link)
        link.start(connection)

    async def find_silence(self) -> str:
        """Probe the proxy's own listener; a probe needs no runtime and does not count in `max_connections`. Return why the
        accept loop does not answer, or an empty text."""
        if self.stopping:
            return ""  # the listener is not read any more; the loop works, because it runs this code
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        probe.bind(b"")  # the kernel assigns a unique name, by which the accept loop recognises it
        name = probe.getsockname()
        self._probes.add(name)
        try:
            return await find_own_silence(self._listen_path, probe=probe)
        finally:
            self._probes.discard(name)

    def rejected(self, peer: Peer) -> None:
        """Count and log an untrusted peer that the listener disconnected."""
        self._reject(f"peer has uid {peer.uid}")

    def _reject(self, cause: str) -> None:
        self.rejections += 1
        now = asyncio.get_running_loop().time()
        if now - self._rejection_logged_at >= REJECTION_LOG_S:
            self._rejection_logged_at = now
            self._log.warning(Event.CONNECTION_REJECTED, cause, rejected=self.rejections)

    def _note_runtime(self, reachable: bool) -> None:
        if reachable is not self._runtime_reachable:
            self._runtime_reachable = reachable
            if reachable:
                self._log.info(Event.RUNTIME_REACHABLE, runtime=self._runtime_path)
            else:
                self._log.error(Event.RUNTIME_UNREACHABLE, runtime=self._runtime_path)
        if not reachable and (self._redialling is None or self._redialling.done()):
            self._redialling = asyncio.get_running_loop().create_task(self._redial())

    async def _redial(self) -> None:
        """Wait until the runtime is back, then close the locally answered connections, so that their clients dial again."""
        while True:
            await asyncio.sleep(REDIAL_S)
            if not accepts(self._runtime_path):
                continue
            self._note_runtime(True)
            for link in [link for link in self._links if link.local]:
                link.send_away()
            return

    async def drain(self) -> int:
        """Stop accepting, let open calls end within `drain_timeout`, and end the others. Return the number of these others."""
        self.stopping = True
        if self._listener:
            asyncio.get_running_loop().remove_reader(self._listener)
        if self._redialling:
            self._redialling.cancel()
        for link in list(self._links):
            link.announce_end()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.drain_timeout
        while self._links and loop.time() < until:
            for link in [link for link in self._links if link.done]:
                link.close()
            await asyncio.sleep(0.02)
        lost = sum(link.relay.open_calls for link in self._links)
        for link in list(self._links):
            link.finish("lading: lading-runtimeproxy is stopping")
            await link.closed()
        return lost
