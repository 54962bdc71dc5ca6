"""Test pods that exceed their shares: their condition and Events, and when they are evicted."""

from pathlib import Path
from typing import Any

import pytest

from central.controllers.events import EventReason
from central.controllers.evict import SPARED_S
from central.controllers.share_bypass import QUIET_S, Bypassed
from tests.fakes.kube_objects import devices_path, gpu_uuid, share
from tests.fakes.kube_server import Fault
from tests.fakes.led import Led, play
from tests.unit.central.controllers.test_evict import evicted, is_for_good, told


def bypass(one: Led, pod: str, node: str = "n1") -> dict[str, Any]:
    return {"pod": one.uid(pod), "uuid": gpu_uuid(node, 0), "container": "main", "why": "uses it past the share server"}


async def report(one: Led, *pods: str, node: str = "n1") -> None:
    await one.report(node, share_bypasses=[bypass(one, pod) for pod in pods])


async def bound(one: Led, *names: str) -> None:
    for name in names:
        await one.put_pod(name, share("8Gi", 10))
        assert await one.schedule(name) == ""
        await one.pause()


def test_a_pod_is_notified_once_in_a_while(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a", "b")
        await report(one, "a")
        await one.pause(5)
        assert told(one) == [("a", EventReason.SHARE_BYPASSED)]
        await report(one)
        await report(one, "a")
        await one.pause(5)
        assert told(one) == [("a", EventReason.SHARE_BYPASSED)]
        await one.pause(QUIET_S)
        assert told(one) == [("a", EventReason.SHARE_BYPASSED)] * 2
        assert evicted(one) == []

    play(story, tmp_path)


def test_it_is_evicted_where_central_is_to(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a", "b")
        await report(one, "a")
        await one.pause(5)
        assert evicted(one) == ["a"]
        assert told(one) == [("a", EventReason.SHARE_BYPASSED)] * 2  # one event for the bypass, one for the eviction

    play(story, tmp_path, bypassed=Bypassed.END)


def test_a_pod_that_a_budget_spares_is_asked_for_again(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a")
        one.server.fail(Fault(status=429), when=is_for_good)
        await report(one, "a")
        await one.pause(5)
        assert evicted(one) == ["a"]
        await one.pause(SPARED_S)
        assert evicted(one) == ["a", "a"]

    play(story, tmp_path, bypassed=Bypassed.END)


@pytest.mark.parametrize("pods", [("elsewhere",), ("waits",)])
def test_a_nodes_word_counts_for_the_pods_that_are_bound_to_it(pods: tuple[str, ...], tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "elsewhere")
        await one.put_pod("waits", share("8Gi", 10))
        await one.put_node("n2")
        await report(one, *pods, node="n2")
        await one.pause(5)
        assert (told(one), evicted(one)) == ([], [])

    play(story, tmp_path, bypassed=Bypassed.END)


def test_a_node_that_is_deleted_says_nothing_any_more(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a")
        await report(one, "a")
        await one.pause(5)
        await one.server.remove(devices_path("n1"))
        await one.pause(2 * QUIET_S)
        assert told(one) == [("a", EventReason.SHARE_BYPASSED)]

    play(story, tmp_path)
