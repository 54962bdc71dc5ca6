"""Check the fit by brute force on small nodes and pods: it finds a placement exactly if one exists.

The oracle tries every placement of a pod. For each phase of the pod's life it checks, without central's code, which devices the
containers may use together."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from central.ledger.model import CardCapacity, NodeCapacity
from central.rank.equivalence import class_in_any_order
from central.rank.score import score
from central.request.model import ContainerRequest, DeviceRequest, Policy, RdmaPolicy, Role, Scope
from central.search.demand import Limits
from central.search.explain import explain
from central.search.fit import fit
from central.search.placement import NoFit, Placement
from central.search.topology import Distance, distance
from lading.nodedevices import Gpu, NvLink
from tests.depth import repeats
from tests.fakes.capacities import MODEL, capacity, card, gpu_uuid, port, rdma, request, share, vf, whole

SIZES = [8, 10, 16]
OTHER = "NVIDIA A10"
UNBOUNDED = Limits(search_steps=1_000_000)

policies = st.sampled_from(Policy)


@st.composite
def cards(draw: st.DrawFn, number: int) -> CardCapacity:
    size = draw(st.sampled_from(SIZES))
    kind = draw(st.sampled_from(["free", "free", "shared", "shared", "held", "odd"]))
    unlucky = kind == "odd"
    return card(
        number,
        usable_mib=size,
        free_mib=draw(st.integers(0, size)) if kind == "shared" else 0 if kind == "held" else None,
        free_core=draw(st.sampled_from([30, 60, 100])) if kind == "shared" else 0 if kind == "held" else None,
        containers=1 if kind in {"shared", "held"} else 0,
        usable=not unlucky or draw(st.booleans()),
        mig_enabled=unlucky and draw(st.booleans()),
        model=OTHER if unlucky and draw(st.booleans()) else MODEL,
        switch=draw(st.sampled_from([0, 1, None])),
        nvlinks=[NvLink(count=2, to=gpu_uuid(0))] if draw(st.booleans()) else [],
    )


@st.composite
def capacities(draw: st.DrawFn, most: int = 3) -> NodeCapacity:
    ports = [port(0), port(1)]
    vfs = [
        vf(n, pf=ports[n % 2], held=draw(st.booleans()), usable=draw(st.sampled_from([True, True, False])))
        for n in range(draw(st.integers(0, 4)))
    ]
    return capacity(*(draw(cards(n)) for n in range(draw(st.integers(0, most)))), vfs=vfs)


@st.composite
def containers(draw: st.DrawFn, name: str) -> ContainerRequest:
    role = draw(st.sampled_from(Role))
    vfs = draw(st.sampled_from([0, 0, 1, 2]))
    kind = draw(st.sampled_from(["whole", "memory", "core", "both", "vfs"]))
    memory_mib = draw(st.integers(1, 10)) if kind in {"memory", "both"} else None
    core_percent = draw(st.sampled_from([10, 40, 60, 100])) if kind in {"core", "both"} else None
    match kind:
        case "whole":
            return whole(name, draw(st.integers(1, 2)), role=role, vfs=vfs)
        case "vfs":
            return rdma(name, vfs or 1, role=role)
        case _:
            return share(name, memory_mib, core_percent, role=role, vfs=vfs, cards=draw(st.sampled_from([1, 1, 2])))


@st.composite
def is_judged(draw: st.DrawFn, most: int = 3) -> DeviceRequest:
    named = [draw(containers(name)) for name in "abc"[: draw(st.integers(1, most))]]
    starting = sorted(named, key=lambda one: one.role is Role.APP)
    return request(*starting, policy=draw(st.sampled_from([None, *Policy])), gpu_model=draw(st.sampled_from(["", "", MODEL])))


# Where it is decided only by all containers together: cards of several sizes, some partly held, and mostly shares.
tight_capacities = st.lists(
    st.tuples(st.sampled_from(SIZES), st.sampled_from([None, None, 4, 6, 9])), min_size=1, max_size=3
).map(
    lambda sizes: capacity(
        *(card(n, usable_mib=size, free_mib=free and min(free, size)) for n, (size, free) in enumerate(sizes))
    )
)
tight_containers = st.one_of(
    st.builds(share, st.just("x"), st.integers(2, 9), st.none(), role=st.sampled_from(Role), cards=st.sampled_from([1, 2])),
    st.builds(share, st.just("x"), st.integers(2, 9), st.sampled_from([20, 50, 60]), role=st.sampled_from(Role)),
    st.builds(share, st.just("x"), st.none(), st.sampled_from([20, 50, 60]), role=st.sampled_from(Role)),
    st.builds(whole, st.just("x"), st.integers(1, 2), role=st.sampled_from(Role)),
)


@st.composite
def tight_asks(draw: st.DrawFn) -> DeviceRequest:
    some = draw(st.lists(tight_containers, min_size=2, max_size=4))
    return request(*sorted((replace(one, name=str(n)) for n, one in enumerate(some)), key=lambda one: one.role is Role.APP))


def moments(pod: DeviceRequest) -> Iterator[Sequence[str]]:
    """Return who runs at the same time."""
    sidecars: list[str] = []
    for container in pod.containers:
        if container.role is Role.INIT:
            yield [*sidecars, container.name]
        if container.role is Role.SIDECAR:
            sidecars.append(container.name)
    yield [container.name for container in pod.containers if container.role is not Role.INIT]


def wrong(where: NodeCapacity, pod: DeviceRequest, placed: Mapping[str, PlacedContainer]) -> str:
    """Return what is against the rules, or nothing."""
    by_uuid = {one.gpu.uuid: one for one in where.cards}
    free_vfs = {one.vf.bdf for one in where.vfs if one.free}
    for container in pod.containers:
        mine = placed[container.name]
        held = [by_uuid[gpu.uuid] for gpu in mine.gpus]
        cards = container.share.cards if container.share else container.gpus
        if not len(mine.gpus) == len({gpu.uuid for gpu in mine.gpus}) == cards or len(set(mine.vfs)) != container.vfs:
            return "not what is asked"
        if any(
            not one.usable or one.gpu.mig_enabled or one.gpu.model not in (pod.gpu_models or {one.gpu.model}) for one in held
        ):
            return "a card that may not be given"
        if container.gpus and any(one.pods or not gpu.whole for one, gpu in zip(held, mine.gpus, strict=True)):
            return "not a free card"
        if any(one.bdf not in free_vfs for one in mine.vfs):
            return "not a free VF"
    for running in moments(pod):
        gpus = [gpu for name in running for gpu in placed[name].gpus]
        vfs = Counter(one.bdf for name in running for one in placed[name].vfs)
        if max(vfs.values(), default=0) > 1:
            return "one VF twice"
        for uuid, one in by_uuid.items():
            here = [gpu for gpu in gpus if gpu.uuid == uuid]
            if any(gpu.whole for gpu in here) and len(here) > 1:
                return "a whole card and another"
            if sum(gpu.memory_mib or 0 for gpu in here) > one.free_mib:
                return "memory beyond what is free"
            if sum(gpu.core_percent or 0 for gpu in here) > one.free_core:
                return "compute beyond what is free"
    return ""


def ways(where: NodeCapacity, pod: DeviceRequest) -> Iterator[Mapping[str, PlacedContainer]]:
    """Yield every placement with the requested devices of each container, allowed or not. Cards and VFs are independent."""
    for gpus in product(*(list(gpu_ways(where, container)) for container in pod.containers)):
        yield {one.name: PlacedContainer(gpus=chosen) for one, chosen in zip(pod.containers, gpus, strict=True)}


def gpu_ways(where: NodeCapacity, container: ContainerRequest) -> Iterator[tuple[PlacedGpu, ...]]:
    if container.share is None:
        for some in combinations(where.cards, container.gpus):
            yield tuple(PlacedGpu(uuid=one.gpu.uuid, bdf=one.gpu.bdf) for one in some)
        return
    memory_mib, core_percent = container.share.memory_mib, container.share.core_percent
    each = []
    for one in where.cards:
        mib = one.gpu.usable_mib * (core_percent or 0) // 100 if memory_mib is None else memory_mib
        if mib:
            each.append(PlacedGpu(uuid=one.gpu.uuid, bdf=one.gpu.bdf, memory_mib=mib, core_percent=core_percent))
    yield from combinations(each, container.share.cards)


def vf_ways(where: NodeCapacity, pod: DeviceRequest) -> Iterator[Mapping[str, PlacedContainer]]:
    free = [PlacedVf(bdf=one.vf.bdf, pf=one.pf.bdf) for one in where.vfs if one.free]
    for some in product(*(list(combinations(free, one.vfs)) for one in pod.containers)):
        yield {one.name: PlacedContainer(vfs=vfs) for one, vfs in zip(pod.containers, some, strict=True)}


def can_be_placed(where: NodeCapacity, pod: DeviceRequest) -> bool:
    cards_only = replace(pod, containers=tuple(replace(one, vfs=0) for one in pod.containers))
    vfs_only = replace(pod, containers=tuple(replace(one, gpus=0, share=None) for one in pod.containers))
    return any(not wrong(where, cards_only, way) for way in ways(where, cards_only)) and any(
        not wrong(where, vfs_only, way) for way in vf_ways(where, vfs_only)
    )


def emptied(where: NodeCapacity) -> NodeCapacity:
    """Return the node with all usable devices free."""
    free = [replace(one, pods=0, containers=0, free_mib=one.gpu.usable_mib, free_core=100) for one in where.cards]
    return replace(where, cards=tuple(free), vfs=tuple(replace(one, free=one.usable) for one in where.vfs))


@given(capacities(), is_judged(), policies)
def test_a_placement_is_found_exactly_where_there_is_one(where: NodeCapacity, pod: DeviceRequest, policy: Policy) -> None:
    result = fit(where, pod, policy=policy, limits=UNBOUNDED)
    assert isinstance(result, Placement) == can_be_placed(where, pod)


@given(tight_capacities, tight_asks(), policies)
def test_a_placement_is_found_where_containers_are_in_one_anothers_way(
    where: NodeCapacity, pod: DeviceRequest, policy: Policy
) -> None:
    result = fit(where, pod, policy=policy, limits=UNBOUNDED)
    assert isinstance(result, Placement) == can_be_placed(where, pod)
    if isinstance(result, Placement):
        assert wrong(where, pod, result.containers) == ""


REACH = {Scope.SWITCH: Distance.SWITCHES, Scope.NUMA: Distance.NUMA, Scope.SOCKET: Distance.SOCKET, Scope.ANY: Distance.CROSS}


def distances(where: NodeCapacity, pod: DeviceRequest, placed: Mapping[str, PlacedContainer]) -> bool:
    """Return whether devices of a container are farther apart than the pod allows, or violate their policy."""
    place_of = {one.gpu.uuid: one.gpu.place for one in where.cards}
    pf_of = {one.vf.bdf: one.pf for one in where.vfs}
    for container in pod.containers:
        mine = placed[container.name]
        pfs = {pf_of[one.bdf].bdf: pf_of[one.bdf].place for one in mine.vfs}
        places = [place_of[gpu.uuid] for gpu in mine.gpus]
        if any(distance(one, other) > REACH[pod.scope] for one, other in combinations([*places, *pfs.values()], 2)):
            return True
        if pod.rdma_policy is RdmaPolicy.PER_SWITCH and container.vfs:
            beside = [[distance(at, pf_of[one.bdf].place) <= Distance.SWITCHES for one in mine.vfs] for at in places]
            if any(sum(row) != container.vfs for row in beside) or not all(map(any, zip(*beside, strict=True))):
                return True
    return False


def placed_ways(where: NodeCapacity, container: ContainerRequest, pod: DeviceRequest) -> Iterator[PlacedContainer]:
    """Yield each placement of one container that the rules allow."""
    alone, policy = replace(pod, containers=(container,)), pod.rdma_policy
    free = [PlacedVf(bdf=one.vf.bdf, pf=one.pf.bdf) for one in where.vfs if one.free]
    counts = range(container.vfs, len(free) + 1) if policy is RdmaPolicy.PER_SWITCH and container.vfs else [container.vfs]
    for gpus in gpu_ways(where, container):
        for vfs in (some for count in counts for some in combinations(free, count)):
            placed = PlacedContainer(gpus=gpus, vfs=vfs)
            if not distances(where, alone, {container.name: placed}):
                yield placed


# Where most could be placed, were it not for where devices sit.
behind = st.sampled_from([(), (), (0,), (1,)])  # number of the switch, or of a switch behind it
roomy = st.builds(
    lambda cards, pfs, of_pf: capacity(
        *(card(n, usable_mib=size, switch=switch, behind=at) for n, (switch, size, at) in enumerate(cards)),
        vfs=[vf(n, pf=port(pf, behind=of_pf[pf])) for n, pf in enumerate(pfs)],
    ),
    st.lists(st.tuples(st.sampled_from([0, 0, 1, 2]), st.sampled_from([8, 10]), behind), min_size=2, max_size=3),
    st.lists(st.sampled_from([0, 0, 1, 2]), min_size=2, max_size=4),
    st.tuples(behind, behind, behind),
)
small = st.one_of(
    st.builds(whole, st.just("x"), st.integers(1, 2), role=st.sampled_from(Role), vfs=st.integers(0, 2)),
    st.builds(
        share,
        st.just("x"),
        st.integers(2, 9),
        role=st.sampled_from(Role),
        vfs=st.integers(0, 2),
        cards=st.sampled_from([1, 2]),
    ),
    st.builds(rdma, st.just("x"), st.integers(1, 2), role=st.sampled_from(Role)),
)
small_asks = st.lists(small, min_size=2, max_size=3).map(
    lambda some: request(
        *sorted((replace(one, name=str(n)) for n, one in enumerate(some)), key=lambda one: one.role is Role.APP)
    )
)


@pytest.mark.repeats
@settings(max_examples=repeats(20, long=1_000), deadline=None)
@given(roomy, small_asks, policies, st.sampled_from(Scope), st.sampled_from([RdmaPolicy.NEAREST, RdmaPolicy.PER_SWITCH]))
def test_a_placement_bound_to_places_is_found_exactly_where_there_is_one(
    where: NodeCapacity, pod: DeviceRequest, policy: Policy, scope: Scope, rdma_policy: RdmaPolicy
) -> None:
    """Check placements in all phases of a pod."""
    if any(one.vfs and not one.gpus and one.share is None for one in pod.containers):
        rdma_policy = RdmaPolicy.NEAREST
    pod = replace(pod, scope=scope, rdma_policy=rdma_policy)
    result = fit(where, pod, policy=policy, limits=UNBOUNDED)
    # How many VFs there are is a question of `distances`, with one on each switch.
    counted = replace(pod, containers=tuple(replace(one, vfs=0) for one in pod.containers))

    def allowed(placed: Mapping[str, PlacedContainer]) -> bool:
        requested = [replace(one, vfs=len(placed[one.name].vfs)) for one in counted.containers]
        return not wrong(where, replace(pod, containers=tuple(requested)), placed)

    names = [one.name for one in pod.containers]
    each = [list(placed_ways(where, one, pod)) for one in pod.containers]
    assert isinstance(result, Placement) == any(allowed(dict(zip(names, way, strict=True))) for way in product(*each))
    assert isinstance(result, NoFit) or (allowed(result.containers) and not distances(where, pod, result.containers))


@given(capacities(most=6), is_judged(), policies, st.integers(0, 3))
def test_what_is_placed_is_by_the_rules(where: NodeCapacity, pod: DeviceRequest, policy: Policy, per_card: int) -> None:
    limits = Limits(spread_containers_per_card=per_card)
    result = fit(where, pod, policy=policy, limits=limits)
    if isinstance(result, NoFit):
        return
    if (pod.policy or policy) is Policy.BINPACK or per_card < 2:
        assert wrong(where, pod, result.containers) == ""
    for one in where.cards:
        part = result.taken.gpus.get(one.gpu.uuid)
        if part is not None:
            assert one.usable
            assert not one.gpu.mig_enabled
            assert part.memory_mib <= one.free_mib
            assert part.core_percent <= one.free_core
            assert one.free or not part.whole
    assert result.taken.vfs <= {one.vf.bdf for one in where.vfs if one.free}


@given(capacities(most=5), is_judged(), policies, st.randoms(use_true_random=False))
def test_the_order_in_which_devices_are_listed_does_not_matter(
    where: NodeCapacity, pod: DeviceRequest, policy: Policy, random: Random
) -> None:
    shuffled = replace(
        where, cards=tuple(random.sample(where.cards, len(where.cards))), vfs=tuple(random.sample(where.vfs, len(where.vfs)))
    )
    assert fit(shuffled, pod, policy=policy) == fit(where, pod, policy=policy)
    assert score(shuffled, pod, policy=policy) == score(where, pod, policy=policy)


@given(capacities(), is_judged(), policies)
def test_what_can_never_fit_does_not_fit_on_an_empty_node(where: NodeCapacity, pod: DeviceRequest, policy: Policy) -> None:
    result = fit(where, pod, policy=policy, limits=UNBOUNDED)
    fits_empty = isinstance(fit(emptied(where), pod, policy=policy, limits=UNBOUNDED), Placement)
    if isinstance(result, Placement) or (len(pod.containers) == 1 and not result.missing.unresolvable):
        assert fits_empty
    elif result.missing.unresolvable:
        assert not fits_empty


@given(capacities(), is_judged(), policies)
def test_every_refusal_has_its_words(where: NodeCapacity, pod: DeviceRequest, policy: Policy) -> None:
    result = fit(where, pod, policy=policy)
    if isinstance(result, NoFit):
        assert explain(where, pod, result.missing, policy=policy)


@given(capacities(most=6), st.lists(containers("x"), min_size=1, max_size=4), policies)
def test_the_pod_takes_no_more_devices_than_it_uses_at_one_time(
    where: NodeCapacity, some: list[ContainerRequest], policy: Policy
) -> None:
    """Check VFs, and whole cards of pods without shares."""
    named = [replace(one, name=str(n), share=None, gpus=one.gpus or 1) for n, one in enumerate(some)]
    pod = request(*sorted(named, key=lambda one: one.role is Role.APP))
    result = fit(where, pod, policy=policy)
    if isinstance(result, Placement):
        requested = {one.name: one for one in pod.containers}
        assert len(result.taken.vfs) == max(sum(requested[name].vfs for name in running) for running in moments(pod))
        assert len(result.taken.gpus) == max(sum(requested[name].gpus for name in running) for running in moments(pod))


@st.composite
def likely(draw: st.DrawFn, one: NodeCapacity) -> NodeCapacity:
    """Draw a node that is similar to this node: the cards have another order and place, and one card differs."""
    order = draw(st.permutations(one.cards))
    twins = [replace(was, gpu=moved(was.gpu, at.gpu)) for was, at in zip(order, one.cards, strict=True)]
    if twins:
        number = draw(st.integers(0, len(twins) - 1))
        name = draw(st.sampled_from(["free_mib", "free_core", "pods", "containers", "usable"]))
        value = getattr(draw(cards(number)), name)
        twins[number] = replace(twins[number], **{name: value})
    return replace(one, name="twin", version=one.version + 1, cards=tuple(twins), vfs=tuple(reversed(one.vfs)))


def moved(gpu: Gpu, to: Gpu) -> Gpu:
    """Return the card `gpu` with the identity, place and links of the card `to`."""
    return msgspec.structs.replace(gpu, uuid=to.uuid, bdf=to.bdf, place=to.place, links=to.links)


@pytest.mark.repeats
@settings(max_examples=repeats(25, long=1_500))
@given(st.data(), capacities(), is_judged(), policies)
def test_what_is_alike_fits_alike(data: st.DataObject, one: NodeCapacity, requested: DeviceRequest, policy: Policy) -> None:
    """Check that nodes of one equivalence class get the same verdict, which central caches for the class
    (central/rank/equivalence.py)."""
    twin = data.draw(likely(one))
    if class_in_any_order(one) != class_in_any_order(twin):
        return
    verdicts = [fit(it, requested, policy=policy, limits=UNBOUNDED) for it in (one, twin)]
    reasons = [verdict.missing if isinstance(verdict, NoFit) else None for verdict in verdicts]
    assert reasons[0] == reasons[1]
    assert score(one, requested, policy=policy) == score(twin, requested, policy=policy)


@given(st.data(), capacities())
def test_order_and_place_make_no_difference(data: st.DataObject, one: NodeCapacity) -> None:
    order = data.draw(st.permutations(one.cards))
    twins = tuple(replace(was, gpu=moved(was.gpu, at.gpu)) for was, at in zip(order, one.cards, strict=True))
    assert class_in_any_order(replace(one, cards=twins, vfs=tuple(reversed(one.vfs)))) == class_in_any_order(one)
