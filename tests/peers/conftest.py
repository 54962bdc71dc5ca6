"""Start the peers of these tests: the proxy, as its own process, between gRPC peers; each call is made with and without it.

One pair of runtime and proxy for each runtime, shared by all tests of this folder; one pair of connections for each client.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lading.vocabulary import PREFIX
from simnode import leftovers
from simnode.daemons import Daemon
from tests.faults.rig import ScriptedHooks, proxy_in, register
from tests.logs import LOGS
from tests.peers.callers import CLIENTS, Caller, connect
from tests.peers.loop import LoopThread
from tests.peers.runtimes import AioRuntime, CoreRuntime
from tests.peers.script import Runtime

HOOK_DEADLINE_S = 60.0  # a hook that hangs is ended by its caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One runtime, and the proxy in front of it with one hook server."""

    runtime: Runtime
    path: Path
    proxy: Daemon
    hooks: ScriptedHooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """One client's connections: to the runtime, and to the proxy in front of it."""

    pair: Pair
    direct: Caller
    proxied: Caller


@contextlib.contextmanager
def started_proxy(folder: Path, runtime: Path, config: pytest.Config) -> Iterator[Daemon]:
    """Run a proxy in front of a runtime. A test that fails shows its log."""
    proxy, logs = proxy_in(folder, runtime, metrics=""), config.stash.setdefault(LOGS, [])
    logs.append(proxy.log)
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()
        logs.remove(proxy.log)


@contextlib.contextmanager
def both_ways(client: str, runtime: Path, proxy: Daemon, loop: LoopThread) -> Iterator[tuple[Caller, Caller]]:
    """Connect a client to the runtime, and to the proxy in front of it."""
    direct, proxied = connect(client, runtime, loop), connect(client, proxy.socket, loop)
    yield direct, proxied
    proxied.close()
    direct.close()


@pytest.fixture(scope="package")
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.stop()


@pytest.fixture(scope="package", params=["core-runtime", "aio-runtime"])
def pair(request: pytest.FixtureRequest, loop: LoopThread, pytestconfig: pytest.Config) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lading-"))
        stack.callback(leftovers.remove_tree, folder)
        path = folder / "runtime.sock"
        runtime: Runtime = CoreRuntime(path) if request.param == "core-runtime" else AioRuntime(path, loop)
        stack.callback(runtime.stop)
        hooks = stack.enter_context(ScriptedHooks(folder / "hooks.sock"))
        (folder / "hooks.d").mkdir()  # the proxy reads it when it starts
        register(folder, hooks.path, annotation_prefixes=[PREFIX], deadlines={"PreCreateContainer": HOOK_DEADLINE_S})
        proxy = stack.enter_context(started_proxy(folder, path, pytestconfig))
        yield Pair(runtime=runtime, path=path, proxy=proxy, hooks=hooks)


@pytest.fixture(params=CLIENTS)
def caller(request: pytest.FixtureRequest, proxy: Daemon, loop: LoopThread) -> Iterator[Caller]:
    """Connect to the `proxy` of a module that has its own."""
    caller = connect(request.param, proxy.socket, loop)
    yield caller
    caller.close()


@pytest.fixture(scope="package", params=CLIENTS)
def ways(request: pytest.FixtureRequest, pair: Pair, loop: LoopThread) -> Iterator[Ways]:
    with both_ways(request.param, pair.path, pair.proxy, loop) as (direct, proxied):
        yield Ways(pair=pair, direct=direct, proxied=proxied)
