"""Test callers that cancel before, during and after a hold: they get the same as without the proxy, and the runtime ends.

A deadline during a hold is the one difference, and meant: a hook gets half of what its caller has left, so that the caller
hears of the hook instead of running into a deadline that says nothing (docs/hook-api.md).

Seen to fail against a relay that keeps a caller's RST_STREAM to itself.
"""

import threading
from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest

from lading.reasons import Reason
from tests.fakes.raw_server import Call as Asked
from tests.faults.rig import ScriptedHooks, measure
from tests.node.site import eventually
from tests.peers.callers import Call, Caller, ask
from tests.peers.conftest import Ways
from tests.peers.script import Script
from tests.peers.test_sizes import guarded, unchanged

HELD: Final = "/runtime.v1.RuntimeService/CreateContainer"
FREE: Final = "/runtime.v1.RuntimeService/ListContainers"
EVENTS: Final = "/runtime.v1.RuntimeService/GetContainerEvents"
SHORT_S: Final = 0.6  # a deadline that is waited for; half of it is the hook's
REQUEST: Final = guarded(100).SerializeToString()
STUCK: Final = Script(waits_after=0)  # the runtime has the request, and never answers

_number = count()


class HangingHook:
    """Answer nothing until `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.asked = threading.Event()

    def __call__(self, call: Asked) -> bytes:
        self.asked.set()
        self.free.wait(60)
        return unchanged(call)


@pytest.fixture
def hangs(ways: Ways) -> Iterator[HangingHook]:
    hanging = HangingHook()
    ways.pair.hooks.says = hanging
    yield hanging
    hanging.free.set()
    ways.pair.hooks.says = ScriptedHooks.mark


def start(
    ways: Ways, caller: Caller, path: str, request: bytes | None, script: Script = STUCK, *, deadline_s: float = 300.0
) -> tuple[Call, str]:
    """A call whose headers have reached the runtime, if need be held up; without a hook that hangs, its message too."""
    tag = f"ending-{next(_number)}"
    call = caller.open(path, request, script, tag=tag, deadline_s=deadline_s)
    runtime = ways.pair.runtime
    reached = runtime.received if script is STUCK and request is not None else runtime.arrived

    def arrived() -> None:
        assert tag in reached

    eventually(arrived)
    return call, tag


def end(call: Call) -> tuple[object, ...]:
    """Without the initial metadata, which may or may not have come before a caller gave up."""
    seen = call.end()
    return seen.code, seen.details, seen.replies, seen.trailing


def is_over(ways: Ways, tag: str) -> None:
    def over() -> None:
        assert tag in ways.pair.runtime.over

    eventually(over)
    assert tag not in ways.pair.runtime.answered


@pytest.mark.parametrize(
    ("path", "request_", "script"),
    [
        pytest.param(HELD, None, STUCK, id="held, before its message"),
        pytest.param(FREE, None, STUCK, id="before its message"),
        pytest.param(HELD, REQUEST, STUCK, id="held, after its message"),
        pytest.param(FREE, REQUEST, STUCK, id="after its message"),
        pytest.param(EVENTS, b"", Script(replies=500, size=200, waits_after=3), id="within its replies"),
    ],
)
def test_cancelled(ways: Ways, path: str, request_: bytes | None, script: Script) -> None:
    ways.pair.hooks.says = unchanged
    ways.pair.runtime.wait_again()
    seen = []
    for caller in (ways.direct, ways.proxied):
        call, tag = start(ways, caller, path, request_, script)
        first = [call.read() for _ in range(script.waits_after)]
        call.cancel()
        seen.append((end(call), first))
        is_over(ways, tag)
        assert ask(caller, path, REQUEST).replies == (REQUEST,)
    assert seen[0][0][0] == "CANCELLED"
    assert seen[0] == seen[1]


def test_cancelled_during_a_hold(ways: Ways, hangs: HangingHook) -> None:
    ways.pair.runtime.wait_again()
    direct, _ = start(ways, ways.direct, HELD, REQUEST)
    direct.cancel()
    proxied, tag = start(ways, ways.proxied, HELD, REQUEST, Script())
    assert hangs.asked.wait(10)
    proxied.cancel()
    assert end(proxied) == end(direct)
    is_over(ways, tag)
    hangs.free.set()  # a late answer changes nothing
    assert ask(ways.proxied, HELD, REQUEST).replies == (REQUEST,)
    assert tag not in ways.pair.runtime.answered


@pytest.mark.parametrize("path", [HELD, FREE])
@pytest.mark.parametrize("request_", [None, REQUEST], ids=["before", "after"])
def test_past_the_deadline(ways: Ways, path: str, request_: bytes | None) -> None:
    ways.pair.runtime.wait_again()
    direct, direct_tag = start(ways, ways.direct, path, request_, deadline_s=SHORT_S)
    proxied, proxied_tag = start(ways, ways.proxied, path, request_, deadline_s=SHORT_S)
    # The text depends on whose clock was first, the caller's or the runtime's, also without the proxy.
    code, _, *rest = end(direct)
    assert code == "DEADLINE_EXCEEDED"
    proxied_code, _, *proxied_rest = end(proxied)
    assert (proxied_code, proxied_rest) == (code, rest)
    for caller, tag in ((ways.direct, direct_tag), (ways.proxied, proxied_tag)):
        is_over(ways, tag)
        assert ask(caller, path, REQUEST).code == "OK"


def test_a_hook_that_hangs_does_not_use_up_the_deadline(ways: Ways, hangs: HangingHook) -> None:
    deadline_s = 2.0
    with measure("the answer for a hook that hangs, of a deadline of 2 s") as took:
        call, tag = start(ways, ways.proxied, HELD, REQUEST, Script(), deadline_s=deadline_s)
        seen = call.end()
    assert seen.code == "UNAVAILABLE"
    assert Reason.HOOK_TIMEOUT in seen.details
    assert took.seconds < deadline_s
    is_over(ways, tag)
    hangs.free.set()
    assert ask(ways.proxied, HELD, REQUEST).replies == (REQUEST,)
