"""Test a cluster whose cards are all held: a new pod waits, learns the reason, and gets the first card that becomes free."""

import time
from functools import partial
from statistics import median

import pytest

from central.search.placement import Missing
from tests.cluster.pods import Pods
from tests.cluster.scheduling.books import by_assignment
from tests.cluster.scheduling.world import SCAN_S, World

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

TURNS = 20
REQUEUED_S = 2.0  # the time that the issue allows from central's look at a release to the Binding
SMALL = 40


def test_a_pod_that_waits_is_given_the_reason_and_gets_the_card_that_comes_free(world: World, pods: Pods) -> None:
    world.run(pods, *(f"full-{n}" for n in range(8)), gpu=1)
    world.create(pods, "late", gpu=1)
    world.create(pods, "impossible", gpu=9)
    assert Missing.TOO_FEW_FREE_GPUS.shown in pods.wait_event("late", "FailedScheduling")
    assert Missing.TOO_FEW_GPUS.shown in pods.wait_event("impossible", "FailedScheduling")
    reason = world.why("late")
    assert [(node["node"], node["reason"]) for node in reason["nodes"]] == [(world.node, Missing.TOO_FEW_FREE_GPUS)]
    freed = world.assigned("full-3")
    pods.delete("full-3")
    pods.wait_ready("late")
    assert world.assigned("late") == freed
    world.check(pods, "late")
    assert not world.bound("impossible")


def test_from_release_to_binding_in_time(world: World, pods: Pods) -> None:
    """Measure at the API server from the time when the pod has ended and no report has its grant to the Binding of the next
    pod."""
    running = [f"turn-{n}" for n in range(8)]
    waiting = [f"turn-{n}" for n in range(8, 8 + TURNS)]
    world.run(pods, *running, gpu=1)
    for name in waiting:
        world.create(pods, name, gpu=1)
    for name in waiting:
        world.await_refused(name)
    seconds = []
    while waiting:
        deleted = running.pop(0)
        uid, freed = world.uid(deleted), world.assigned(deleted)
        pods.forget(deleted)
        world.api.delete_pod(deleted)
        seconds.append(_until_bound(world, uid, waiting))
        (bound,) = set(waiting) - set(world.waiting(waiting))
        waiting.remove(bound)
        running.append(bound)
        assert world.assigned(bound) == freed
        pods.wait_ready(bound)
    world.check(pods, *running)
    seconds.sort()
    print(f"measured: from release to binding: p50 {median(seconds):.3f} s, p99 {seconds[-1]:.3f} s, {len(seconds)} turns")
    assert seconds[-1] < REQUEUED_S


def _until_bound(world: World, uid: str, waiting: list[str]) -> float:
    """Return the maximum number of seconds from the last reading in which the device was held to the Binding."""
    held_at = time.monotonic()
    while True:
        began = time.monotonic()
        pods = {pod["metadata"]["name"]: pod for pod in world.api.pods()}
        held = uid in by_assignment(pods.values()) or uid in world.reported()  # kubelet ends a pod before it removes it
        if any("nodeName" in pods[name]["spec"] for name in waiting):
            assert not held, "bound before the release"
            return time.monotonic() - held_at
        if held:
            held_at = began
        time.sleep(SCAN_S)  # the accuracy of the measured time


def test_small_shares_fill_cards_to_the_brim_and_not_beyond(world: World, pods: Pods) -> None:
    """Check that a card of 79 GiB takes five shares of 15 GiB, and eight cards forty."""
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
