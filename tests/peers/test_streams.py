"""Replies that are streams: all of them in their order, many at a time, and an end that the caller brings about early.

Seen to fail against a relay that keeps a caller's RST_STREAM to itself.
"""

from uuid import uuid4

import pytest

from tests.node.site import eventually
from tests.peers.callers import ask
from tests.peers.conftest import Ways
from tests.peers.runtimes import STREAMS, VERSIONS
from tests.peers.script import Script

EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
MESSAGES = 500
AT_ONCE = 200


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("service", "method"), STREAMS)
def test_every_message_comes_in_its_order(ways: Ways, version: str, service: str, method: str) -> None:
    path, script = f"/runtime.{version}.{service}/{method}", Script(replies=MESSAGES, size=200)
    direct = ask(ways.direct, path, b"", script)
    assert len(set(direct.replies)) == MESSAGES
    assert ask(ways.proxied, path, b"", script) == direct


def test_a_stream_that_fails_half_way(ways: Ways) -> None:
    script = Script(replies=50, size=200, code="ABORTED", details="half way")
    direct = ask(ways.direct, EVENTS, b"", script)
    assert (direct.code, len(direct.replies)) == ("ABORTED", 50)
    assert ask(ways.proxied, EVENTS, b"", script) == direct


def test_the_runtime_hears_of_an_early_end(ways: Ways) -> None:
    ended = []
    for way, caller in (("direct", ways.direct), ("proxied", ways.proxied)):
        tag = f"early-{uuid4()}"
        call = caller.open(EVENTS, b"", Script(replies=MESSAGES, size=200, waits_after=3), tag=tag)
        first = [call.read() for _ in range(3)]
        call.cancel()
        seen = call.end()
        eventually(lambda tag=tag: _over(ways, tag))  # type: ignore[misc]
        ended.append((seen.code, seen.replies, first))
        assert ask(caller, EVENTS, b"next").replies == (b"next",), way
    assert ended[0][0] == "CANCELLED"
    assert ended[0] == ended[1]


def test_many_streams_on_one_connection(ways: Ways) -> None:
    """All are open before the first ends; messages large enough that they share the connection's window."""
    runtime = ways.pair.runtime
    results = []
    for caller in (ways.direct, ways.proxied):
        tags = [f"many-{uuid4()}" for _ in range(AT_ONCE)]
        runtime.wait_again()
        calls = [caller.open(EVENTS, b"", Script(replies=4, size=2000, waits_after=1), tag=tag) for tag in tags]
        first = [call.read() for call in calls]
        assert set(tags) <= runtime.arrived
        assert runtime.over.isdisjoint(tags)
        runtime.go_on()
        ends = [call.end() for call in calls]
        results.append(([(end.code, end.replies, end.trailing) for end in ends], first))
    runtime.wait_again()
    assert {code for code, _, _ in results[0][0]} == {"OK"}
    assert results[0] == results[1]


def _over(ways: Ways, tag: str) -> None:
    assert tag in ways.pair.runtime.over
    assert tag not in ways.pair.runtime.answered
