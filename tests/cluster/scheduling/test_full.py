"""Every card is someone's: who comes later waits, is told why, and has the first card that comes free."""

import time
from functools import partial
from statistics import median

import pytest

from central.search.placement import Missing
from simnode.patience import Wait
from tests.cluster.pods import Pods
from tests.cluster.scheduling.books import by_assignment
from tests.cluster.scheduling.world import World

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

TURNS = 20
IDLE_S = 2.0  # between a release and the Binding; a pod that central does not requeue waits up to five minutes
SMALL = 40


def test_a_pod_that_waits_has_a_reason_and_gets_the_card_that_comes_free(world: World, pods: Pods) -> None:
    world.run(pods, *(f"full-{n}" for n in range(8)), gpu=1)
    world.create(pods, "late", gpu=1)
    world.create(pods, "impossible", gpu=9)
    assert Missing.TOO_FEW_FREE_GPUS.shown in pods.wait_event("late", "FailedScheduling")
    assert Missing.TOO_FEW_GPUS.shown in pods.wait_event("impossible", "FailedScheduling")
    why = world.why("late")
    assert [(node["node"], node["reason"]) for node in why["nodes"]] == [(world.node, Missing.TOO_FEW_FREE_GPUS)]
    freed = world.assigned("full-3")
    pods.delete("full-3")
    pods.wait_ready("late")
    assert world.assigned("late") == freed
    world.check(pods, "late")
    assert not world.bound("impossible")


def test_after_a_release_the_next_pod_is_bound_without_idle_time(world: World, pods: Pods) -> None:
    """Look at the API server, from when the pod has ended and no report names its grant, to when the next one is bound."""
    running = [f"turn-{n}" for n in range(8)]
    waiting = [f"turn-{n}" for n in range(8, 8 + TURNS)]
    world.run(pods, *running, gpu=1)
    for name in waiting:
        world.create(pods, name, gpu=1)
    for name in waiting:
        world.await_refused(name)
    seconds = []
    while waiting:
        gone = running.pop(0)
        uid, freed = world.uid(gone), world.assigned(gone)
        pods.forget(gone)
        world.api.delete_pod(gone)
        seconds.append(_until_bound(world, uid, waiting))
        (bound,) = set(waiting) - set(world.waiting(waiting))
        waiting.remove(bound)
        running.append(bound)
        assert world.assigned(bound) == freed
        pods.wait_ready(bound)
    world.check(pods, *running)
    seconds.sort()
    print(f"measured: from release to binding: p50 {median(seconds):.3f} s, p99 {seconds[-1]:.3f} s, {len(seconds)} turns")


def _until_bound(world: World, uid: str, waiting: list[str]) -> float:
    """Return the seconds, at most, from the last look at which the device was held. Raise HostError if nothing works for
    IDLE_S after that."""
    held_at, wait = time.monotonic(), Wait("the release")
    while True:
        began = time.monotonic()
        pods = {pod["metadata"]["name"]: pod for pod in world.api.pods()}
        held = uid in by_assignment(pods.values()) or uid in world.reported()  # kubelet ends a pod before it removes it
        if any("nodeName" in pods[name]["spec"] for name in waiting):
            assert not held, "bound before the release"
            return time.monotonic() - held_at
        if held:
            held_at, wait = began, Wait("a Binding after the release", idle_s=IDLE_S)
        time.sleep(wait.scan())


def test_small_shares_fill_cards_to_the_brim_and_not_beyond(world: World, pods: Pods) -> None:
    """Five of 15 GiB on a card of 79: eight cards take forty."""
    began = time.monotonic()
    names = [f"small-{n}" for n in range(SMALL + 4)]
    for name in names:
        world.create(pods, name, memory="15Gi", core=20)
    world.cluster.eventually(lambda: len(world.waiting(names)) == 4, "forty bound pods", within_s=120.0)
    print(f"measured: {SMALL} shares bound on one node in {time.monotonic() - began:.1f} s")
    bound = [name for name in names if world.bound(name)]
    for name in bound:
        world.cluster.eventually(partial(pods.ready, name), f"a ready pod {name}", within_s=240.0)
    world.check(pods, *bound[::8])
    assert len(world.ledger()) == SMALL
    assert Missing.NO_CARD_WITH_ROOM.shown in world.await_refused(world.waiting(names)[0])
