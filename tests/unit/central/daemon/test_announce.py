"""Test that the Service points to the leader."""

import asyncio
from collections.abc import Callable

import pytest

from central.daemon.announce import SCAN_S, Announcer, render_slice
from lading.health import Address
from lading.kube.errors import UnreachableError
from lading.log import Level, open_log


class Api:
    """Record what is applied, and fail as often as the test sets."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.applied: list[tuple[str, object]] = []

    async def apply(self, path: str, body: object, *, manager: str, force: bool = False) -> bytes:
        if self.failures:
            self.failures -= 1
            raise UnreachableError("cannot reach")
        self.applied.append((path, body))
        return b"{}"


def run_for(api: Api, leads: Callable[[], bool], scans: int) -> None:
    """Run so many scans in simulated time."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > SCAN_S * (scans + 0.5):
            raise asyncio.CancelledError

    announcer = Announcer(
        api,  # type: ignore[arg-type]
        namespace="lading-system",
        service="lading-central",
        address=Address("10.0.0.7", 8080),
        leads=leads,
        log=open_log("test", Level.ERROR),
        clock=lambda: now,
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(announcer.run())


def test_only_a_leader_writes_and_once_a_while() -> None:
    api = Api()
    run_for(api, lambda: False, 2)
    assert api.applied == []
    run_for(api, lambda: True, 3)
    assert len(api.applied) == 1
    run_for(api, lambda: True, 400)  # 80 s: someone may have deleted it
    assert len(api.applied) == 3
    (path,) = {path for path, _ in api.applied}
    assert path == "/apis/discovery.k8s.io/v1/namespaces/lading-system/endpointslices/lading-central"


def test_the_endpoints_are_written_again_in_the_next_leadership() -> None:
    api = Api()
    turns = iter([True, False, True])
    run_for(api, lambda: next(turns, True), 3)
    assert len(api.applied) == 2


def test_a_failure_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    api = Api(failures=1)
    run_for(api, lambda: True, 6)
    assert len(api.applied) == 1


@pytest.mark.parametrize(("host", "family"), [("10.0.0.7", "IPv4"), ("fd00::7", "IPv6")])
def test_the_slice_belongs_to_the_service(host: str, family: str) -> None:
    body = render_slice("ns", "central", Address(host, 8080), 8081)
    assert body["addressType"] == family
    assert body["endpoints"] == [{"addresses": [host], "conditions": {"ready": True}}]
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == "central"  # type: ignore[index]
    assert body["ports"] == [
        {"name": "extender", "port": 8080, "protocol": "TCP"},
        {"name": "page", "port": 8081, "protocol": "TCP"},
    ]
    assert len(render_slice("ns", "central", Address(host, 8080))["ports"]) == 1  # type: ignore[arg-type]
