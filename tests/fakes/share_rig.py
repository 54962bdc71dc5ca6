"""Run a share server on its own event loop, with real sockets and a simulated /proc, and clients that send its frames.

All clients are this process: `say_pod` changes the pod whose cgroup the process is in.
"""

import asyncio
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from lading.files import replace_file
from lading.sharegrant import FILE, SOCKET, SharedGpu, ShareGrant, folder_name, render_grant
from lading.vocabulary import GpuUuid, PodUid
from shares.policy.fair import Fair
from shares.policy.model import Policy
from shares.readings import Read
from shares.server import Shares, Usage
from shares.wire import SIZE, Frame, Kind, pack
from simnode.child import Block
from simnode.patience import wait_until
from tests.fakes.records import Records

POD: Final = PodUid("11111111-2222-3333-4444-555555555555")
CARD: Final = GpuUuid("GPU-00000001-0000-0000-0000-000000000001")
OTHER_CARD: Final = GpuUuid("GPU-00000002-0000-0000-0000-000000000002")
MIB: Final = 1 << 20
BOUND_S: Final = 20.0  # each wait: seconds in which nothing works; for a single call: its deadline
_FRAME: Final = struct.Struct("<BBHIqqq")
T = TypeVar("T")


def eventually(holds: Callable[[], object]) -> None:
    """Wait until it holds."""
    wait_until(holds, "the expected state of the shares", idle_s=BOUND_S)


def shared(
    uuid: GpuUuid = CARD,
    *,
    mib: int = 2048,
    request: int = 50,
    limit: int = 100,
    driver_limits: bool = False,
    turns: bool = True,
) -> SharedGpu:
    return SharedGpu(
        uuid=uuid,
        memory_mib=mib,
        total_mib=81008,
        request_percent=request,
        limit_percent=limit,
        driver_limits=driver_limits,
        turns=turns,
    )


def share(container: str = "train", *gpus: SharedGpu, pod: str = POD) -> ShareGrant:
    return ShareGrant(pod=PodUid(pod), container=container, namespace="ml", pod_name="p", gpus=gpus or (shared(),))


class DeviceEntry(NamedTuple):
    """Hold the state of one card on a container's shared page."""

    until_ns: int
    waiters: int
    request_ppm: int
    limit_ppm: int
    limit_bytes: int
    used_bytes: int
    informs: int
    pause: int


