"""Treat MIG instances as devices: for a demand with a profile, each instance of that profile is a card that is free or held.

So all rules for whole cards hold for instances: their count, their distance to VFs, the scope, and the phases of containers.
Two containers of one phase never have the same instance, and init containers share instances with later ones. A position where
the node can make an instance on demand counts as an instance. A position is free while no pod holds an instance that overlaps
its memory; positions of one profile never overlap. Take a `NodeCapacity` and a demand, return the `NodeCapacity` of such
instances, and convert chosen instances back. An instance of another profile is never taken, because its size differs, nor one
whose card is unusable or was given whole.

Among instances equally near to free VFs, those of cards with the fewest left are preferred, so that other cards stay whole for
a new division. Under the policy spread, it is those of cards with the most left. Of one card's positions, those come first that
overlap the fewest other positions. Instances are chosen by their number below each switch, beside VFs, or one by one, and not
as a set. No link connects them, and a node may have 56, which form too many sets. If the chosen instances leave too little for
the following containers, another number of each kind is tried (container_search.py).

Source: NVIDIA MIG user guide, "Partitioning" and "Device names".
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from central.assignment.model import PlacedGpu
from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import Policy, RdmaPolicy
from central.search.cards import Card
from central.search.demand import Demand
from central.search.joint import DeviceMasks, JointChoice, Query, sites_of
from central.search.placement import Missing, PlacedDevices
from central.search.topology import Distance, Distances, NodeTopology, bits
from central.search.vfs import Choice
from lading.nodedevices import Gpu, MigInstance
from lading.vocabulary import GpuUuid, PciAddress

_NAMED: Final = {Missing.TOO_FEW_GPUS: Missing.TOO_FEW_MIG, Missing.TOO_FEW_FREE_GPUS: Missing.TOO_FEW_FREE_MIG}
_WITHIN: Final = "/"  # separator between a card's PCI address and the instance's number
MOST_WAYS: Final = 512  # maximum tried divisions of instances among switches, 50 to 100 us each
REMEMBERED: Final = 65536  # maximum cached cards in MIG mode, some kilobytes each

# The key is a card's `id()` and a profile. The entry keeps the card alive, so that no other card can get the same `id()`, and
# keeps the instances as the same objects, because cached topologies are found by object identity.
_INSTANCES: dict[tuple[int, str], tuple[Gpu, tuple[Gpu, ...]]] = {}


def as_instances(capacity: NodeCapacity, demand: Demand, result: PlacedDevices | Missing) -> PlacedDevices | Missing:
    """Convert the result of a search over `instances_as_cards`: return the chosen instances with their cards, or the reason
    for instances."""
    if isinstance(result, Missing):
        if result is Missing.NO_MODEL and any(card.gpu.model in demand.models for card in capacity.cards):
            return Missing.TOO_FEW_MIG
        return _NAMED.get(result, result)
    card_of = {mig.uuid: card.gpu for card in capacity.cards for mig in card.gpu.mig}
    containers = {
        name: replace(placed, gpus=tuple(_placed(gpu, card_of) for gpu in placed.gpus))
        for name, placed in result.containers.items()
    }
    return replace(result, containers=containers)


def _placed(gpu: PlacedGpu, card_of: Mapping[str, Gpu]) -> PlacedGpu:
    card = card_of[gpu.uuid]
    return PlacedGpu(uuid=card.uuid, bdf=card.bdf, mig_uuid=gpu.uuid)


def instance_ranks(policy: Policy, having: Sequence[Card]) -> dict[int, int]:
    """Return the rank of each instance, by its number as a card: 0 is taken first, and equal instances have one rank. `having`
    are all available instances."""
    card_of = {one.number: one.gpu.bdf.partition(_WITHIN)[0] for one in having}
    left = Counter(card_of.values())
    order = {count: rank for rank, count in enumerate(sorted(set(left.values()), reverse=policy is Policy.SPREAD))}
    return {number: order[left[card]] for number, card in card_of.items()}


@lru_cache(maxsize=4096)
def best_instances(topology: NodeTopology, query: Query, state: DeviceMasks) -> DeviceMasks:
    """Return `state` with only the best instances: in each site of the scope no more than the query needs, chosen so that
    enough is left for following containers where possible."""
    picked, result = 0, list[JointChoice]()
    for site in sites_of(topology, query.scope):
        vfs = Choice(topology, site, query.rdma, query.cards, query.vfs, state.vfs)
        useful = state.cards & site.cards & ~vfs.useless_cards()
        best = _best_by_place(topology, query, state, useful, vfs, range(site.levels[-1] + 1)) if query.vfs else None
        if best:
            result.append(best)
        else:
            picked |= _picked(topology, query, state, useful, site.ports)
    if result:  # the best site is chosen here, because joint.py compares links first, and instances have none
        picked |= min(result, key=lambda one: one.order).cards
    return state._replace(cards=picked)


def _best_by_place(
    topology: NodeTopology, query: Query, state: DeviceMasks, useful: int, vfs: Choice, levels: Sequence[int]
) -> JointChoice | None:
    """Return the best choice among all ways to divide the instances among the switches; below each switch, the preferred ones
    are taken. Return None if no way has VFs, or if there are more than MOST_WAYS."""
    heaps: list[list[int]] = []
    for switch in topology.groups[Distance.SWITCH]:
        heap = sorted(bits(switch.cards & useful), key=lambda n: (not state.again >> n & 1, state.ranks[n], n))
        if heap:
            heaps.append(heap[: query.cards])
    ways = list(islice(splits([len(heap) for heap in heaps], query.cards), MOST_WAYS + 1))
    if len(ways) > MOST_WAYS:
        return None
    result = []
    for counts in ways:
        numbers = [number for heap, count in zip(heaps, counts, strict=True) for number in heap[:count]]
        if one := with_vfs(topology, state, numbers, vfs, levels):
            result.append(one)
    return min(result, key=lambda one: one.order, default=None)


def _picked(topology: NodeTopology, query: Query, state: DeviceMasks, cards: int, ports: Sequence[int]) -> int:
    """Return a bit mask of instances chosen one by one, each beside a VF of its own while VFs are left."""
    nearest = query.vfs > 0 and query.rdma is RdmaPolicy.NEAREST
    free = Counter(topology.port_of[vf] for vf in bits(state.vfs.free)) if nearest else Counter[int]()
    left = {port: free[port] for port in ports if free[port]}
    numbers, picked = bits(cards), 0
    while numbers and picked.bit_count() < query.cards:
        near = {number: min(((topology.distances[number][port], port) for port in left), default=(0, -1)) for number in numbers}
        one = min(numbers, key=lambda n: (not state.again >> n & 1, near[n][0], state.ranks[n], n))
        numbers.remove(one)
        picked |= 1 << one
        port = near[one][1]
        if port in left:
            left[port] -= 1
            if not left[port]:
                del left[port]
    return picked


def instances_as_cards(capacity: NodeCapacity, demand: Demand) -> NodeCapacity:
    """Return the node's free capacity with instances in place of cards; for a demand without a MIG profile, return it
    unchanged."""
    if not demand.mig_profile:
        return capacity
    cards = tuple(_as_card(card, gpu) for card in capacity.cards for gpu in _instances(card.gpu, demand.mig_profile))
    return replace(capacity, cards=cards, partitions=())


def _as_card(card: CardCapacity, instance: Gpu) -> CardCapacity:
    free = instance.uuid in card.free_mig
    mib, core = (instance.memory_mib, 100) if free else (0, 0)
    return replace(card, gpu=instance, free_mib=mib, free_core=core, pods=0 if free else 1, free_mig=())


def _instances(gpu: Gpu, profile: str) -> tuple[Gpu, ...]:
    if not gpu.mig:
        return ()
    key = id(gpu), profile
    known = _INSTANCES.get(key)
    if known is None:
        if len(_INSTANCES) >= REMEMBERED:
            _INSTANCES.clear()
        having = sorted((mig for mig in gpu.mig if mig.profile == profile), key=lambda mig: _order(gpu, mig))
        known = _INSTANCES[key] = gpu, tuple(_as_gpu(gpu, mig, order) for order, mig in enumerate(having))
    return known[1]


def _order(gpu: Gpu, mig: MigInstance) -> tuple[int, int, int]:
    """Return the sort key of an instance on its card. Positions that leave the most other positions come first, so that larger
    instances still fit."""
    return sum(map(mig.overlaps, gpu.mig)), mig.gpu_instance, mig.compute_instance


def _as_gpu(gpu: Gpu, mig: MigInstance, order: int) -> Gpu:
    return msgspec.structs.replace(
        gpu,
        uuid=GpuUuid(mig.uuid),
        bdf=PciAddress(f"{gpu.bdf}{_WITHIN}{order:03}"),
        memory_mib=mig.memory_mib,
        reserved_mib=0,
        module_id=None,
        links=(),
        mig_enabled=False,
        mig=(),
    )


def explain_instances(capacity: NodeCapacity, demand: Demand) -> str:
    """Describe in one line the instances of a node that has too few of them."""
    profile, count = demand.mig_profile, demand.whole_peak
    requested = f"{count} MIG {'instance' if count == 1 else 'instances'} {profile} asked"
    states = Counter(_state(card) for card in instances_as_cards(capacity, demand).cards)
    if states:
        return f"{requested}; of {states.total()} such {', '.join(f'{n} {state}' for state, n in states.most_common())}"
    others = Counter(mig.profile or "of unknown profile" for card in capacity.cards for mig in card.gpu.mig)
    return f"{requested}; the node has {', '.join(f'{n} {name}' for name, n in sorted(others.items())) or 'no MIG instance'}"


def _state(card: CardCapacity) -> str:
    if not card.usable:
        return "on GPUs that are unhealthy, dirty, cordoned or used without a grant"
    return "free" if card.free else "held"


def with_vfs(
    topology: NodeTopology, state: DeviceMasks, numbers: Sequence[int], vfs: Choice, levels: Iterable[int]
) -> JointChoice | None:
    """Return these cards with their best VFs, or None without a choice of VFs. The key has the criteria of joint.py that decide
    among instances."""
    cards = sum(1 << number for number in numbers)
    costs = ((vfs.without_address(cost), level, cost) for level in levels if (cost := vfs.cost(cards, level)) is not None)
    if state.vfs.again:
        best = min(costs, key=lambda one: (vfs.new(one[0]), one[1]), default=None)
    else:
        best = next(costs, None)  # all VFs are new: the closest level with a choice is the best
    if best is None:
        return None
    compared, level, cost = best
    partly = (cards & state.partly).bit_count()
    fresh = len(numbers) - partly - (cards & state.again).bit_count()
    key = fresh, partly, vfs.new(compared), level, sum(state.ranks[n] for n in numbers), compared
    links = (topology.links[a][b] for a in numbers for b in numbers if a < b)
    return JointChoice(key, cards, vfs.vfs(cost), Distances(0, max(links, default=0), level))


def splits(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to take `count` items from heaps of these sizes. Ways that take more from the first heaps come earlier."""
    if not sizes:
        if count == 0:
            yield ()
        return
    for head in range(min(sizes[0], count), -1, -1):
        if count - head <= sum(sizes[1:]):
            for tail in splits(sizes[1:], count - head):
                yield head, *tail
