"""Test that an overlay shows what the ledger shows once the same changes have happened."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from central.assignment.model import Part, Taken
from central.ledger.model import ONE_EACH, NodeCapacity
from central.ledger.overlay import Put, capacity_on_rails, free_rails, rails_of, widest
from central.ledger.usage import Hold
from central.request.model import CpuMemory
from central.search.placement import Missing, NoFit, Placement
from central.view.moves import place
from tests.fakes.capacities import capacity, gpu_uuid, pf_bdf, vf_bdf
from tests.fakes.ended import end_pod
from tests.fakes.kube_objects import WHOLE, share, vfs
from tests.unit.central.ledger.facts import free_vfs, gpu, ledger_of, mig_uuid, pod, port, report, taken
from tests.unit.central.world import World, uid_of

LIMITS = st.sampled_from(
    [WHOLE, {"lading.dev/gpu": "2"}, share("10Gi"), share("30Gi", 40), share(core=30), vfs(1), WHOLE | vfs(2)]
)
LABELS = st.sampled_from(
    [{}, {"lading.dev/share-exclusion": "x"}, {"lading.dev/share-anti-affinity": "y"}, {"lading.dev/isolation": "tokens"}]
)


def _comparable(of: NodeCapacity) -> NodeCapacity:
    return replace(of, version=0)


def _labelled(limits: Mapping[str, str], labels: Mapping[str, str]) -> Mapping[str, str]:
    return labels if any("gpu-" in resource for resource in limits) else {}


@settings(max_examples=60, deadline=None)
@given(pods=st.lists(st.tuples(LIMITS, LABELS), min_size=1, max_size=6), deleted=st.sets(st.integers(0, 5)))
def test_a_room_is_as_after_the_binding(pods: list[tuple[dict[str, str], dict[str, str]]], deleted: set[int]) -> None:
    """Compare the overlay with the ledger after the last pod is placed there and some of the others have ended."""
    made = World()
    made.node("n1", 3, 3, isolations=["none", "tokens"])
    made.readiness("n1", True, allocatable={"cpu": "64", "memory": "256Gi"})
    *before, (limits, labels) = pods
    bound = []
    for number, (its, text) in enumerate(before):
        made.show(f"p{number}", its, annotations=_labelled(its, text))
        if made.filter(f"p{number}", "n1").fitting:
            made.bind(f"p{number}", "n1", its, requests={"cpu": "2", "memory": "4Gi"})
            bound.append(number)
        else:
            made.deleted(f"p{number}")
    going = [uid_of(f"p{number}") for number in bound if number in deleted]
    made.show("last", limits, annotations=_labelled(limits, labels), requests={"cpu": "1500m", "memory": "1Gi"})
    pod = made.pending_pod("last")
    state = made.ledger.without(*going)
    put = place(made.scheduler, state, pod, "n1")
    for uid in going:
        end_pod(made.ledger, uid)
    assert _comparable(state.capacity("n1")) == _comparable(made.ledger.capacity("n1"))
    placement = made.scheduler.placement(pod, "n1")
    assert (put and put.hold.taken) == (placement and placement.taken)
    if put is None:
        return
    would_be = state.with_put(put).capacity("n1")
    assert made.ledger.claims.reserve(pod.uid, "n1", put.hold.taken, 1, pod.holder, pod.cpu_memory) is None
    assert _comparable(would_be) == _comparable(made.ledger.capacity("n1"))


def test_a_mig_instance_is_taken_alone() -> None:
    ledger = ledger_of(report(gpus=[gpu(0, mig=2)]))
    hold = Hold(Taken(gpus={gpu_uuid(0): Part(mig=frozenset({mig_uuid(0)}))}), ONE_EACH)
    (card,) = ledger.without().with_put(Put(node="n1", hold=hold)).capacity("n1").cards
    assert (card.free_mig, card.pods) == ((mig_uuid(1),), 1)


def test_two_of_one_affinity_group_would_be_on_one_card() -> None:
    made = World.of(n1=1, n2=1)
    for name in ("a", "b"):
        made.show(name, share("10Gi"), annotations={"lading.dev/share-affinity": "x"})
    pod, state = made.pending_pod("a"), made.ledger.without()
    put = place(made.scheduler, state, pod, "n1")
    assert put is not None
    assert made.scheduler.verdict(pod.request, "n2", state.with_put(put)) == NoFit(missing=Missing.GROUP_ELSEWHERE)
    assert isinstance(made.scheduler.verdict(pod.request, "n1", state.with_put(put)), Placement)


def test_a_node_that_is_known_to_lack_cpu_or_memory() -> None:
    some = replace(capacity(), cpu_milli=1000, memory_mib=1024)
    requested = CpuMemory(1001, 10)
    assert some.has_resources(requested)
    assert not replace(some, resources_reported=True).has_resources(requested)
    assert not replace(some, resources_reported=True).has_resources(CpuMemory(10, 1025))
    assert replace(some, resources_reported=True).has_resources(CpuMemory(1000, 1024))


def test_a_node_that_reports_rails_after_its_upgrade_has_them_and_keeps_what_pods_hold() -> None:
    ledger = ledger_of(report())
    ledger.facts.set_pod(pod("p", node="n1", takes=taken({}, vfs=[1])))
    assert rails_of(ledger.capacity("n1"), {vf_bdf(1)}) == frozenset()
    ledger.facts.set_report(report(version=2, pfs=[msgspec.structs.replace(port(), rail=5)]))
    assert rails_of(ledger.capacity("n1"), {vf_bdf(1)}) == {5}
    assert free_vfs(ledger.capacity("n1")) == [0, 2, 3]
    assert ledger.take_freed() == ()  # a new rail lets no other pod fit
    ledger.facts.set_report(report(version=3))  # and back
    assert rails_of(ledger.capacity("n1"), {vf_bdf(1)}) == frozenset()


def test_on_other_rails_no_vf_is_free() -> None:
    second = msgspec.structs.replace(port(), bdf=pf_bdf(1), rail=1, vfs=())
    ledger = ledger_of(report(pfs=[msgspec.structs.replace(port(), rail=0), second]))
    state = ledger.without()
    assert free_vfs(state.on_rails(frozenset({0})).capacity("n1")) == [0, 1, 2, 3]
    assert free_vfs(state.on_rails(frozenset({1})).capacity("n1")) == []
    assert free_rails(state.on_rails(frozenset({0})).capacity("n1")) == {0}
    assert free_vfs(state.capacity("n1")) == [0, 1, 2, 3]


def test_without_any_rail_a_node_is_as_it_is() -> None:
    capacity = ledger_of(report()).capacity("n1")
    assert capacity_on_rails(capacity, frozenset({1})) is capacity


def test_a_set_of_rails_within_another_one_is_no_other_set() -> None:
    low, half, high, none = frozenset({0, 1}), frozenset({0}), frozenset({2, 3}), frozenset[int]()
    assert widest({low: 1, half: 5, high: 2, none: 9}) == [high, low]
