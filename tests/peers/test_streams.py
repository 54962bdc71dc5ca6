"""Test replies that are streams: all messages in order, and many streams at a time; test_endings.py cancels one."""

from uuid import uuid4

import pytest

from tests.peers.callers import ask
from tests.peers.conftest import Ways
from tests.peers.runtimes import STREAMS, VERSIONS
from tests.peers.script import Script

EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
MESSAGES = 500
AT_ONCE = 200


@pytest.mark.parametrize("code", ["OK", "ABORTED"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("service", "method"), STREAMS)
def test_all_messages_come_in_order_also_before_an_error(
    ways: Ways, version: str, service: str, method: str, code: str
) -> None:
    path, script = f"/runtime.{version}.{service}/{method}", Script(replies=MESSAGES, size=200, code=code, details="half way")
    direct = ask(ways.direct, path, b"", script)
    assert (direct.code, len(set(direct.replies))) == (code, MESSAGES)
    assert ask(ways.proxied, path, b"", script) == direct


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
