"""Compare the choice of MIG instances with a brute-force oracle, which uses no code of central/search.

The oracle tries, for each container, every set of instances with every set of VFs. Nodes are random; pods have several
containers, VFs and scopes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from central.ledger.model import NodeCapacity, VfCapacity
from central.request.model import ContainerRequest, DeviceRequest, Policy, RdmaPolicy, Role, Scope
from central.search.demand import Limits
from central.search.fit import fit
from central.search.placement import Placement
from tests.depth import repeats
from tests.fakes.capacities import capacity, mig_card, port, request, vf, whole
from tests.properties.test_joint import distances

SMALL, LARGE = "1g.10gb", "3g.40gb"
UNBOUNDED = Limits(search_steps=1_000_000)
PER_SITE = {Scope.SWITCH: 1, Scope.NUMA: 2, Scope.SOCKET: 2, Scope.ANY: 100}  # switches, as tests.fakes.capacities numbers them
Devices = frozenset[str]


# ---- the oracle


def moments(pod: DeviceRequest) -> dict[str, frozenset[int]]:
    """Return the phases in which each container runs: phase n is the n-th init container's, the last is that of the apps."""
    inits = [number for number, one in enumerate(pod.containers) if one.role is Role.INIT]
    last = len(inits)
    running = {}
    for number, one in enumerate(pod.containers):
        match one.role:
            case Role.INIT:
                running[one.name] = frozenset({inits.index(number)})
            case Role.SIDECAR:
                running[one.name] = frozenset({last, *(time for time, init in enumerate(inits) if init > number)})
            case Role.APP:
                running[one.name] = frozenset({last})
    return running


def switches(where: NodeCapacity) -> Mapping[str, int]:
    """Return the switch of each MIG instance and each VF."""
    of_place = {f"0000:{0x80 + number:02x}:01.0": number for number in range(8)}
    instances = {mig.uuid: of_place[card.gpu.place.path[1]] for card in where.cards for mig in card.gpu.mig}
    return instances | {one.vf.bdf: of_place[one.pf.place.path[1]] for one in where.vfs}


def free_instances(where: NodeCapacity) -> list[str]:
    return [
        mig.uuid
        for card in where.cards
        for mig in card.gpu.mig
        if card.usable and mig.profile == SMALL and mig.uuid in card.free_mig
    ]


