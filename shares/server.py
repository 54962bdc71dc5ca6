"""Serve the shares of a node: a socket for each container with a grant, one `Card` for each card, one page for each container.

    grant.json ─ look_at_grants, each 100 ms ─▶ _Container (socket, page, memory)
    library ─ frames ─▶ _Process ─▶ Card ─ effects ─▶ tokens to processes, ends of turns into pages

The server runs on one event loop and never waits for a client: a client that does not read its frames is disconnected. After a
restart, clients reconnect, report the memory that they hold, and request turns again.

In each turn of the loop, the server reads at most one frame of each connection, so that no connection delays others for long.
shares/intake.py says when the frames of a container are not read for a while, and when its connections with many waiting frames
are closed.

The memory that contexts take is in no request. So the server asks the driver each READ_S, in a thread, what each connected
process has (shares/memory.py counts it), and at once when a process first requests memory in a new context: that request waits
for the answer.

A process that loses its connection may, without a request, allocate its part of its container's remaining memory. So the server
allows its container no memory until the process reconnects and reports its memory, for at most `LOST_NS`.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import termios
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from lading.log import Event, Log
from lading.sharegrant import FILE, SOCKET, SharedGpu, ShareGrant
from lading.sockets import peer_credentials
from lading.threads import in_thread
from lading.vocabulary import GpuUuid, PodUid
from shares.card import Card, Effects, Token
from shares.grants import Version, list_grants, read_grant
from shares.intake import FRAME_NS, Allowance, Intake
from shares.memory import MAX_BYTES, Memory
from shares.page import DeviceShare, SharedPage
from shares.peer import find_stranger
from shares.policy.model import MILLION, MS, NO_END, Policy, Share
from shares.readings import Read, Readings
from shares.wire import SIZE, Frame, Kind, WireError, WireRefusal, pack, unpack

BEAT_S: Final = 0.1
STALL_NS: Final = 600 * MS
MAX_PROCESSES: Final = 64  # maximum connected processes of one container
MAX_POSTPONED: Final = 1024  # maximum postponed memory requests of one process; each has a waiting thread in the process
CONNECT_FRAMES: Final = 50  # frames that take as much time as a new connection
MAX_WAITING: Final = 128  # frames that may wait at a connection during a flood: a few of each thread that waits for its answer
LINE_NS: Final = 60_000 * MS  # interval of the lines in the log about one container's refused processes
MAX_LINES: Final = 5  # such lines at once
SETTLE_NS: Final = 1000 * MS  # time for clients to reconnect after a time without a server; they dial each 200 ms
LOST_NS: Final = 5_000 * MS  # time to wait for a running process that lost its connection
LOOK_AGAIN_NS: Final = 50 * MS  # interval between two checks whether a lost process is connected again
UNANSWERED_NS: Final = MS  # interval of looks at postponed requests while none can be answered
UNREAD_NS: Final = 50 * MS  # time for which a request waits for frames of other processes, in which they may give memory back
ASKED_A_FRAME: Final = 16  # the kernel says of so many connections whether frames wait, in the time that one frame takes
READ_S: Final = 0.25  # memory that was freed late stops counting after two readings
READ_AT_ONCE_S: Final = 0.02  # time between two readings, however many requests wait
READINGS: Final = 2  # after the one that is under way, until freed memory has stopped counting
READ_DEADLINE_S: Final = 2.0  # time after which requests do not wait for a driver that hangs
MAX_USED_NS: Final = 600_000 * MS
_MIB: Final = 1 << 20
_PERCENT: Final = MILLION // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Hold a container's current use of a card."""

    grant: ShareGrant
    uuid: GpuUuid
    held_ns: int  # time of the card that the container had, also beside turns of others, since its grant or this server's start
    waited_ns: int = 0  # time since then for which it wanted the card and did not have the turn
    used_bytes: int
    limit_bytes: int
    context_bytes: int = 0  # memory that a context of the card takes, as far as the driver has said
    process_ids: tuple[int, ...]  # host process IDs of the connected processes that launch work
    has_turn: bool
    waiters: int  # number of other containers that want the card


