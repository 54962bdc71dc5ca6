"""Compare the joint choice of cards and VFs with a brute-force oracle, which uses no code of central/search.

The oracle tries every set of cards with every set of VFs, and every pairing of both. It computes the objective as documented.
The nodes are the shipped profiles with random devices held, and random nodes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from central.request.model import DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Scope
from central.search.demand import Limits
from central.search.fit import fit
from central.search.placement import Placement
from lading.nodedevices import Gpu, NvLink, Partition, Pf, Place, Status, Vf
from lading.vocabulary import GpuUuid, PciAddress
from tests.fakes.capacities import rdma, request, share, whole

PROFILES: Final = sorted((Path(__file__).parents[2] / "simnode/nodedevices").glob("*.json"))
REACH: Final = {Scope.SWITCH: 1, Scope.NUMA: 3, Scope.SOCKET: 4, Scope.ANY: 5}
UNBOUNDED: Final = Limits(search_steps=1_000_000)
Choice = tuple[tuple[CardCapacity, ...], tuple[VfCapacity, ...]]


# ---- the oracle


def near(one: Place, other: Place) -> int:
    """Return the distance: 0 one switch, 1 one root port, 2 one host bridge, 3 one NUMA node, 4 one socket, 5 none of these."""
    common = 0
    while common < min(len(one.path), len(other.path)) and one.path[common] == other.path[common]:
        common += 1
    if common > 1:  # and how many bridges each has without its own port of a switch
        return 0 if max(2, len(one.path) - 1) == max(2, len(other.path) - 1) <= common else 1
    if common:
        return 2
    if one.numa is not None and one.numa == other.numa:
        return 3
    return 4 if one.socket is not None and one.socket == other.socket else 5


def linked(one: Gpu, other: Gpu) -> int:
    direct = max(sum(link.count for link in a.links if link.to == b.uuid) for a, b in ((one, other), (other, one)))
    through = min(sum(link.count for link in gpu.links if not link.to) for gpu in (one, other))
    lanes = min(direct or through, 18)
    return 18 - lanes if lanes else 18 + near(one.place, other.place)


@cache
def paired(table: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Return the least (worst, sum) of distances over all pairings. A row of the table is a card, a column a VF."""
    cards, vfs = len(table), len(table[0])
    if cards > vfs:
        return paired(tuple(zip(*table, strict=True)))
    few, more = divmod(vfs, cards)
    best = (9, 0)
    for of in product(range(cards), repeat=vfs):
        counts = Counter(of)
        if all(counts[card] in {few, few + 1} for card in range(cards)) and (more or set(counts.values()) == {few}):
            distances = [table[card][vf] for vf, card in enumerate(of)]
            best = min(best, (max(distances), sum(distances)))
    return best


def distances(cards: Sequence[CardCapacity], vfs: Sequence[VfCapacity]) -> tuple[int, int]:
    return paired(tuple(tuple(near(card.gpu.place, vf.pf.place) for vf in vfs) for card in cards)) if cards and vfs else (0, 0)


def kept_whole(capacity: NodeCapacity) -> set[frozenset[str]]:
    """Return the partitions and switches with several cards, all of which are free."""
    module = {card.gpu.module_id: card.gpu.uuid for card in capacity.cards}
    groups = {
        frozenset(module[one] for one in partition.modules)
        for partition in capacity.partitions
        if set(partition.modules) <= set(module)
    }
    groups |= {
        frozenset(other.gpu.uuid for other in capacity.cards if other is card or near(card.gpu.place, other.gpu.place) <= 1)
        for card in capacity.cards
    }
    free = {card.gpu.uuid for card in capacity.cards if card.free}
    return {group for group in groups if len(group) > 1 and group <= free}


def partitions(capacity: NodeCapacity) -> list[set[str]]:
    module = {card.gpu.module_id: card.gpu.uuid for card in capacity.cards}
    return [{module[one] for one in p.modules} for p in capacity.partitions if set(p.modules) <= set(module)]