class Client:
    """Use one connection to a container's socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(BOUND_S)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.page_fd = -1
        self._page: mmap.mmap | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, kind: Kind, *, device: int = 0, seq: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
        self.socket.sendall(pack(Frame(kind, device, seq, a, b, c)))

    def receive(self) -> Frame:
        """Return the next frame. Raises ConnectionError if the server closed the connection."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, SIZE, 1)
        while data and len(data) < SIZE:
            data += self.socket.recv(SIZE - len(data))
        if not data:
            raise ConnectionResetError("the server closed the connection")
        if descriptors:
            self.page_fd = descriptors[0]
        version, kind, *rest = _FRAME.unpack(data)
        assert version == 1
        return Frame(Kind(kind), *rest)

    def is_closed(self) -> bool:
        """Read up to the end of the connection, and return whether it came."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    def greet(self) -> Frame:
        self.send(Kind.HELLO, a=os.getpid(), c=1)
        return self.receive()

    def want(self, *, late_ns: int = 0) -> None:
        self.send(Kind.WANT, c=late_ns)

    def ask(self, amount: int, *, held: bool = False, seq: int = 1, device: int = 0) -> bool:
        """Ask for memory, and return whether the server allows it."""
        self.send(Kind.ADD, device=device, seq=seq, a=amount, b=int(held))
        verdict = self.receive()
        assert (verdict.kind, verdict.seq, verdict.device) == (Kind.VERDICT, seq, device)
        return bool(verdict.a)

    def begin_context(self, number: int = 1, *, seq: int = 1) -> bool:
        """Ask for so many contexts, and return whether the server allows them."""
        self.send(Kind.CONTEXT, seq=seq, a=number)
        verdict = self.receive()
        assert (verdict.kind, verdict.seq) == (Kind.VERDICT, seq)
        return bool(verdict.a)

    def settle(self) -> None:
        """Return when the server has handled the frames sent before."""
        assert self.ask(0, seq=99)

    def shown(self, device: int = 0) -> DeviceEntry:
        """Return what the page says of a card."""
        at = 64 * (device + 1) + 16
        until, waiters, request, limit, _, limit_bytes, used, informs, pause = struct.unpack_from("<qiiiiqqiI", self._map, at)
        return DeviceEntry(until, waiters, request, limit, limit_bytes, used, informs, pause)

    def has_neighbours(self, device: int = 0) -> bool:
        """Return whether other containers have used a card within the last second."""
        return bool(self._map[16 + device])

    def beat_ns(self) -> int:
        return int(struct.unpack_from("<q", self._map, 8)[0])

    @property
    def _map(self) -> mmap.mmap:
        if self._page is None:
            self._page = mmap.mmap(self.page_fd, 4096, prot=mmap.PROT_READ)
        return self._page

    def close(self) -> None:
        self.socket.close()
        if self._page is not None:
            self._page.close()
        if self.page_fd >= 0:
            os.close(self.page_fd)
            self.page_fd = -1


def _has_ended(pid: int) -> int:
    raise ProcessLookupError(pid)


class ShareServer(Block):
    """Run the server in a thread. An unexpected error of its loop fails the test at the end."""

    shares: Shares

    def __init__(
        self,
        folder: Path,
        *,
        host_root: Path,
        policy: Callable[[], Policy] = Fair,
        lives: bool = False,
        read: Read | None = None,
    ) -> None:
        """Create the server. `lives`: a client's process continues after it closed its connection; else the process ends.
        `read` answers in place of the driver what processes have of cards."""
        self._read = read
        self.records = Records()
        self._policy = policy
        self._open_process = os.pidfd_open if lives else _has_ended
        self._folder = folder
        self._host_root = host_root
        self.unexpected: list[dict[str, Any]] = []

    def _begin(self) -> None:
        serving = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(serving)))
        thread.start()
        assert serving.wait(BOUND_S)
        self._thread = thread
        self._ends.callback(self._end, thread)

    async def _serve(self, serving: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda _, context: self.unexpected.append(context))
        self.shares = Shares(
            self._folder,
            policy=self._policy,
            log=self.records.log,
            host_root=self._host_root,
            open_process=self._open_process,
            read=self._read,
        )
        self.shares.start()
        serving.set()
        await self._ended.wait()
        self.shares.close()

    def _end(self, thread: threading.Thread) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        thread.join(BOUND_S)
        assert not thread.is_alive()
        assert self.unexpected == []

    def end(self) -> None:
        """End it before the test does."""
        self._ends.close()

    def call(self, function: Callable[[], T]) -> T:
        """Call it on the server's loop."""

        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(BOUND_S)

    def worked_s(self) -> float:
        """Return the CPU time of the server's thread."""
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def stall(self, seconds: float) -> None:
        """Have the server's loop stand still from now on."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def usage(self) -> list[Usage]:
        return self.call(self.shares.usage)


class ShareRig(Block):
    """Provide a folder of grants, a /proc in which this process belongs to a pod, and servers and clients. All end with the
    test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shares"
        self.host_root = folder / "host"

    def _begin(self) -> None:
        self.folder.mkdir()
        self.say_pod(POD)

    def say_pod(self, pod: str, pid: int | None = None) -> None:
        """Put a process into the cgroup of this pod; the empty name: of no pod."""
        path = self.host_root / "proc" / str(os.getpid() if pid is None else pid) / "cgroup"
        replace_file(path, f"0::/kubepods/burstable/pod{pod}/{'a' * 64}\n".encode() if pod else b"0::/init.scope\n")

    def grant(self, given: ShareGrant) -> Path:
        """Write a grant. Return the path of its socket."""
        folder = self.folder / folder_name(given.pod, given.container)
        replace_file(folder / FILE, render_grant(given))
        return folder / SOCKET

    def serve(self, *, lives: bool = False, read: Read | None = None) -> ShareServer:
        return self._ends.enter_context(ShareServer(self.folder, host_root=self.host_root, lives=lives, read=read))

    def dial(self, path: Path) -> Client:
        return self._ends.enter_context(Client(path))

    def join(self, path: Path) -> Client:
        """Connect a process of the container, and have it welcomed."""
        client = self.dial(path)
        assert client.greet().kind is Kind.WELCOME
        return client
