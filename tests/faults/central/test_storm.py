"""Schedule 500 equal pods at once on a slow, failing API server: no card is over its capacity, and all cards are used.

Each pod is scheduled as by kube-scheduler: filter, prioritize, and bind with a time limit. A failed pod is tried again after a
moment, a refused pod after it was changed. Some pods end while others wait. All of this happens in simulated time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from central.assignment.annotation import OwnAssignment, parse_own
from central.ledger.model import Claim
from lading.vocabulary import ASSIGNMENT
from tests.fakes.capacities import CARD_MIB
from tests.fakes.kube_objects import pod_path, share
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led, is_binding, is_touch

PODS, NODES, CARDS, ON_A_CARD = 500, 10, 8, 5
SIZE = share(f"{CARD_MIB // ON_A_CARD}Mi")
HTTP_TIMEOUT_S = 5.0  # kube-scheduler's, of an extender
SLOTS = NODES * CARDS * ON_A_CARD

FAULTS = (
    *(Fault(status=409, reason="Conflict"), Fault(status=500), Fault(status=500, done=True), Fault(status=429)),
    *(Fault(hang=True), Fault(hang=True, done=True), Fault(hang=True, late_s=2.0), Fault(hang=True, late_s=7.0)),
    Fault(done=True),
)


def used_mib(cluster: Led) -> Counter[str]:
    """Return the MiB in use on each card, as the annotations of bound pods say."""
    used: Counter[str] = Counter()
    for path in cluster.server.objects:
        if "/pods/" in path:
            for uuid in cluster.assigned(path.rpartition("/")[2]):
                used[uuid] += CARD_MIB // ON_A_CARD
    return used


async def schedule(cluster: Led, name: str, random: Random) -> None:
    """Try the pod until it is bound or deleted."""
    objects, path = cluster.server.objects, pod_path(name)
    while path in objects and not cluster.bound_to(name):
        before = objects.rendered(path)
        reason = "too late"
        try:
            async with asyncio.timeout(HTTP_TIMEOUT_S):
                reason = await cluster.schedule(name)
        except TimeoutError:
            pass
        if reason == REFUSED:
            await cluster.server.until(lambda: path not in objects or objects.rendered(path) != before)  # noqa: B023
        elif reason:
            await asyncio.sleep(random.expovariate(1 / 4))  # others come first meanwhile
        else:
            return


async def end_some(cluster: Led, random: Random, count: int) -> None:
    while count:
        await asyncio.sleep(random.uniform(0.1, 0.5))
        bound = [name for name in (f"p{number}" for number in range(PODS)) if is_bound(cluster, name)]
        if bound:
            await cluster.remove_pod(random.choice(bound))
            count -= 1


def is_bound(cluster: Led, name: str) -> bool:
    return pod_path(name) in cluster.server.objects and bool(cluster.bound_to(name))


async def watch_capacity(cluster: Led) -> None:
    while True:
        assert max(used_mib(cluster).values(), default=0) <= CARD_MIB
        await asyncio.sleep(1.0)


def make_trouble(cluster: Led, random: Random) -> None:
    for number in range(PODS):
        for ending, chance in (("/binding", 0.4), ("/binding", 0.2), ("/status", 0.1)):
            if random.random() < chance:
                path = pod_path(f"p{number}") + ending
                cluster.server.fail(random.choice(FAULTS), when=is_for(path))
    cluster.server.slowness = lambda request: slowness(request, random)


def is_for(path: str) -> Callable[[Request], bool]:
    return lambda request: request.path == path


def slowness(request: Request, random: Random) -> tuple[float, float]:
    if is_binding(request) or is_touch(request):
        return random.expovariate(20), random.expovariate(20)
    return 0.0, 0.0


@pytest.mark.simulated_time
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_storm(cluster: Led, seed: int) -> None:
    random = Random(seed)  # noqa: S311  the same trouble each time
    for number in range(1, NODES + 1):
        await cluster.put_node(f"n{number}", CARDS)
    names = [f"p{number}" for number in range(PODS)]
    for name in names:
        await cluster.put_pod(name, SIZE)
    make_trouble(cluster, random)
    watching = asyncio.create_task(watch_capacity(cluster))
    pods = [asyncio.create_task(schedule(cluster, name, random)) for name in names]
    await end_some(cluster, random, 60)
    await asyncio.sleep(120)  # unclear Bindings are settled by then, and requeued pods are bound
    assert not watching.done()
    watching.cancel()
    for task in pods:
        task.cancel()
    await asyncio.gather(watching, *pods, return_exceptions=True)

    left = [name for name in names if pod_path(name) in cluster.server.objects]
    bound = [name for name in left if cluster.bound_to(name)]
    assert len(bound) == min(len(left), SLOTS)  # every card is full, or no one waits
    assert max(used_mib(cluster).values()) == CARD_MIB
    assert cluster.leadership.ledger.reservations() == ()
    for name in bound:
        shown = cluster.shown(name)
        own = parse_own(shown.metadata.annotations[ASSIGNMENT], [], namespace="default")
        assert isinstance(own, OwnAssignment)
        held = {held.holder.pod: held for held in cluster.leadership.ledger.holders(shown.spec.node_name)}[shown.metadata.uid]
        assert (set(held.claims), held.taken, own.node) == ({Claim.BOUND}, own.taken, shown.spec.node_name)
    for name in left:
        await cluster.remove_pod(name)
    await cluster.pause(10)  # predictions are over
    assert [cluster.free_cards(node) for node in cluster.node_names()] == [CARDS] * NODES
    snapshot = cluster.leadership.ledger.snapshot()
    assert (snapshot.pods, snapshot.own, len(cluster.leadership.pending)) == ({}, {}, 0)
    assert all(not node.claims for node in snapshot.nodes.values())