class Shares:
    def __init__(
        self,
        folder: Path,
        *,
        policy: Callable[[], Policy],
        log: Log,
        host_root: Path = Path("/"),
        clock: Callable[[], int] = time.monotonic_ns,
        open_process: Callable[[int], int] = os.pidfd_open,
        read: Read | None = None,
    ) -> None:
        """Create the server. `policy` makes the policy of one card. `open_process` returns a descriptor that becomes readable
        when the process ends; it raises OSError if the process has ended. `read` asks the driver what processes have of cards;
        None: only what processes report counts."""
        self._folder = folder
        self._make_policy = policy
        self._log = log
        self._host_root = host_root
        self._clock = clock
        self.open_process = open_process
        self._cards: dict[GpuUuid, _CardLoop] = {}
        self._containers: dict[str, _Container] = {}
        self._seen: dict[str, Version] = {}
        self._unserved: dict[str, str] = {}  # error by container, for containers that are tried again
        self._beating: asyncio.Task[None] | None = None
        self._beat_ns = clock()
        self._read = read
        self._reading: asyncio.Task[None] | None = None
        self._read_soon = asyncio.Event()
        self._reading_problem = ""
        self._contexts: dict[GpuUuid, int] = {}  # bytes that a context takes, by card, as far as the driver has said
        self.problem = ""  # reason why the folder of grants cannot be read; empty if it can
        self.refused = 0  # number of refused processes

    def start(self) -> None:
        """Serve the existing grants, and follow the folder of grants from now on."""
        self._look_at_grants()
        self._beating = asyncio.create_task(self._beat())
        if self._read is not None:
            self._reading = asyncio.create_task(self._keep_reading(self._read))

    def close(self) -> None:
        for task in (self._beating, self._reading):
            if task:
                task.cancel()
        for name in list(self._containers):
            self._drop(name)

    def usage(self) -> list[Usage]:
        return [one for container in self._containers.values() for one in container.usage()]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            now_ns = self._clock()
            stalled, self._beat_ns = now_ns - self._beat_ns > STALL_NS, now_ns
            for container in self._containers.values():
                container.page.beat(now_ns)
                if stalled:
                    container.settled_ns = now_ns + SETTLE_NS
            for card in self._cards.values():  # also without frames, a neighbour ceases to be one
                card.act(card.card.stalled(now_ns) if stalled else card.card.look(now_ns))
            self._look_at_grants()

    async def _keep_reading(self, read: Read) -> None:
        """Ask the driver what processes have, while any is connected."""
        cards: set[GpuUuid] = set()
        while True:
            before, cards = cards, {gpu.uuid for one in self._containers.values() if one.processes for gpu in one.grant.gpus}
            if not cards and not before:
                await asyncio.sleep(READ_S)
                continue
            for container in self._containers.values():
                container.begin_reading()
            self._read_soon.clear()
            reading = asyncio.ensure_future(in_thread(partial(read, cards)))
            try:
                readings = await asyncio.wait_for(asyncio.shield(reading), READ_DEADLINE_S)
                self._note_reading("")
            except TimeoutError:
                readings = {}
                self._note_reading("the driver does not answer")
            except Exception as e:  # noqa: BLE001 - whatever a driver comes up with, shares are served
                readings = {}
                self._note_reading(str(e) or type(e).__name__)
            for container in self._containers.values():
                container.end_reading(readings)
            await asyncio.wait([reading])  # a driver that hangs is asked once
            reading.exception()
            await asyncio.sleep(READ_AT_ONCE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._read_soon.wait(), READ_S - READ_AT_ONCE_S)

    def _note_reading(self, problem: str) -> None:
        if problem and problem != self._reading_problem:
            self._log.warning(Event.SHARE_WATCH_FAILED, f"contexts do not count in shares: {problem}")
        self._reading_problem = problem

    def _look_at_grants(self) -> None:
        try:
            found = list_grants(self._folder)
            self.problem = ""
        except FileNotFoundError:
            found = {}  # no share was granted since the boot
        except OSError as e:
            self.problem = f"cannot read {self._folder}: {e.strerror}"
            return
        for name in [name for name in self._seen if found.get(name) != self._seen[name]]:
            self._drop(name)
            del self._seen[name]
        for name in sorted(found.keys() - self._seen.keys()):
            if self._take(name):
                self._seen[name] = found[name]
        self._unserved = {name: why for name, why in self._unserved.items() if name in found}
        self._note_neighbours()

    def _note_neighbours(self) -> None:
        """Leave the memory limit to the driver where only one container of the pod has a share of the card: the driver's limit
        is for all shares of a pod together."""
        sharers = Counter((one.grant.pod, gpu.uuid) for one in self._containers.values() for gpu in one.grant.gpus)
        for container in self._containers.values():
            container.show_informs(sharers)

    def _take(self, name: str) -> bool:
        """Serve a container. Return whether its grant is done with; False: try again."""
        grant = read_grant(self._folder / name / FILE)
        if isinstance(grant, str):
            self._log.error(Event.SHARE_REFUSED, grant)
            return True
        try:
            self._containers[name] = _Container(self, name, grant)
        except OSError as e:  # such as no free descriptors: logged once, and tried again
            why = f"cannot serve {self._folder / name}: {e.strerror}"
            if self._unserved.get(name) != why:
                self._log.error(Event.SHARE_REFUSED, why)
            self._unserved[name] = why
            return False
        self._unserved.pop(name, None)
        self._log.info(Event.SHARE_SERVED, **_fields(grant), gpus=",".join(gpu.uuid for gpu in grant.gpus))
        return True

    def _drop(self, name: str) -> None:
        container = self._containers.pop(name, None)
        if container is not None:
            container.close()
            for gpu in container.grant.gpus:
                if not self._cards[gpu.uuid].members:
                    self._cards.pop(gpu.uuid).close()

    # Used by containers and processes

    @property
    def folder(self) -> Path:
        return self._folder

    def now_ns(self) -> int:
        return self._clock()

    def notice_stall(self, now_ns: int) -> None:
        """Detect, before the next beat, that this server did not run for a time. Clients may have disconnected in the
        meantime."""
        if now_ns - self._beat_ns > STALL_NS:
            for container in self._containers.values():
                container.settled_ns = now_ns + SETTLE_NS

    def card(self, uuid: GpuUuid) -> "_CardLoop":
        card = self._cards.get(uuid)
        if card is None:
            card = self._cards[uuid] = _CardLoop(Card(self._make_policy()), self._clock)
        return card

    def context_bytes(self, uuid: GpuUuid) -> int:
        """Return how much memory a context of this card takes, as far as the driver has said."""
        return self._contexts.get(uuid, 0)

    def learn_context(self, uuid: GpuUuid, taken_bytes: int) -> None:
        """Note what the driver said of a context. The least counts: what another one takes besides is read when it is there."""
        self._contexts[uuid] = min(taken_bytes, self._contexts.get(uuid, taken_bytes))
        for container in self._containers.values():
            container.show_contexts()

    def read_soon(self) -> bool:
        """Have the driver asked at once. Return whether it can be expected to answer."""
        self._read_soon.set()
        return self._read is not None and not self._reading_problem

    def stranger(self, connection: socket.socket, grant: ShareGrant) -> str:
        return find_stranger(connection, grant.pod, self._host_root)

    def refuse(self, grant: ShareGrant, why: str, *, logged: bool, unlogged: int) -> None:
        """Count a refused process, and log it. `unlogged`: number of the container's refused processes since the last line."""
        self.refused += 1
        if logged:
            self._log.warning(Event.SHARE_REFUSED, why, **_fields(grant), unlogged=unlogged or None)


