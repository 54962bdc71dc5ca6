"""Send any bytes to the share server, and compare its sums with a model: it never raises, and others are served.

The model reads frames by docs/isolation.md, and not by the server's code.
"""

import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis.strategies import SearchStrategy, binary, builds, integers, just, lists, one_of, sampled_from, tuples

from shares.memory import MAX_BYTES, MAX_CONTEXTS
from shares.wire import MAX_NS
from tests.depth import repeats
from tests.fakes.share_rig import CARD, MIB, OTHER_CARD, Client, ShareRig, ShareServer, eventually, share, shared

FRAME: Final = struct.Struct("<BBHIqqq")
HELLO, WANT, RELEASE, ADD, SUB, USE, CONTEXT = TYPES = range(1, 8)
LIMIT: Final = 100 * MIB
DRIVEN: Final = 1  # index of the card whose memory the driver limits
CLIENTS: Final = 3
I64: Final = 2**63
BOUNDS: Final = (0, 1, LIMIT, MAX_CONTEXTS, MAX_BYTES, MAX_NS, 2**31, 2**62, I64 - 1, -1, -I64)

NUMBERS: Final = one_of(
    sampled_from(BOUNDS),
    integers(0, 2 * LIMIT),
    sampled_from(BOUNDS).map(lambda n: min(n + 1, I64 - 1)),
    integers(-I64, I64 - 1),
)
HEADS: Final = tuples(
    one_of(just(1), just(1), just(1), integers(0, 255)),
    one_of(sampled_from(TYPES), sampled_from((ADD, SUB)), integers(0, 255)),
    one_of(integers(0, 1), integers(0, 1), integers(0, 2**16 - 1)),
    integers(0, 2**32 - 1),
)
FRAMES: Final = builds(lambda head, a, b, c: FRAME.pack(*head, a, b, c), HEADS, NUMBERS, NUMBERS, NUMBERS)
GOOD_FRAMES: Final = builds(
    lambda kind, device, a, held: FRAME.pack(1, kind, device, 0, a, held, 0),
    sampled_from((WANT, RELEASE, ADD, ADD, SUB, USE)),
    integers(0, 1),
    one_of(integers(0, LIMIT), just(MAX_BYTES)),
    integers(0, 1),
)
DATA: Final = one_of(GOOD_FRAMES, GOOD_FRAMES, FRAMES, binary(min_size=1, max_size=70))
STEPS: SearchStrategy[list[tuple[int, bytes]]] = lists(tuples(integers(0, CLIENTS - 1), DATA), max_size=20)
GREETING: Final = FRAME.pack(1, HELLO, 0, 0, 1, 0, 1)


@dataclass(slots=True)
class Connection:
    """One connection as the server has to see it. `connections`: all of the container."""

    connections: list["Connection"]
    data: bytes = b""
    greeted: bool = False
    launches: bool = False
    live: bool = True
    held: list[int] = field(default_factory=lambda: [0, 0])

    def receive(self, data: bytes) -> None:
        self.data += data
        while self.live and len(self.data) >= FRAME.size:
            frame, self.data = self.data[: FRAME.size], self.data[FRAME.size :]
            version, kind, device, _, a, b, c = FRAME.unpack(frame)
            self.live = version == 1 and device <= DRIVEN and min(a, b, c) >= 0 and self.handle(kind, device, a, b, c)
        if not self.live:
            self.held = [0, 0]

    def handle(self, kind: int, device: int, a: int, b: int, c: int) -> bool:
        """Take a frame, and return whether a client may send it."""
        if kind == HELLO:
            valid = not self.greeted and a < 2**31 and c <= 1
            self.greeted, self.launches = True, c == 1
            return valid
        if not self.launches:
            return False
        match kind:
            case 2:  # WANT
                return max(a, c) <= MAX_NS
            case 3:  # RELEASE
                return c <= MAX_NS
            case 4:  # ADD
                possible = self.held[device] + a <= MAX_BYTES
                if possible and (b or device == DRIVEN or a <= LIMIT - sum(one.held[device] for one in self.connections)):
                    self.held[device] += a
                return b == 0 or (b == 1 and possible)
            case 5:  # SUB
                self.held[device] = max(0, self.held[device] - a)
                return a <= MAX_BYTES
            case 6:  # USE
                return a <= 1 and c <= MAX_NS
            case 7:  # CONTEXT
                return a <= MAX_CONTEXTS and b <= 1
        return False


class Fuzzed:
    """A server, a container that any bytes are sent to, and a process of another container of the same card."""

    def __init__(self, rig: ShareRig) -> None:
        self.path = rig.grant(share("any", shared(mib=LIMIT // MIB), shared(OTHER_CARD, mib=1, driver_limits=True)))
        quiet = rig.grant(share("quiet", shared(CARD)))
        self.server: ShareServer = rig.serve()
        self.quiet = rig.join(quiet)
        assert self.quiet.ask(MIB)

    def settle(self) -> None:
        """Return when the server has read what was sent before."""
        for _ in range(3):
            self.server.usage()

    def totals(self) -> list[int]:
        return [use.used_bytes for use in self.server.usage() if use.grant.container == "any"]

    def processes(self) -> int:
        return len(self.server.usage()[0].process_ids)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    with tempfile.TemporaryDirectory(prefix="lading-") as folder, ShareRig(Path(folder)) as rig:
        yield Fuzzed(rig)


@pytest.mark.repeats
@settings(max_examples=repeats(60, long=600), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@example(steps=[(0, FRAME.pack(1, ADD, 0, 0, 2**62, 1, 0) * 2)])
@example(steps=[(0, FRAME.pack(1, ADD, DRIVEN, 0, 2**62, 0, 0) * 2), (1, FRAME.pack(1, ADD, DRIVEN, 0, MAX_BYTES, 1, 0) * 2)])
def test_any_bytes_change_only_what_their_connection_holds(fuzzed: Fuzzed, steps: list[tuple[int, bytes]]) -> None:
    connections: list[Connection] = []
    connections += [Connection(connections) for _ in range(CLIENTS)]
    with ExitStack() as ends:
        clients = [ends.enter_context(Client(fuzzed.path)) for _ in connections]
        for number, data in [(0, GREETING), (1, GREETING), *steps]:
            with suppress(OSError):  # the server closed the connection
                clients[number].socket.sendall(data)
            connections[number].receive(data)
            fuzzed.settle()
        eventually(lambda: fuzzed.totals() == [sum(one.held[device] for one in connections) for device in range(2)])
        eventually(lambda: fuzzed.processes() == sum(one.live and one.launches for one in connections))
        for client, connection in zip(clients, connections, strict=True):
            assert connection.live or client.is_closed()
        assert fuzzed.quiet.ask(0)
        assert fuzzed.quiet.shown().used_bytes == MIB
        assert fuzzed.server.unexpected == []
    eventually(lambda: fuzzed.totals() == [0, 0])
