"""Test MIG instances as devices. Card n has instances by slot; slot s has the s-th profile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.assignment.model import Part, PlacedGpu
from central.ledger.model import CardCapacity, NodeCapacity
from central.rank.equivalence import class_in_any_order
from central.rank.score import score
from central.request.model import ContainerRequest, DeviceRequest, Policy, RdmaPolicy, Role, Scope
from central.search.demand import Limits, read_demand
from central.search.explain import explain
from central.search.fit import fit
from central.search.placement import Missing, NoFit, Placement
from central.search.topology import Distance
from tests.fakes.capacities import capacity, card, gpu_bdf, gpu_uuid, held, mig_card, mig_uuid, port, request, vf, vf_bdf, whole
from tests.unit.central.search.test_fit import missing, place

SMALL, LARGE = "1g.10gb", "3g.40gb"
SEVEN = (SMALL,) * 7


def instances(
    *containers: ContainerRequest, profile: str = SMALL, policy: Policy | None = None, model: str = ""
) -> DeviceRequest:
    return replace(request(*containers, policy=policy, gpu_model=model), mig_profile=profile)


def given_to(where: NodeCapacity, pod: DeviceRequest, policy: Policy = Policy.BINPACK) -> dict[str, list[str]]:
    """Return the MIG UUIDs by container."""
    result = fit(where, pod, policy=policy)
    assert isinstance(result, Placement), result
    return {name: [gpu.mig_uuid for gpu in placed.gpus] for name, placed in result.containers.items()}


def test_an_instance_is_given_with_its_card() -> None:
    result = place(capacity(card(0), mig_card(1, LARGE, SMALL)), instances(whole("a")))
    assert result.containers["a"].gpus == (PlacedGpu(uuid=gpu_uuid(1), bdf=gpu_bdf(1), mig_uuid=mig_uuid(1, 1)),)
    assert result.taken.gpus == {gpu_uuid(1): Part(mig=frozenset({mig_uuid(1, 1)}))}


def test_a_card_that_is_in_use_already_comes_first() -> None:
    where = capacity(mig_card(0, *SEVEN), mig_card(1, *SEVEN, held=range(3)), mig_card(2, *SEVEN, held=range(5)))
    assert given_to(where, instances(whole("a"))) == {"a": [mig_uuid(2, 5)]}
    assert given_to(where, instances(whole("a", 2))) == {"a": [mig_uuid(2, 5), mig_uuid(2, 6)]}
    assert given_to(where, instances(whole("a"), policy=Policy.SPREAD)) == {"a": [mig_uuid(0, 0)]}


def test_two_instances_and_one_vf_are_on_one_switch() -> None:
    """Check a choice of both together: one by one, the second instance would be beside another VF, which the container does not
    get."""
    cards = mig_card(0, SMALL, switch=0), mig_card(1, SMALL, switch=2), mig_card(2, SMALL, SMALL, switch=2)
    where = capacity(*cards, vfs=[vf(0, pf=port(0, switch=0)), vf(0, pf=port(1, switch=2))])
    result = place(where, instances(whole("a", 2, vfs=1)))
    assert result.distances.distance <= Distance.SWITCHES


def test_the_lowest_address_of_equal_cards_comes_first() -> None:
    assert given_to(capacity(mig_card(1, SMALL), mig_card(0, SMALL)), instances(whole("a"))) == {"a": [mig_uuid(0, 0)]}


def test_containers_of_one_phase_have_different_ones_and_init_containers_use_them_again() -> None:
    where = capacity(mig_card(0, SMALL, SMALL, SMALL))
    pod = instances(whole("init", 2, role=Role.INIT), whole("side", role=Role.SIDECAR), whole("a"), whole("b"))
    result = given_to(where, pod)
    assert sorted(result["side"] + result["a"] + result["b"]) == [mig_uuid(0, slot) for slot in range(3)]
    assert set(result["init"]) <= set(result["side"] + result["a"] + result["b"])
    assert missing(where, instances(whole("side", role=Role.SIDECAR), whole("init", 3, role=Role.INIT), whole("a"))) is (
        Missing.TOO_FEW_MIG
    )


def test_an_init_container_uses_again_what_the_apps_have_before_what_is_preferred() -> None:
    where = capacity(mig_card(0, SMALL, SMALL, SMALL), mig_card(1, SMALL, SMALL, SMALL))
    pod = instances(whole("init", 2, role=Role.INIT), whole("a"), whole("b"), policy=Policy.SPREAD)
    result = given_to(where, pod)
    assert sorted(result["init"]) == sorted(result["a"] + result["b"]) == [mig_uuid(0, 0), mig_uuid(1, 0)]


def test_vfs_are_near_the_card_of_the_instance() -> None:
    ports = [port(0), port(1)]
    vfs = [vf(0, pf=ports[0]), vf(0, pf=ports[1])]
    result = place(capacity(card(0), mig_card(2, SMALL), vfs=vfs), instances(whole("a", vfs=1)))
    assert [one.bdf for one in result.containers["a"].vfs] == [vf_bdf(0, pf=1)]


def test_each_instance_is_beside_a_vf_of_its_own_where_that_can_be() -> None:
    """Check that card 2 is not taken only for its fewer remaining instances: its switch has one VF."""
    vfs = [vf(0, pf=port(0)), vf(0, pf=port(1))]
    where = capacity(mig_card(0, *SEVEN), mig_card(2, *SEVEN, held=range(5)), vfs=vfs)
    assert given_to(where, instances(whole("a", 2, vfs=2))) == {"a": [mig_uuid(0, 0), mig_uuid(2, 5)]}
    assert given_to(where, instances(whole("a", 2))) == {"a": [mig_uuid(2, 5), mig_uuid(2, 6)]}


def test_all_of_a_container_lies_within_the_scope_that_it_requires() -> None:
    one_each = capacity(*(mig_card(number, SMALL) for number in range(8)), vfs=[vf(0, pf=port(3))])
    pod = instances(whole("a", 2))
    for scope, count in ((Scope.SWITCH, 2), (Scope.NUMA, 4), (Scope.ANY, 8)):
        scoped = replace(instances(whole("a", count)), scope=scope)
        assert len(given_to(one_each, scoped)["a"]) == count
    assert isinstance(fit(one_each, replace(instances(whole("a", 3)), scope=Scope.SWITCH), policy=Policy.BINPACK), NoFit)
    beside = replace(instances(whole("a", 2, vfs=1)), scope=Scope.SWITCH)
    assert given_to(one_each, beside) == {"a": [mig_uuid(6, 0), mig_uuid(7, 0)]}
    two = replace(instances(whole("a", 2), whole("b", 2)), scope=Scope.SWITCH)
    assert {tuple(uuids) for uuids in given_to(one_each, two).values()} == {
        (mig_uuid(0, 0), mig_uuid(1, 0)),
        (mig_uuid(2, 0), mig_uuid(3, 0)),
    }
    assert given_to(one_each, pod) == {"a": [mig_uuid(0, 0), mig_uuid(1, 0)]}


def test_a_vf_on_each_switch_keeps_off_switches_without_one() -> None:
    where = capacity(mig_card(0, SMALL, SMALL), mig_card(2, *SEVEN), vfs=[vf(0, pf=port(1))])
    pod = replace(instances(whole("a", vfs=1)), rdma_policy=RdmaPolicy.PER_SWITCH)
    assert given_to(where, pod) == {"a": [mig_uuid(2, 0)]}


@pytest.mark.parametrize("counts", [(1, 4), (4, 1)])
def test_a_container_leaves_the_switch_that_the_next_one_needs(counts: tuple[int, int]) -> None:
    """Put four instances below one switch, three below the other, and a VF on each: there is one way, and it is not the best
    for the smaller container."""
    cards = mig_card(0, SMALL, SMALL, switch=0), mig_card(1, SMALL, SMALL, switch=0), mig_card(2, SMALL, SMALL, SMALL, switch=1)
    where = capacity(*cards, vfs=[vf(0, pf=port(0, switch=0)), vf(0, pf=port(1, switch=1))])
    pod = replace(instances(*(whole(str(n), n, vfs=1) for n in counts)), rdma_policy=RdmaPolicy.PER_SWITCH)
    assert given_to(where, pod)["4"] == [mig_uuid(number, slot) for number in (0, 1) for slot in (0, 1)]


def test_a_container_that_leaves_a_switch_takes_the_preferred_instance_elsewhere() -> None:
    """Check the first container's second choice, because the second one needs all of the first switch."""
    of_one = (mig_card(number, SMALL, switch=0) for number in range(4))
    where = capacity(*of_one, mig_card(4, SMALL, SMALL, switch=1), mig_card(5, SMALL, SMALL, held={0}, switch=1))
    pod = replace(instances(whole("b"), whole("a", 4)), scope=Scope.SWITCH)
    assert given_to(where, pod) == {"b": [mig_uuid(5, 1)], "a": [mig_uuid(number, 0) for number in range(4)]}


