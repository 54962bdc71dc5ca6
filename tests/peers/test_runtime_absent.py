"""No runtime behind the proxy: callers hear of it at once, and the first call after it is there reaches it.

Seen to fail against a proxy that looks for the runtime every 200 ms only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from simnode.daemons import Daemon
from tests.faults.rig import measure, proxy_in, running
from tests.peers.callers import Caller, Seen, ask
from tests.peers.runtimes import Runtime

PATH: Final = "/runtime.v1.RuntimeService/Version"
AT_ONCE_S: Final = 3.0  # nominally 1


@pytest.fixture
def runtime_path(short_folder: Path) -> Path:
    return short_folder / "runtime.sock"


@pytest.fixture
def proxy(short_folder: Path, runtime_path: Path) -> Iterator[Daemon]:
    with running(proxy_in(short_folder, runtime_path)) as proxy:
        yield proxy


def ask_at_once(caller: Caller) -> Seen:
    with measure("an answer without a runtime") as took:
        seen = ask(caller, PATH, b"")
    assert took.seconds < AT_ONCE_S
    return seen


def assert_absent(seen: Seen, runtime_path: Path) -> None:
    assert seen.code == "UNAVAILABLE"
    assert str(runtime_path) in seen.details


def test_a_runtime_that_comes_and_goes(caller: Caller, runtime_path: Path) -> None:
    for _ in range(3):
        for _ in range(2):
            assert_absent(ask_at_once(caller), runtime_path)
        runtime = Runtime(runtime_path)
        assert ask_at_once(caller).code == "OK"  # the first, on the same channel
        runtime.stop()
        runtime_path.unlink(missing_ok=True)


def test_a_client_that_connected_and_did_not_call(caller: Caller, runtime_path: Path) -> None:
    """Check a client that connected before the runtime existed, and calls when the runtime has started."""
    caller.connect()
    runtime = Runtime(runtime_path)
    assert ask_at_once(caller).code == "OK"
    runtime.stop()