class _CardLoop:
    """Run a card on the event loop: carry out its effects, and check it again at the time that it requests."""

    def __init__(self, card: "Card[_Process]", clock: Callable[[], int]) -> None:
        self.card = card
        self.members: dict[str, tuple[_Container, int]] = {}  # containers by name, with the card's index in their grants
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def act(self, effects: "Effects[_Process]") -> None:
        now_ns = self._clock()
        for effect in effects:
            if isinstance(effect, Token):
                _, device = self.members[effect.process.container.name]
                quota_ns = NO_END if effect.until_ns == NO_END else max(0, effect.until_ns - now_ns)
                effect.process.send(Frame(Kind.TOKEN, device, a=quota_ns, c=effect.until_ns))
            elif effect.container in self.members:
                container, device = self.members[effect.container]
                container.page.show_turn(
                    device, effect.until_ns, effect.waiters, neighbours=effect.neighbours, pause=effect.pause
                )
        if self._timer:
            self._timer.cancel()
        wake_ns = self.card.wake_ns()
        delay_s = max(0, wake_ns - now_ns) / 1e9
        self._timer = None if wake_ns == NO_END else asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self.act(self.card.look(self._clock()))

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()


class _Container:
    def __init__(self, shares: Shares, name: str, grant: ShareGrant) -> None:
        """Listen for the container's processes. Raise OSError."""
        self.shares = shares
        self.name = name
        self.grant = grant
        self.memory = [Memory(gpu.memory_mib * _MIB) for gpu in grant.gpus]
        self.informs = [False for _ in grant.gpus]  # True for each card whose memory is only counted, and never refused
        self.processes: set[_Process] = set()
        self._lost: dict[_Process, int] = {}  # running processes without a connection, with a pidfd; their memory counts
        self._lost_until_ns = 0
        self._intake = Intake()
        self.readings = 0  # number of readings that ended
        self._lines = Allowance(LINE_NS, MAX_LINES)
        self._unlogged = 0
        self._pause: asyncio.Handle | None = None  # the next beginning or end of a pause, in which no frame is read
        self._answering: asyncio.TimerHandle | None = None  # the next look at postponed requests
        wanted = [
            Share(request_ppm=gpu.request_percent * _PERCENT, limit_ppm=gpu.limit_percent * _PERCENT) for gpu in grant.gpus
        ]
        shown = [
            DeviceShare(gpu.uuid, share.request_ppm, share.limit_ppm, gpu.memory_mib * _MIB, gpu.turns)
            for gpu, share in zip(grant.gpus, wanted, strict=True)
        ]
        self._listener, had_server = _listen(shares.folder / name)
        # No memory is allowed until this time: clients of the server's predecessor have to report their memory first.
        self.settled_ns = shares.now_ns() + SETTLE_NS if had_server else 0
        try:
            self.page = SharedPage(shown)
        except OSError:
            self._listener.close()
            raise
        self.page.beat(shares.now_ns())
        self.show_contexts()
        self.cards = [shares.card(gpu.uuid) for gpu in grant.gpus]
        for device, (card, share) in enumerate(zip(self.cards, wanted, strict=True)):
            card.members[name] = self, device
            card.card.join(name, share, shares.now_ns())
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def settles_ns(self) -> int:
        """Return the earliest time when the container may be allowed memory, by the current state."""
        return max(self.settled_ns, self._lost_until_ns if self._lost else 0)

    def lose(self, process: "_Process") -> bool:
        """Keep counting the memory of a process that lost its connection, if it runs. Return whether it runs."""
        try:
            descriptor = self.shares.open_process(process.pid)
        except OSError:
            return False
        if len(self._lost) >= MAX_PROCESSES:
            self.forget(next(iter(self._lost)))
        self._lost[process] = descriptor
        self._lost_until_ns = self.shares.now_ns() + LOST_NS
        asyncio.get_running_loop().add_reader(descriptor, self.forget, process)
        return True

    def found(self, pid: int, frame: Frame) -> None:
        """Take the first frames of a reconnected process: it reports its memory on each card, which replaces the old amount."""
        for process in [process for process in self._lost if process.pid == pid]:
            process.to_be_told.discard(frame.device)
            if frame.kind is not Kind.ADD or not frame.b or not process.to_be_told:
                self.forget(process)
            else:
                self.memory[frame.device].gone(process)

    def forget(self, process: "_Process") -> None:
        """Free the amounts of a process that has ended or has reconnected."""
        if (descriptor := self._lost.pop(process, None)) is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        for device, memory in enumerate(self.memory):
            memory.gone(process)
            self.page.show_used(device, memory.used_bytes)

    def begin_reading(self) -> None:
        for memory in self.memory:
            memory.begin_reading()

    def end_reading(self, readings: Readings) -> None:
        """Take what the driver said, and answer the requests that waited for it."""
        self.readings += 1
        for device, (gpu, memory) in enumerate(zip(self.grant.gpus, self.memory, strict=True)):
            by_pid = readings.get(gpu.uuid)
            if by_pid is None:
                memory.skip_reading()
                continue
            for process in (*self.processes, *self._lost):
                if taken_bytes := memory.end_reading(process, by_pid.get(process.pid)):
                    self._note_context(gpu, taken_bytes)
            self.page.show_used(device, memory.used_bytes)
        if any(process.postponed for process in self.processes):
            self.answer_later()

    def _note_context(self, gpu: SharedGpu, taken_bytes: int) -> None:
        self.shares.learn_context(gpu.uuid, taken_bytes)
        if taken_bytes > gpu.memory_mib * _MIB:
            taken_mib = -(-taken_bytes // _MIB)
            self.refuse(
                f"its share of {gpu.memory_mib} MiB of {gpu.uuid} has no place for a context, which takes {taken_mib} MiB"
            )

    def show_contexts(self) -> None:
        for device, (gpu, memory) in enumerate(zip(self.grant.gpus, self.memory, strict=True)):
            memory.context_bytes = self.shares.context_bytes(gpu.uuid)
            self.page.show_context(device, -(-memory.context_bytes // _MIB))

    def usage(self) -> list[Usage]:
        now_ns, said = self.shares.now_ns(), []
        for card, gpu, memory in zip(self.cards, self.grant.gpus, self.memory, strict=True):
            said.append(
                Usage(
                    grant=self.grant,
                    uuid=gpu.uuid,
                    held_ns=card.card.held_ns(self.name, now_ns),
                    waited_ns=card.card.waited_ns(self.name, now_ns),
                    used_bytes=memory.used_bytes,
                    limit_bytes=memory.limit_bytes,
                    context_bytes=memory.context_bytes,
                    process_ids=tuple(sorted(process.pid for process in self.processes if process.launches)),
                    has_turn=card.card.holder == self.name,
                    waiters=card.card.count_waiters(self.name),
                )
            )
        return said

    def count(self, frames: int) -> None:
        """Count frames. If these are too many, pause after this turn of the loop, in which all connections are read alike."""
        if self._intake.count(frames, self.shares.now_ns()) and self._pause is None:
            self._pause = asyncio.get_running_loop().call_soon(self._stop_reading)

    def _stop_reading(self) -> None:
        loop, now_ns = asyncio.get_running_loop(), self.shares.now_ns()
        loop.remove_reader(self._listener)
        for process in self.processes:
            process.stop_reading()
        pause = self._intake.pause(now_ns)
        self._pause = loop.call_later(max(0, pause.until_ns - now_ns) / 1e9, self._start_reading)
        if pause.is_flood:
            self._close_floods()

    def _start_reading(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        for process in self.processes:
            process.start()

    def _close_floods(self) -> None:
        """Close the connections on which many frames wait."""
        for process in list(self.processes):
            if (waiting := process.count_waiting()) > MAX_WAITING:
                rate = f"the container sends more than {1000 * MS // FRAME_NS} frames a second"
                self.refuse(f"{rate}, and {waiting} frames of process {process.pid} wait")
                process.close()

    def refuse(self, why: str) -> None:
        """Count a refused process, and log it unless the log has many lines about the container."""
        now_ns = self.shares.now_ns()
        logged = now_ns >= self._lines.ready_ns
        self.shares.refuse(self.grant, why, logged=logged, unlogged=self._unlogged)
        if logged:
            self._lines.use(1, now_ns)
        self._unlogged = 0 if logged else self._unlogged + 1

    def answer_later(self, least_ns: int = 0) -> None:
        """Look at the postponed requests when the container may be allowed memory, or soon: others may be back then."""
        if self._answering is None:
            delay_ns = min(max(least_ns, self.settles_ns() - self.shares.now_ns()), LOOK_AGAIN_NS)
            self._answering = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._answer_postponed)

    def _answer_postponed(self) -> None:
        self._answering = None
        answered = 0
        if self.shares.now_ns() >= self.settles_ns():
            answered = sum(process.answer_postponed() for process in self.processes)
        if any(process.postponed and not process.awaits_reading() for process in self.processes):
            self.answer_later(0 if answered else UNANSWERED_NS)

    def _accept(self) -> None:
        self.count(CONNECT_FRAMES)
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client disconnected, or no descriptor is free: the client dials again
            return
        connection.setblocking(False)
        process = _Process(self, connection)
        if len(self.processes) >= MAX_PROCESSES:
            process.refuse(WireRefusal.TOO_MANY, f"{MAX_PROCESSES} processes of the container are connected")
        elif stranger := self.shares.stranger(connection, self.grant):
            process.refuse(WireRefusal.OTHER_POD, f"{stranger} connected to its socket")
        else:
            self.processes.add(process)
            process.start()

    def show_informs(self, sharers: Mapping[tuple[PodUid, GpuUuid], int]) -> None:
        """Show on the page for which cards the driver limits memory. `sharers`: number of containers, by pod and card."""
        informs = [gpu.driver_limits and sharers[self.grant.pod, gpu.uuid] == 1 for gpu in self.grant.gpus]
        if informs != self.informs:
            self.informs = informs
            for device, its in enumerate(informs):
                self.page.show_informs(device, its)

    def show_processes(self) -> None:
        self.page.show_processes(sum(process.launches for process in self.processes))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for handle in (self._pause, self._answering):
            if handle is not None:
                handle.cancel()
        for process in self.processes:
            process.hang_up()  # the page keeps the used memory: the processes go by it until a server is back
        self.processes.clear()
        for process in list(self._lost):
            descriptor = self._lost.pop(process)
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        now_ns = self.shares.now_ns()
        for card in self.cards:
            effects = card.card.leave(self.name, now_ns)
            card.members.pop(self.name, None)
            card.act(effects)
        self.page.close()


@dataclass(slots=True)
class _MemoryRequest:
    """Hold a request for memory, or for a context, that is not answered yet."""

    frame: Frame
    asked_at: int | None = None  # number of the container's readings when the driver was first asked for the request
    refused_ns: int | None = None  # time when the request first had to be refused


class _Process:
    """Serve one connection, of one process of the container."""

    def __init__(self, container: _Container, connection: socket.socket) -> None:
        self.container = container
        self.pid = peer_credentials(connection).pid
        self.launches = False  # the process launches work, and does not only query
        self._connection = connection
        self._buffer = b""  # the first part of a frame
        self._greeted = False
        self.postponed: deque[_MemoryRequest] = deque()
        self.to_be_told = set(range(len(container.cards)))  # after a reconnect, the cards whose memory it has not reported

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._connection, self._read)

    def refuse(self, code: WireRefusal, why: str) -> None:
        self.container.refuse(why)
        with contextlib.suppress(OSError):
            self._connection.send(pack(Frame(Kind.REFUSED, a=code)))
        self._connection.close()

    def send(self, frame: Frame) -> None:
        """Send a frame. If the client's buffer is full, because it does not read, it is disconnected soon after."""
        try:
            sent = self._connection.send(pack(frame))
        except OSError:
            sent = 0
        if sent < SIZE:
            asyncio.get_running_loop().call_soon(self.close)

    def stop_reading(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection)

    def hang_up(self) -> None:
        self.stop_reading()
        self._connection.close()

    def count_waiting(self) -> int:
        """Return how many frames are sent and not read."""
        unread = fcntl.ioctl(self._connection, termios.FIONREAD, bytes(4))
        return int.from_bytes(unread, sys.byteorder) // SIZE

    def close(self) -> None:
        """Disconnect the process, and free its turn. Free its memory too, unless it still runs (`lose`)."""
        container = self.container
        if self not in container.processes:
            return
        container.processes.discard(self)
        container.show_processes()
        self.hang_up()
        self.postponed.clear()
        if not self.launches or not container.lose(self):
            container.forget(self)
        now_ns = container.shares.now_ns()
        for card in container.cards:
            card.act(card.card.gone(container.name, self, now_ns))

    def _read(self) -> None:
        try:
            data = self._connection.recv(SIZE - len(self._buffer))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.container.count(1)  # a part of a frame counts as one: it takes as much time
        self._buffer += data
        if len(self._buffer) < SIZE:
            return
        frame, self._buffer = self._buffer, b""
        try:
            self._handle(unpack(frame, len(self.container.cards)))
        except WireError as e:
            self.container.refuse(f"a process sent a frame that cannot be read: {e}")
            self.close()

    def _handle(self, frame: Frame) -> None:
        container, now_ns = self.container, self.container.shares.now_ns()
        if frame.kind is Kind.HELLO:
            self._welcome(frame, now_ns)
            return
        if not self.launches:
            raise WireError(f"{frame.kind.name} {'of a process that only asks' if self._greeted else 'before HELLO'}")
        card, memory = container.cards[frame.device], container.memory[frame.device]
        if frame.kind is Kind.ADD and frame.b and not memory.is_possible(self, frame.a):
            raise WireError(f"the process holds more than {MAX_BYTES} bytes")
        container.found(self.pid, frame)
        container.shares.notice_stall(now_ns)
        used_ns = min(frame.c, MAX_USED_NS)
        match frame.kind:
            case Kind.WANT:
                card.act(card.card.want(container.name, self, frame.a, used_ns, now_ns))
            case Kind.RELEASE:
                card.act(card.card.release(container.name, self, used_ns, now_ns))
            case Kind.USE:
                card.act(card.card.use(container.name, self, used_ns, now_ns, pause=bool(frame.a)))
            case Kind.ADD | Kind.CONTEXT if frame.b or container.informs[frame.device]:
                self._count(frame)
            case Kind.ADD | Kind.CONTEXT:
                self._answer_or_postpone(_MemoryRequest(frame), now_ns)
            case Kind.SUB:
                memory.subtract(self, frame.a)
                container.page.show_used(frame.device, memory.used_bytes)

    def _answer_or_postpone(self, request: _MemoryRequest, now_ns: int) -> None:
        if now_ns >= self.container.settles_ns() and not self._has_to_wait(request, now_ns):
            self._count(request.frame)
        elif len(self.postponed) >= MAX_POSTPONED:
            raise WireError(f"more than {MAX_POSTPONED} requests for memory at a time")
        else:
            self.postponed.append(request)
            if not self.awaits_reading():
                self.container.answer_later()

    def _has_to_wait(self, request: _MemoryRequest, now_ns: int) -> bool:
        return self._needs_reading(request) or self._may_be_freed(request, now_ns)

    def _may_be_freed(self, request: _MemoryRequest, now_ns: int) -> bool:
        """Return whether a request that would be refused has to wait, because frames of the container's other processes have
        arrived: one process may have freed memory in the driver before another one asked for it."""
        container, frame = self.container, request.frame
        if frame.kind is not Kind.ADD or container.memory[frame.device].fits(frame.a):
            return False
        container.count(len(container.processes) // ASKED_A_FRAME)
        request.refused_ns = now_ns if request.refused_ns is None else request.refused_ns
        waited_ns = now_ns - request.refused_ns
        return waited_ns <= UNREAD_NS and any(one.count_waiting() for one in container.processes if one is not self)

    def _needs_reading(self, request: _MemoryRequest) -> bool:
        """Have the driver asked if the request is the first one in a new context, or would be refused for memory that may be
        free already. Return whether the answer is to be waited for."""
        container, frame = self.container, request.frame
        memory = container.memory[frame.device]
        if frame.kind is not Kind.ADD:
            return False
        if memory.awaits_reading(self):
            return container.shares.read_soon()
        if not memory.may_fit(frame.a):
            return False
        request.asked_at = container.readings if request.asked_at is None else request.asked_at
        return container.readings - request.asked_at <= READINGS and container.shares.read_soon()

    def awaits_reading(self) -> bool:
        """Return whether its first postponed request waits for the driver."""
        return bool(self.postponed) and self._needs_reading(self.postponed[0])

    def _count(self, frame: Frame) -> None:
        container, memory = self.container, self.container.memory[frame.device]
        held = bool(frame.b) or container.informs[frame.device]
        count = memory.add if frame.kind is Kind.ADD else memory.set_contexts
        allowed = count(self, frame.a, held=held)
        container.page.show_used(frame.device, memory.used_bytes)
        if frame.kind is Kind.CONTEXT and frame.b:
            return  # the process does not ask
        verdict = Frame(Kind.VERDICT, frame.device, frame.seq, int(allowed), memory.used_bytes, memory.limit_bytes)
        self.send(verdict)

    def answer_postponed(self) -> bool:
        """Answer the first postponed request, unless it has to wait for the driver or for other processes. Return whether there
        was one to answer."""
        if not self.postponed or self._has_to_wait(self.postponed[0], self.container.shares.now_ns()):
            return False
        self._count(self.postponed.popleft().frame)
        return True

    def _welcome(self, hello: Frame, now_ns: int) -> None:
        if self._greeted:
            raise WireError("a second HELLO")
        self._greeted, self.launches = True, hello.c > 0
        self.container.show_processes()
        welcome = pack(Frame(Kind.WELCOME, a=now_ns, b=len(self.container.cards), c=1))
        try:
            socket.send_fds(self._connection, [welcome], [self.container.page.fd])
        except OSError:
            asyncio.get_running_loop().call_soon(self.close)


def _listen(folder: Path) -> tuple[socket.socket, bool]:
    """Return a socket in this folder, and whether an earlier server had a socket there. Every user may connect, because a
    container's processes may have any user ID. The socket is bound by way of the folder's descriptor, because a socket's path
    has 107 bytes at most."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path = f"/proc/self/fd/{descriptor}/{SOCKET}"
        had_server = os.path.lexists(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        listener.bind(path)
        os.chmod(path, 0o666)  # noqa: PTH101, S103 -- find_stranger says who may stay
        listener.listen(MAX_PROCESSES)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    return listener, had_server


def _fields(grant: ShareGrant) -> dict[str, str]:
    return {"namespace": grant.namespace, "pod": grant.pod_name, "pod_uid": grant.pod, "container": grant.container}
