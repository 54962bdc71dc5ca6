"""Test pods that exceed their shares: their condition and Events, and when they are evicted."""

from typing import Any

import pytest

from central.controllers.event_reasons import EventReason
from central.controllers.evict import SPARED_S
from central.controllers.share_bypass import QUIET_S, Bypassed
from tests.fakes.kube_objects import devices_path, gpu_uuid, share
from tests.fakes.kube_server import Fault
from tests.fakes.led import Led
from tests.unit.central.controllers.test_evict import evicted, is_for_good, told


def bypass(cluster: Led, pod: str, node: str = "n1") -> dict[str, Any]:
    return {"pod": cluster.uid(pod), "uuid": gpu_uuid(node, 0), "container": "main", "why": "uses it past the share server"}


async def put_share(cluster: Led, name: str) -> None:
    await cluster.place(name, share("8Gi", 10))


async def report(cluster: Led, *pods: str, node: str = "n1") -> None:
    await cluster.report(node, share_bypasses=[bypass(cluster, pod) for pod in pods])


async def test_a_pod_that_bypasses_its_share_gets_an_event_once_in_a_while(cluster: Led) -> None:
    for name in ("a", "b"):
        await put_share(cluster, name)
    await report(cluster, "a")
    await cluster.pause(5)
    assert told(cluster) == [("a", EventReason.SHARE_BYPASSED)]
    await report(cluster)
    await report(cluster, "a")
    await cluster.pause(5)
    assert told(cluster) == [("a", EventReason.SHARE_BYPASSED)]
    await cluster.pause(QUIET_S)
    assert told(cluster) == [("a", EventReason.SHARE_BYPASSED)] * 2
    assert evicted(cluster) == []


@pytest.mark.central(bypassed=Bypassed.END)
async def test_a_pod_that_bypasses_its_share_is_evicted_if_central_is_set_to_end_it(cluster: Led) -> None:
    for name in ("a", "b"):
        await put_share(cluster, name)
    await report(cluster, "a")
    await cluster.pause(5)
    assert evicted(cluster) == ["a"]
    assert told(cluster) == [("a", EventReason.SHARE_BYPASSED)] * 2  # one event for the bypass, one for the eviction


@pytest.mark.central(bypassed=Bypassed.END)
async def test_an_eviction_that_a_budget_refuses_is_tried_again(cluster: Led) -> None:
    await put_share(cluster, "a")
    cluster.server.fail(Fault(status=429), when=is_for_good)
    await report(cluster, "a")
    await cluster.pause(5)
    assert evicted(cluster) == ["a"]
    await cluster.pause(SPARED_S)
    assert evicted(cluster) == ["a", "a"]


@pytest.mark.parametrize("pods", [("elsewhere",), ("waits",)])
@pytest.mark.central(bypassed=Bypassed.END)
async def test_a_node_report_counts_for_the_pods_that_are_bound_to_the_node(cluster: Led, pods: tuple[str, ...]) -> None:
    await put_share(cluster, "elsewhere")
    await cluster.put_pod("waits", share("8Gi", 10))
    await cluster.put_node("n2")
    await report(cluster, *pods, node="n2")
    await cluster.pause(5)
    assert (told(cluster), evicted(cluster)) == ([], [])


async def test_a_deleted_node_report_counts_no_more(cluster: Led) -> None:
    await put_share(cluster, "a")
    await report(cluster, "a")
    await cluster.pause(5)
    await cluster.server.remove(devices_path("n1"))
    await cluster.pause(2 * QUIET_S)
    assert told(cluster) == [("a", EventReason.SHARE_BYPASSED)]