def test_half_of_a_node_full_of_instances() -> None:
    """Check a request for which there are some 10^16 sets of instances."""
    where = capacity(*(mig_card(number, *SEVEN) for number in range(8)))
    assert len(set(given_to(where, instances(whole("a", 29)))["a"])) == 29


@pytest.mark.parametrize(
    ("cards", "pod", "expected"),
    [
        ([card(0)], instances(whole("a")), Missing.TOO_FEW_MIG),
        ([], instances(whole("a")), Missing.TOO_FEW_MIG),
        ([mig_card(0, LARGE, held={0})], instances(whole("a")), Missing.TOO_FEW_MIG),
        ([mig_card(0, SMALL)], instances(whole("a", 2)), Missing.TOO_FEW_MIG),
        ([mig_card(0, *SEVEN, held=range(6))], instances(whole("a", 2)), Missing.TOO_FEW_FREE_MIG),
        ([mig_card(0, *SEVEN, usable=False)], instances(whole("a")), Missing.UNHEALTHY),
        ([mig_card(0, SMALL)], instances(whole("a"), model="NVIDIA A30"), Missing.NO_MODEL),
        ([mig_card(0, SMALL), card(1, model="NVIDIA A30")], instances(whole("a"), model="NVIDIA A30"), Missing.TOO_FEW_MIG),
        ([mig_card(0, SMALL)], instances(whole("a", vfs=1)), Missing.TOO_FEW_VFS),
    ],
)
def test_the_reason_why_a_pod_with_instances_does_not_fit(
    cards: list[CardCapacity], pod: DeviceRequest, expected: Missing
) -> None:
    assert missing(capacity(*cards), pod) is expected