def objective(capacity: NodeCapacity, pod: DeviceRequest, choice: Choice) -> tuple[object, ...] | None:
    """Return the objective of a choice as a tuple; None if the choice is not allowed."""
    cards, vfs = choice
    sites = [card.gpu.place for card in cards] + [vf.pf.place for vf in {vf.pf.bdf: vf for vf in vfs}.values()]
    if any(near(a, b) > REACH[pod.scope] for a, b in combinations(sites, 2)):
        return None
    requested = pod.containers[0].vfs
    by_pf = Counter(vf.pf.bdf for vf in vfs)
    match pod.rdma_policy if requested else RdmaPolicy.COUNT:
        case RdmaPolicy.PER_PF:
            usable = {vf.pf.bdf for vf in capacity.vfs if vf.usable}
            if not usable or by_pf != dict.fromkeys(usable, requested):
                return None
        case RdmaPolicy.PER_SWITCH:
            for place in [card.gpu.place for card in cards]:
                if sum(near(place, vf.pf.place) <= 1 for vf in vfs) != requested:
                    return None
            if any(all(near(card.gpu.place, vf.pf.place) > 1 for card in cards) for vf in vfs):
                return None
        case _:
            if len(vfs) != requested:
                return None
    chosen = {card.gpu.uuid for card in cards}
    whole_partition = chosen in partitions(capacity)
    if cards and pod.partition is PartitionPolicy.HONOR and capacity.partitions and not whole_partition:
        return None
    links = [linked(a.gpu, b.gpu) for a, b in combinations(cards, 2)]
    worst, total = distances(cards, vfs) if pod.rdma_policy is RdmaPolicy.NEAREST else (0, 0)
    broken = sum(1 for group in kept_whole(capacity) if group & chosen and not group <= chosen)
    taken = Counter(vf.pf.bdf for vf in capacity.vfs if vf.usable and not vf.free)
    load = sum(taken[pf] * count + count * (count - 1) // 2 for pf, count in by_pf.items())
    return (
        not whole_partition,
        max(links, default=0),
        worst,
        sum(links),
        total,
        broken,
        load,
        sorted(card.gpu.bdf for card in cards),
        sorted(vf.vf.bdf for vf in vfs),
    )


def sets_of_vfs(vfs: Sequence[VfCapacity], pod: DeviceRequest) -> Iterator[tuple[VfCapacity, ...]]:
    requested = pod.containers[0].vfs
    exact = pod.rdma_policy in {RdmaPolicy.NEAREST, RdmaPolicy.COUNT} or not requested
    for size in [requested] if exact else range(len(vfs) + 1):
        yield from combinations(vfs, size)


def judged(capacity: NodeCapacity, pod: DeviceRequest) -> list[tuple[tuple[object, ...], Choice]]:
    """Return every choice for a pod's only container, the best first."""
    [one] = pod.containers
    cards = [card for card in capacity.cards if card.free]
    vfs = [vf for vf in capacity.vfs if vf.free]
    choices = [
        (key, (some, those))
        for some in combinations(cards, one.gpus)
        for those in sets_of_vfs(vfs, pod)
        if (key := objective(capacity, pod, (some, those))) is not None
    ]
    return sorted(choices, key=lambda choice: choice[0])


def best(capacity: NodeCapacity, pod: DeviceRequest) -> Choice | None:
    choices = judged(capacity, pod)
    return choices[0][1] if choices else None


def best_in_turn(capacity: NodeCapacity, pod: DeviceRequest) -> list[Choice] | None:
    """Return the choices for containers that run at the same time: each is the best that leaves devices for the others."""
    if not pod.containers:
        return []
    first, *rest = pod.containers
    for _, choice in judged(capacity, replace(pod, containers=(first,))):
        others = best_in_turn(less(capacity, choice), replace(pod, containers=tuple(rest)))
        if others is not None:
            return [choice, *others]
    return None


def less(capacity: NodeCapacity, choice: Choice) -> NodeCapacity:
    cards, vfs = ({id(device) for device in devices} for devices in choice)
    return replace(
        capacity,
        cards=tuple(replace(card, pods=1) if id(card) in cards else card for card in capacity.cards),
        vfs=tuple(replace(vf, free=False) if id(vf) in vfs else vf for vf in capacity.vfs),
    )


def best_share(capacity: NodeCapacity, pod: DeviceRequest, policy: Policy) -> Choice | None:
    """Return the best choice for a share of one card, with VFs, by trying each card."""
    [one] = pod.containers
    assert one.share is not None
    assert one.share.memory_mib is not None
    result = []
    for card in capacity.cards:
        if not card.usable or card.free_mib < one.share.memory_mib:
            continue
        for those in sets_of_vfs([vf for vf in capacity.vfs if vf.free], pod):
            key = objective(capacity, pod, ((card,), those))
            if key is not None:
                preferred = (card.containers, -card.free_mib) if policy is Policy.SPREAD else (card.free_mib, card.free_core)
                _, _, worst, _, total, _, load, *addresses = key
                result.append(((worst, preferred, total, load, *addresses), ((card,), those)))
    return min(result, key=lambda choice: choice[0])[1] if result else None


# ---- nodes


def capacity_of(status: Status, random: Random, *, held: float, vfs_of_pf: int) -> NodeCapacity:
    """Return the node's free capacity with random devices held, and at most `vfs_of_pf` VFs of each PF."""
    cards = [card_capacity(gpu, random.random() < held, random.random() < 0.05) for gpu in status.gpus]
    vfs = [
        VfCapacity(vf=vf, pf=pf, usable=(usable := random.random() < 0.95), free=usable and random.random() >= held)
        for pf in status.pfs
        for vf in pf.vfs[:vfs_of_pf]
    ]
    return NodeCapacity(name="n", version=1, cards=tuple(cards), vfs=tuple(vfs), partitions=status.partitions)


def card_capacity(gpu: Gpu, held: bool, unusable: bool) -> CardCapacity:
    free = not held
    mib = gpu.usable_mib if free else 0
    return CardCapacity(gpu=gpu, free_mib=mib, free_core=100 * free, pods=int(held), containers=int(held), usable=not unusable)


@dataclass(frozen=True)
class Plan:
    """Describe how random nodes are made."""

    cards: int
    ports: int
    vfs_of_pf: int
    places: int


def random_place(random: Random, places: int) -> Place:
    """Draw a place in a tree: sockets of two NUMA nodes of two host bridges of two root ports, with up to three switches in a
    row below each. Some facts are sometimes unknown to the node."""
    switch = random.randrange(places)
    bridge, numa, socket = switch // 2, switch // 4, switch // 8
    if random.random() < 0.1:
        return random.choice([Place(), Place(socket=socket), Place(numa=numa, socket=socket)])
    path: tuple[str, ...] = (f"pci{bridge:04}:00",)
    if random.random() < 0.9:
        path += (f"{bridge:04}:00:{switch:02}.0",)
        for _ in range(random.choice([0, 1, 1, 2, 3])):
            path += ("up", f"down {random.randrange(2)}")
    return Place(path=path, numa=numa, socket=socket)


def random_status(random: Random, plan: Plan) -> Status:
    uuids = [GpuUuid(f"GPU-{n}") for n in range(plan.cards)]
    nvswitch = random.choice([0, 0, 18])
    modules = list(range(1, plan.cards + 1))
    random.shuffle(modules)
    gpus = []
    for number in range(plan.cards):
        peers = [NvLink(count=random.choice([1, 2, 4]), to=to) for to in uuids if random.random() < 0.2 and to != uuids[number]]
        gpus.append(
            Gpu(
                uuid=uuids[number],
                bdf=PciAddress(f"0000:{number:02x}:00.0"),
                model="x",
                memory_mib=1000,
                module_id=modules[number],
                links=(NvLink(count=nvswitch),) if nvswitch else tuple(peers),
                place=random_place(random, plan.places),
            )
        )
    pfs = []
    for number in random.sample(range(100), plan.ports):
        bdfs = [PciAddress(f"0001:{number:02x}:00.{vf + 1}") for vf in range(plan.vfs_of_pf)]
        place = random_place(random, plan.places)
        pfs.append(Pf(bdf=PciAddress(f"0001:{number:02x}:00.0"), place=place, vfs=tuple(Vf(bdf=bdf) for bdf in bdfs)))
    masks = [random.randrange(1, 2**plan.cards) for _ in range(random.choice([0, 0, 3]))]
    parts = tuple(
        Partition(id=n, modules=tuple(module for module in modules if mask >> (module - 1) & 1)) for n, mask in enumerate(masks)
    )
    return Status(gpus=tuple(gpus), pfs=tuple(pfs), partitions=parts)


def random_request(random: Random, most_cards: int, most_vfs: int) -> DeviceRequest:
    cards, vfs = random.randint(0, most_cards), random.randint(0, most_vfs)
    scope = random.choice([Scope.ANY, Scope.ANY, *Scope])
    policy = random.choice([RdmaPolicy.NEAREST, RdmaPolicy.NEAREST, *RdmaPolicy])
    if policy in {RdmaPolicy.PER_SWITCH, RdmaPolicy.PER_PF}:
        vfs = min(vfs, 1)
    if policy is RdmaPolicy.PER_SWITCH and not cards:
        policy = RdmaPolicy.COUNT
    if policy is RdmaPolicy.PER_PF:
        scope = Scope.ANY
    if not cards + vfs:
        cards = 1
    one = whole("a", cards, vfs=vfs) if cards else rdma("a", vfs)
    partition = random.choice([None, PartitionPolicy.PREFER, PartitionPolicy.HONOR]) if cards else None
    return request(one, rdma_policy=policy, scope=scope, partition=partition)


def check(
    capacity: NodeCapacity, pod: DeviceRequest, expected: Sequence[Choice] | None, policy: Policy = Policy.BINPACK
) -> None:
    """Check the fit against the expected choices, by container."""
    result = fit(capacity, pod, policy=policy, limits=UNBOUNDED)
    if expected is None:
        assert not isinstance(result, Placement), result
        return
    assert isinstance(result, Placement), (result, expected)
    for container, (cards, vfs) in zip(pod.containers, expected, strict=True):
        placed = result.containers[container.name]
        assert sorted(gpu.bdf for gpu in placed.gpus) == sorted(card.gpu.bdf for card in cards)
        assert sorted(vf.bdf for vf in placed.vfs) == sorted(vf.vf.bdf for vf in vfs)
        assert len(placed.vfs) == len(set(placed.vfs))


def only(choice: Choice | None) -> Sequence[Choice] | None:
    return None if choice is None else [choice]


# ---- against it


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_on_every_shipped_profile(profile: Path) -> None:
    status = msgspec.json.decode(profile.read_bytes(), type=Status)
    random = Random(profile.stem)  # noqa: S311
    for _ in range(60):
        capacity = capacity_of(status, random, held=random.choice([0.0, 0.3, 0.6]), vfs_of_pf=1)
        pod = random_request(random, 4, 3)
        check(capacity, pod, only(best(capacity, pod)), random.choice([*Policy]))


def random_capacity(random: Random) -> NodeCapacity:
    plan = Plan(cards=random.randint(1, 5), ports=random.randint(0, 3), vfs_of_pf=2, places=random.choice([1, 3, 8, 16]))
    return capacity_of(random_status(random, plan), random, held=random.choice([0.0, 0.2, 0.5]), vfs_of_pf=2)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_nodes(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    for _ in range(250):
        capacity, pod = random_capacity(random), random_request(random, 4, 4)
        check(capacity, pod, only(best(capacity, pod)), random.choice([*Policy]))


def random_containers(random: Random) -> DeviceRequest:
    """Return two or three containers that compete for devices, because most have a scope. VFs alone are chosen last."""
    first = random_request(random, 2, 2)
    others = [replace(random_request(random, 2, 2).containers[0], name=name) for name in "bc"[: random.randint(1, 2)]]
    with_gpus = [one for one in (*first.containers, *others) if one.gpus]
    alone = [one for one in others if not one.gpus and first.rdma_policy is not RdmaPolicy.PER_SWITCH]
    scope = first.scope if first.rdma_policy is RdmaPolicy.PER_PF else random.choice([Scope.SWITCH, Scope.NUMA, first.scope])
    return replace(first, containers=(*with_gpus, *alone) or (whole("a", 1),), scope=scope)


@pytest.mark.parametrize("seed", range(4))
def test_containers_in_turn(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    for _ in range(150):
        plan = Plan(cards=random.randint(2, 5), ports=random.randint(1, 3), vfs_of_pf=2, places=random.choice([3, 4, 8]))
        capacity = capacity_of(random_status(random, plan), random, held=random.choice([0.0, 0.0, 0.2]), vfs_of_pf=2)
        pod = random_containers(random)
        ordered = in_turn(pod)
        expected = best_in_turn(capacity, ordered)
        by_name = dict(zip((one.name for one in ordered.containers), expected or (), strict=False))
        check(capacity, pod, expected and [by_name[one.name] for one in pod.containers])


def in_turn(pod: DeviceRequest) -> DeviceRequest:
    """Return the pod with its containers in the order of the search: containers with the fewest possible sites come first."""
    per_switch = pod.rdma_policy is RdmaPolicy.PER_SWITCH and any(one.vfs for one in pod.containers)
    if pod.scope is Scope.ANY and not per_switch and pod.partition is not PartitionPolicy.HONOR:
        return pod
    first = sorted(pod.containers, key=lambda one: (not one.gpus, -one.vfs if one.gpus else 0, -one.gpus))
    return replace(pod, containers=tuple(first))


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.SPREAD])
def test_a_share_with_vfs(policy: Policy) -> None:
    random = Random(policy.value)  # noqa: S311
    for _ in range(300):
        capacity = random_capacity(random)
        cards = [partly(card, random) for card in capacity.cards]
        capacity = replace(capacity, cards=tuple(cards))
        pod = replace(random_request(random, 1, 3), containers=(share("a", 300, vfs=random.randint(1, 3)),), partition=None)
        if pod.rdma_policy is not RdmaPolicy.PER_PF or pod.scope is Scope.ANY:
            check(capacity, pod, only(best_share(capacity, pod, policy)), policy)


def partly(card: CardCapacity, random: Random) -> CardCapacity:
    return replace(card, free_mib=random.choice([200, 300, 500, 500, 1000]), containers=random.randint(0, 2), pods=1)
