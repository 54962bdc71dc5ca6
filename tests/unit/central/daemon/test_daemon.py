"""Test leaderships and the lease: none answers too early, none writes too late, and two of one process never overlap."""

import asyncio

import aiohttp

from central.controllers.binder import BIND_TIMEOUT_S
from central.daemon.daemon import AFTER_LEADERSHIP_S, Replica
from central.extender.server import ExtenderServer
from lading.health import Address
from tests.fakes.kube_objects import pod
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, is_touch
from tests.unit.central.conftest import Lease


def again(cluster: Led, replica: Replica) -> None:
    replica.lost()
    replica.gained()
    assert replica.leadership is not None
    cluster.leadership = replica.leadership


async def test_a_replica_answers_once_it_has_read_and_while_it_holds_the_lease(
    cluster: Led, replica: Replica, lease: Lease
) -> None:
    assert not replica.leads()
    await cluster.pause()
    assert replica.leads()
    lease.held = False
    assert not replica.leads()
    lease.held = True
    replica.lost()
    assert not replica.leads()
    replica.lost()  # may be told again


async def test_the_leader_is_the_present_leadership(cluster: Led, replica: Replica) -> None:
    await cluster.pause()
    former = replica.leader()
    assert former is replica.leadership is not None
    again(cluster, replica)
    assert replica.leader() is None  # nothing is read yet
    await cluster.pause(2 * AFTER_LEADERSHIP_S)
    assert replica.leader() is replica.leadership is not former


async def test_a_process_that_leads_again_waits_for_its_own_last_binding(cluster: Led, replica: Replica) -> None:
    """Let the lease expire during a Binding that hangs in a slow API server, which then answers every call."""
    await cluster.put_pod("a")
    await cluster.put_pod("b")
    cluster.server.fail(Fault(hang=True, late_s=BIND_TIMEOUT_S), when=is_binding)
    binding = asyncio.create_task(cluster.bind("a", "n1"))
    await cluster.pause(0.1)
    again(cluster, replica)
    await cluster.pause()
    assert not replica.leads()
    await binding
    await cluster.pause(AFTER_LEADERSHIP_S)
    assert (replica.leads(), cluster.server.late) == (True, [200])
    assert await cluster.schedule("b") == REFUSED
    assert cluster.bound_to("a") == "n1"


async def test_a_replica_whose_last_leadership_ended_long_ago_reads_at_once(cluster: Led, replica: Replica) -> None:
    replica.lost()
    await cluster.pause(AFTER_LEADERSHIP_S)
    replica.gained()
    await cluster.pause()
    assert replica.leads()


async def test_no_other_replica_may_lead_at_once_while_the_outcome_of_a_binding_is_unclear(
    cluster: Led, replica: Replica
) -> None:
    await cluster.put_pod("a")
    cluster.server.fail(Fault(status=500), when=is_binding)
    cluster.server.fail(Fault(status=500), when=is_touch, times=9)
    await cluster.bind("a", "n1")
    assert not await replica.close()


async def test_another_replica_may_lead_at_once_if_the_outcome_of_every_binding_is_clear(
    cluster: Led, replica: Replica
) -> None:
    await cluster.put_pod("a")
    assert await cluster.bind("a", "n1") == ""
    assert await replica.close()


async def test_a_forged_request_changes_neither_what_a_pod_gets_nor_what_is_free(cluster: Led, replica: Replica) -> None:
    """Send the extender a pod's uid and name with another request than the pod's own, and pods that do not exist."""
    await cluster.put_node("n1", 8)
    await cluster.put_pod("a")
    await cluster.put_pod("b")
    server = ExtenderServer(replica.leader, answered=lambda *_: None, log=cluster.records.log)
    host, port = await server.start(Address("127.0.0.1", 0), None)
    try:
        forged = {**cluster.json("a"), "spec": pod("a", {"lading.dev/gpu": "8"})["spec"]}
        async with aiohttp.ClientSession() as session:
            for sent in (forged, *(pod(f"x{number}", version=1) for number in range(8))):
                async with session.post(f"http://{host}:{port}/filter", json={"Pod": sent, "NodeNames": ["n1"]}) as answer:
                    assert answer.status == 200
        assert await cluster.bind("a", "n1") == ""
        assert len(cluster.assigned("a")) == 1
        assert cluster.filter("b") == ["n1"]
    finally:
        await server.close()
