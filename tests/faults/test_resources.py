"""Test too many connections, too few descriptors, and many pods: other callers are served, and no resource leaks.

`make test-long` uses larger numbers: 10,000 attempted connections, 500 pods.
"""

import contextlib
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

from lading.http2 import frames
from lading.log import Event
from lading.vocabulary import MANUAL_GPUS, MANUAL_VFS
from runtimeproxy.settings import Settings
from simnode.cri import Cri, CriError
from simnode.daemons import Daemon
from tests.depth import repeats
from tests.faults.conftest import StartLading
from tests.faults.rig import GUARDED, ScriptedHooks, logged, measure, proxy_in, register, running
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import eventually

CAP: Final = Settings().max_connections
GREETING: Final = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0)
RECOVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Usage:
    descriptors: int
    threads: int
    rss_kib: int

    @classmethod
    def of(cls, daemon: Daemon) -> Self:
        proc = Path("/proc") / str(daemon.pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return cls(len(list((proc / "fd").iterdir())), int(status["Threads"]), int(status["VmRSS"].split()[0]))


@pytest.fixture
def proxy(runtime: InMemoryRuntime, short_folder: Path) -> Iterator[Daemon]:
    daemon = proxy_in(short_folder, runtime.path)
    with ScriptedHooks(short_folder / "hooks.sock") as hooks:
        register(short_folder, hooks.path)
        with running(daemon):
            yield daemon


@contextmanager
def calling(kubelet: Cri) -> Iterator[list[float]]:
    """Make calls on an earlier connection during the block; none may fail. Yield the list of seconds of each call."""
    took: list[float] = []
    over = threading.Event()
    failed: list[CriError] = []

    def call() -> None:
        while not over.is_set():
            began = time.monotonic()
            try:
                kubelet.version()
            except CriError as e:
                failed.append(e)
                return
            took.append(time.monotonic() - began)

    kubelet.version()
    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()
    assert failed == []
    assert took


def knock(path: Path) -> socket.socket:
    """Open a connection that sends the HTTP/2 preface and stays open. Wait while the accept queue is full."""
    knocking = socket.socket(socket.AF_UNIX)
    knocking.connect(str(path))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the proxy may have closed it already
        knocking.send(GREETING)
    return knocking


def cut_off(connections: list[socket.socket]) -> list[socket.socket]:
    """Return the connections that the proxy closed."""
    poll = select.poll()
    by_fd = {connection.fileno(): connection for connection in connections}
    for fd in by_fd:
        poll.register(fd, select.POLLRDHUP)
    return [by_fd[fd] for fd, _ in poll.poll(0)]


@pytest.mark.repeats
def test_the_connection_cap_protects_who_is_there(proxy: Daemon, runtime: InMemoryRuntime) -> None:
    attempts = repeats(1_000, long=10_000)
    with runtime.client(via=proxy.socket) as kubelet, contextlib.ExitStack() as stack, calling(kubelet) as took:
        open_ones: list[socket.socket] = []
        with measure(f"{attempts} connections attempted"):
            for _ in range(attempts):
                open_ones.append(stack.enter_context(knock(proxy.socket)))

        def capped() -> None:
            assert len(open_ones) - len(cut_off(open_ones)) == CAP - 1

        eventually(capped)
        usage = Usage.of(proxy)
        assert usage.descriptors < 2 * CAP + 100
        assert logged(proxy, Event.CONNECTION_REJECTED)
        stack.close()
        with measure("cap: a new client is served after"):
            eventually(lambda: call_anew(proxy, runtime))
    took.sort()
    p99_ms, max_ms = took[len(took) * 99 // 100] * 1000, took[-1] * 1000
    print(f"measured: cap: {len(took)} calls meanwhile, p99 {p99_ms:.1f} ms, max {max_ms:.1f} ms")
    print(f"measured: cap: proxy at {CAP} connections: {usage}")


def call_anew(proxy: Daemon, runtime: InMemoryRuntime) -> None:
    with runtime.client(via=proxy.socket) as newcomer:
        newcomer.deadline_s = 1.0
        newcomer.version()


@contextmanager
def few_descriptors(daemon: Daemon, spare: int) -> Iterator[None]:
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (kept_descriptors(daemon) + spare, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))


def kept_descriptors(daemon: Daemon) -> int:
    """Return the smallest number of descriptors within a second, because reading the devices uses some for a moment."""
    counts = []
    for _ in range(20):
        counts.append(Usage.of(daemon).descriptors)
        time.sleep(0.05)  # a reading of the devices has no end that this process could wait for
    return min(counts)


@pytest.mark.parametrize("spare", range(5))
def test_a_proxy_without_descriptors_serves_who_is_there_and_says_so(
    proxy: Daemon, runtime: InMemoryRuntime, spare: int
) -> None:
    """Vary the number of free descriptors, because it decides whether accepting or connecting fails."""
    with runtime.client(via=proxy.socket) as kubelet, contextlib.ExitStack() as stack:
        with kubelet.pod("before", annotations=GUARDED) as pod:
            pod.create_container()  # the line to the hooks is there
        with calling(kubelet), few_descriptors(proxy, spare):
            for _ in range(10):
                stack.enter_context(knock(proxy.socket))
            eventually(lambda: said(proxy, Event.CONNECTION_REJECTED))
            with kubelet.pod("meanwhile", annotations=GUARDED) as pod:
                assert ScriptedHooks.marked(runtime.created[pod.create_container().id])
        stack.close()
        with measure("descriptors back: a new client is served after") as back:
            eventually(lambda: call_anew(proxy, runtime))
        assert back.seconds < RECOVERY_S


def said(daemon: Daemon, event: Event) -> None:
    assert logged(daemon, event)


def test_hooks_without_descriptors_recover(start_lading: StartLading) -> None:
    lading = start_lading(inventory_interval=1)
    with lading.client() as kubelet:
        with kubelet.pod("before", annotations=GUARDED) as pod:
            pod.create_container()
        with few_descriptors(lading.hooks, 0):
            eventually(lambda: said(lading.hooks, Event.INVENTORY_FAILED))
            with kubelet.pod("plain") as pod:
                pod.create_container()
        with kubelet.pod("after", annotations=GUARDED) as pod, measure("hooks' descriptors back: a grant after"):
            eventually(pod.create_container)
        assert lading.hooks.running


@pytest.mark.repeats
def test_nothing_piles_up(start_lading: StartLading, runtime: InMemoryRuntime) -> None:
    cycles = repeats(60, long=500)
    lading = start_lading()
    wants = {MANUAL_GPUS: "0", MANUAL_VFS: "1"}

    def live(count: int) -> None:
        with lading.client() as kubelet:
            for n in range(count):
                with kubelet.pod(f"short-{n}", annotations=wants if n % 2 else {}) as pod:
                    eventually(pod.create_container).start()  # the pod before the last is just being released

    live(50)  # libraries, caches, threads of a first use
    before = {daemon.name: Usage.of(daemon) for daemon in (lading.hooks, lading.proxy)}
    with measure(f"{cycles} pods made and removed"):
        live(cycles)

    def settled() -> None:
        for daemon in (lading.hooks, lading.proxy):
            now, then = Usage.of(daemon), before[daemon.name]
            assert now.descriptors <= then.descriptors + 2
            assert now.threads <= then.threads + 2

    eventually(settled)
    for daemon in (lading.hooks, lading.proxy):
        now, then = Usage.of(daemon), before[daemon.name]
        print(f"measured: {daemon.name}: {then} before, {now} after {cycles} pods")
        assert now.rss_kib - then.rss_kib < 4_096 + cycles


@pytest.mark.repeats
def test_clients_that_come_and_go_leave_nothing(proxy: Daemon, runtime: InMemoryRuntime) -> None:
    def visit(times: int) -> None:
        for _ in range(times):
            with runtime.client(via=proxy.socket) as visitor:
                visitor.version()
            knock(proxy.socket).close()

    visit(20)
    before = Usage.of(proxy)
    visit(repeats(200, long=2_000))

    def settled() -> None:
        now = Usage.of(proxy)
        assert now.descriptors <= before.descriptors + 1
        assert now.threads <= before.threads + 1

    eventually(settled)
    assert Usage.of(proxy).rss_kib - before.rss_kib < 4_096
