"""What would be is what the ledger would show, had it happened."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from central.ask.model import Requests
from central.assignment.model import Part, PlacedContainer, Taken
from central.fit.model import Missing, NoFit, Placement
from central.ledger.model import NodeRoom
from central.view.whatif import Put, WhatIf, has_resources, take_from
from tests.fakes.ended import end_pod
from tests.fakes.kube_objects import WHOLE, share, vfs
from tests.fakes.rooms import mig_card, mig_uuid, room
from tests.unit.central.world import World, uid_of

LIMITS = st.sampled_from(
    [WHOLE, {"lading.dev/gpu": "2"}, share("10Gi"), share("30Gi", 40), share(core=30), vfs(1), WHOLE | vfs(2)]
)
LABELS = st.sampled_from([{}, {"lading.dev/share-exclusion": "x"}, {"lading.dev/share-anti-affinity": "y"}])


def _comparable(of: NodeRoom) -> NodeRoom:
    return replace(of, version=0)


def _labelled(limits: Mapping[str, str], labels: Mapping[str, str]) -> Mapping[str, str]:
    return labels if any("gpu-" in resource for resource in limits) else {}


@settings(max_examples=60, deadline=None)
@given(pods=st.lists(st.tuples(LIMITS, LABELS), min_size=1, max_size=6), gone=st.sets(st.integers(0, 5)))
def test_a_room_is_as_after_the_binding(pods: list[tuple[dict[str, str], dict[str, str]]], gone: set[int]) -> None:
    """The last pod would be put there, and some of the others would be gone."""
    made = World()
    made.node("n1", 3, 3)
    made.readiness("n1", True, allocatable={"cpu": "64", "memory": "256Gi"})
    *before, (limits, labels) = pods
    bound = []
    for number, (its, words) in enumerate(before):
        made.show(f"p{number}", its, annotations=_labelled(its, words))
        if made.filter(f"p{number}", "n1").fitting:
            made.bind(f"p{number}", "n1", its, requests={"cpu": "2", "memory": "4Gi"})
            bound.append(number)
        else:
            made.gone(f"p{number}")
    going = [uid_of(f"p{number}") for number in bound if number in gone]
    made.show("last", limits, annotations=_labelled(limits, labels), requests={"cpu": "1500m", "memory": "1Gi"})
    pod = made.pending_pod("last")
    state = WhatIf(scheduler=made.scheduler, gone=frozenset(going))
    put = state.place(pod.ask, "n1", pod.requests)
    for uid in going:
        end_pod(made.ledger, uid)
    assert _comparable(state.room("n1")) == _comparable(made.ledger.room("n1"))
    placement = made.scheduler.placement(pod, "n1")
    assert (put and put.placement) == placement
    if put is None:
        return
    would_be = state.with_put(put).room("n1")
    assert made.ledger.reserve(pod.uid, "n1", put.placement.taken, 1, pod.holder, pod.requests) is None
    assert _comparable(would_be) == _comparable(made.ledger.room("n1"))


def test_a_mig_instance_is_taken_alone() -> None:
    before = room(mig_card(0, "1g.10gb", "1g.10gb"))
    taken = Taken(gpus={before.cards[0].gpu.uuid: Part(mig=frozenset({mig_uuid(0, 0)}))})
    after = take_from(before, Placement(containers={"main": PlacedContainer()}, taken=taken))
    assert after.cards[0].free_mig == (mig_uuid(0, 1),)
    assert after.cards[0].pods == 1


def test_two_of_one_affinity_group_would_be_on_one_card() -> None:
    made = World()
    for name in ("n1", "n2"):
        made.node(name, 1)
    for name in ("a", "b"):
        made.show(name, share("10Gi"), annotations={"lading.dev/share-affinity": "x"})
    ask = made.pending_pod("a").ask
    state = WhatIf(scheduler=made.scheduler)
    put = state.place(ask, "n1", made.pending_pod("a").requests)
    assert isinstance(put, Put)
    assert state.with_put(put).verdict(ask, "n2") == NoFit(missing=Missing.GROUP_ELSEWHERE)
    assert isinstance(state.with_put(put).verdict(ask, "n1"), Placement)


def test_a_node_that_is_known_to_lack_cpu_or_memory() -> None:
    some = replace(room(), cpu_milli=1000, memory_mib=1024)
    asked = Requests(1001, 10)
    assert has_resources(some, asked)
    assert not has_resources(replace(some, resources_known=True), asked)
    assert not has_resources(replace(some, resources_known=True), Requests(10, 1025))
    assert has_resources(replace(some, resources_known=True), Requests(1000, 1024))
