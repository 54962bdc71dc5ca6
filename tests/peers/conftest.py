"""Start the peers of these tests: the proxy, as its own process, between gRPC peers; each call is made with and without it.

One pair of runtime and proxy, and one pair of connections to them, for all tests of this folder.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lading.vocabulary import PREFIX
from simnode.daemons import Daemon
from tests.faults.rig import ScriptedHooks, proxy_in, register, running
from tests.peers.callers import Caller
from tests.peers.runtimes import Runtime
from tests.started import Started

HOOK_DEADLINE_S = 60.0  # a hook that hangs is ended by its caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Represent a runtime, and the proxy in front of it with one hook server."""

    runtime: Runtime
    path: Path
    proxy: Daemon
    hooks: ScriptedHooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Represent a client's connections: to the runtime, and to the proxy in front of it."""

    pair: Pair
    direct: Caller
    proxied: Caller


@contextlib.contextmanager
def both_ways(runtime: Path, proxy: Daemon) -> Iterator[tuple[Caller, Caller]]:
    """Connect a client to the runtime, and to the proxy in front of it."""
    direct, proxied = Caller(runtime), Caller(proxy.socket)
    yield direct, proxied
    proxied.close()
    direct.close()


@pytest.fixture(scope="package")
def pair(pytestconfig: pytest.Config) -> Iterator[Pair]:
    with Started(pytestconfig) as stack:
        folder = stack.folder()
        path = folder / "runtime.sock"
        runtime = Runtime(path)
        stack.callback(runtime.stop)
        hooks = stack.enter_context(ScriptedHooks(folder / "hooks.sock"))
        (folder / "hooks.d").mkdir()  # the proxy reads it when it starts
        register(folder, hooks.path, annotation_prefixes=[PREFIX], deadlines={"PreCreateContainer": HOOK_DEADLINE_S})
        proxy = proxy_in(folder, path)
        stack.show(proxy.log)
        stack.enter_context(running(proxy))
        yield Pair(runtime=runtime, path=path, proxy=proxy, hooks=hooks)


@pytest.fixture
def caller(proxy: Daemon) -> Iterator[Caller]:
    """Connect to the `proxy` of a module that has its own."""
    caller = Caller(proxy.socket)
    yield caller
    caller.close()


@pytest.fixture(scope="package")
def ways(pair: Pair) -> Iterator[Ways]:
    with both_ways(pair.path, pair.proxy) as (direct, proxied):
        yield Ways(pair=pair, direct=direct, proxied=proxied)