def test_the_mode_decides_what_a_card_is_given_as() -> None:
    both = capacity(card(0), mig_card(1, SMALL))
    assert missing(both, request(whole("a", 2))) is Missing.TOO_FEW_GPUS
    assert missing(both, instances(whole("a", 2))) is Missing.TOO_FEW_MIG


def test_an_instance_is_not_shared_by_count() -> None:
    pod = instances(whole("a"), policy=Policy.SPREAD)
    assert [one.whole for one in read_demand(pod, Policy.SPREAD, Limits(spread_containers_per_card=3)).cards] == [True]


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        (
            [mig_card(0, *SEVEN, held=range(6)), mig_card(1, SMALL, usable=False)],
            ["2 MIG instances 1g.10gb", "6 held", "1 free"],
        ),
        ([mig_card(0, LARGE, LARGE)], ["2 3g.40gb"]),
        ([card(0)], ["no MIG instance"]),
    ],
)
def test_why_says_which_there_are(cards: list[CardCapacity], words: list[str]) -> None:
    where, pod = capacity(*cards), instances(whole("a", 2))
    text = explain(where, pod, missing(where, pod), policy=Policy.BINPACK)
    for word in words:
        assert word in text
    where = capacity(mig_card(0, SMALL, SMALL, usable=False))
    assert "cordoned" in explain(where, pod, missing(where, pod), policy=Policy.BINPACK)


def test_the_fuller_node_by_instances_of_that_profile_comes_first() -> None:
    full, empty = capacity(mig_card(0, *SEVEN, held=range(3)), held(1)), capacity(mig_card(0, *SEVEN), held(1))
    pod = instances(whole("a"))
    assert score(full, pod, policy=Policy.BINPACK) > score(empty, pod, policy=Policy.BINPACK)
    assert score(full, pod, policy=Policy.SPREAD) < score(empty, pod, policy=Policy.SPREAD)


def test_capacities_with_other_instances_are_in_other_equivalence_classes() -> None:
    capacities = [
        capacity(mig_card(0, SMALL, LARGE)),
        capacity(mig_card(0, SMALL, LARGE, held={0})),
        capacity(mig_card(0, SMALL, LARGE, held={1})),
        capacity(mig_card(0, "1g.10gb+me", LARGE)),
    ]
    assert len({class_in_any_order(one) for one in capacities}) == len(capacities)
    assert class_in_any_order(capacity(mig_card(0, SMALL, LARGE))) == class_in_any_order(capacity(mig_card(3, LARGE, SMALL)))


cards_in_mig_mode = st.lists(
    st.tuples(st.lists(st.sampled_from([SMALL, LARGE]), max_size=3), st.sets(st.integers(0, 2)), st.booleans()), max_size=3
)
asking = st.lists(st.tuples(st.sampled_from(Role), st.integers(1, 3)), min_size=1, max_size=4)


@given(cards_in_mig_mode, asking, st.sampled_from([Policy.BINPACK, Policy.SPREAD]))
def test_a_pod_fits_exactly_if_there_are_enough_instances_at_every_moment(
    cards: list[tuple[list[str], set[int], bool]], containers: list[tuple[Role, int]], policy: Policy
) -> None:
    where = capacity(
        *(
            mig_card(n, *profiles, held={slot for slot in taken if slot < len(profiles)}, usable=usable)
            for n, (profiles, taken, usable) in enumerate(cards)
        )
    )
    starting = sorted(containers, key=lambda one: one[0] is Role.APP)
    pod = instances(*(whole(str(n), count, role=role) for n, (role, count) in enumerate(starting)))
    free = {
        mig.uuid
        for one in where.cards
        for mig in one.gpu.mig
        if one.usable and mig.profile == SMALL and mig.uuid in one.free_mig
    }
    sidecars: list[str] = []
    moments = []
    for container in pod.containers:
        if container.role is Role.INIT:
            moments.append([*sidecars, container.name])
        if container.role is Role.SIDECAR:
            sidecars.append(container.name)
    moments.append([container.name for container in pod.containers if container.role is not Role.INIT])
    counts = {container.name: container.gpus for container in pod.containers}
    most = max(sum(counts[name] for name in names) for names in moments)
    result = fit(where, pod, policy=policy)
    assert isinstance(result, Placement) == (most <= len(free))
    if isinstance(result, Placement):
        chosen = {name: [gpu.mig_uuid for gpu in placed.gpus] for name, placed in result.containers.items()}
        assert {name: len(uuids) for name, uuids in chosen.items()} == counts
        assert {uuid for uuids in chosen.values() for uuid in uuids} <= free
        for names in moments:
            together = [uuid for name in names for uuid in chosen[name]]
            assert len(together) == len(set(together))