def is_right(
    where: NodeCapacity, pod: DeviceRequest, one: ContainerRequest, instances: Sequence[str], vfs: Sequence[str]
) -> bool:
    at = switches(where)
    if len(instances) != one.gpus or len({at[device] // PER_SITE[pod.scope] for device in (*instances, *vfs)}) > 1:
        return False
    if not one.vfs:
        return not vfs
    if pod.rdma_policy is RdmaPolicy.PER_SWITCH:
        wanted = {at[instance]: one.vfs for instance in instances}
        return wanted == {switch: sum(at[name] == switch for name in vfs) for switch in {at[name] for name in vfs}}
    if pod.rdma_policy is RdmaPolicy.PER_PF:
        pf_of: dict[str, str] = {each.vf.bdf: each.pf.bdf for each in where.vfs}
        usable: set[str] = {each.pf.bdf for each in where.vfs if each.usable}
        return bool(usable) and all(sum(pf_of[name] == pf for name in vfs) == one.vfs for pf in usable)
    return len(vfs) == one.vfs


def choices(where: NodeCapacity, pod: DeviceRequest, one: ContainerRequest) -> Iterator[Devices]:
    vfs = [each.vf.bdf for each in where.vfs if each.free]
    for instances in combinations(free_instances(where), one.gpus):
        for size in range(len(vfs) + 1) if one.vfs else (0,):
            for some in combinations(vfs, size):
                if is_right(where, pod, one, instances, some):
                    yield frozenset((*instances, *some))


def is_possible(where: NodeCapacity, pod: DeviceRequest) -> bool:
    running = moments(pod)
    of_each = [(running[one.name], set(choices(where, pod, one))) for one in pod.containers]

    @cache
    def rest(number: int, used: tuple[Devices, ...]) -> bool:
        if number == len(of_each):
            return True
        times, ways = of_each[number]
        taken = frozenset[str]().union(*(used[time] for time in times))
        return any(
            rest(number + 1, tuple(had | way if time in times else had for time, had in enumerate(used)))
            for way in ways
            if not taken & way
        )

    return rest(0, (frozenset(),) * (1 + max(max(times) for times in running.values())))


# ---- the fit


def keeps_the_rules(where: NodeCapacity, pod: DeviceRequest, placement: Placement) -> bool:
    running, free = moments(pod), {*free_instances(where), *(one.vf.bdf for one in where.vfs if one.free)}
    used: dict[int, set[str]] = {time: set() for times in running.values() for time in times}
    for one in pod.containers:
        placed = placement.containers[one.name]
        instances, vfs = [gpu.mig_uuid for gpu in placed.gpus], [each.bdf for each in placed.vfs]
        devices = {*instances, *vfs}
        if not devices <= free or not is_right(where, pod, one, instances, vfs):
            return False
        for time in running[one.name]:
            if devices & used[time]:
                return False
            used[time] |= devices
    return True


profiles = st.lists(st.sampled_from([SMALL, SMALL, SMALL, LARGE]), min_size=1, max_size=3)
cards = st.lists(st.tuples(st.integers(0, 3), profiles), min_size=2, max_size=4)
ports = st.lists(st.tuples(st.integers(0, 3), st.lists(st.booleans(), min_size=1, max_size=2)), max_size=4)
nodes = st.builds(
    lambda cards, ports: capacity(
        *(mig_card(n, *profiles, switch=switch) for n, (switch, profiles) in enumerate(cards)),
        vfs=[
            vf(k, pf=port(n, switch=switch), held=held) for n, (switch, some) in enumerate(ports) for k, held in enumerate(some)
        ],
    ),
    cards,
    ports,
)
roles = st.sampled_from([Role.APP, Role.APP, Role.SIDECAR, Role.INIT])
containers = st.lists(st.tuples(roles, st.integers(1, 3), st.sampled_from([1, 1, 0])), min_size=1, max_size=3)
# VFs of every PF are within no scope: parse.py refuses to ask for both.
places = st.tuples(st.sampled_from([RdmaPolicy.PER_SWITCH, *RdmaPolicy]), st.sampled_from(Scope)).map(
    lambda one: (one[0], Scope.ANY if one[0] is RdmaPolicy.PER_PF else one[1])
)


@pytest.mark.repeats
@settings(max_examples=repeats(40, long=2_000), deadline=None)
@given(nodes, containers, places, st.sampled_from([Policy.BINPACK, Policy.SPREAD]))
def test_instances_are_found_exactly_where_there_is_a_way(
    where: NodeCapacity, requested: list[tuple[Role, int, int]], bound_to: tuple[RdmaPolicy, Scope], policy: Policy
) -> None:
    rdma, scope = bound_to
    starting = sorted(requested, key=lambda one: one[0] is Role.APP)
    made = request(
        *(whole(str(n), count, role=role, vfs=vfs) for n, (role, count, vfs) in enumerate(starting)),
        rdma_policy=rdma,
        scope=scope,
    )
    pod = replace(made, mig_profile=SMALL)
    result = fit(where, pod, policy=policy, limits=UNBOUNDED)
    assert isinstance(result, Placement) == is_possible(where, pod)
    if isinstance(result, Placement):
        assert keeps_the_rules(where, pod, result)


APART = [(1, [SMALL, SMALL]), (2, [SMALL]), (3, [SMALL])]
BESIDE = capacity(  # two instances of one card, far from VFs, or two of different cards, each beside a VF
    *(mig_card(number, *profiles, switch=switch) for number, (switch, profiles) in enumerate(APART)),
    vfs=[vf(k, pf=port(n, switch=switch)) for n, (switch, some) in enumerate([(0, 2), (2, 1), (3, 1)]) for k in range(some)],
)


@pytest.mark.repeats
@settings(max_examples=repeats(25, long=1_000), deadline=None)
@example(BESIDE, 2, 2, Scope.NUMA)
@given(nodes, st.integers(1, 3), st.integers(1, 2), st.sampled_from([Scope.ANY, Scope.NUMA]))
def test_the_instances_of_one_container_are_as_near_to_its_vfs_as_can_be(
    where: NodeCapacity, count: int, vfs: int, scope: Scope
) -> None:
    pod = replace(request(whole("a", count, vfs=vfs), scope=scope), mig_profile=SMALL)
    result = fit(where, pod, policy=Policy.BINPACK)
    card_of = {mig.uuid: card for card in where.cards for mig in card.gpu.mig}
    vf_of: dict[str, VfCapacity] = {one.vf.bdf: one for one in where.vfs}
    worst = {
        distances([card_of[name] for name in way if name in card_of], [vf_of[name] for name in way if name in vf_of])[0]
        for way in choices(where, pod, pod.containers[0])
    }
    assert (result.distances.distance if isinstance(result, Placement) else None) == min(worst, default=None)
