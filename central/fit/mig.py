"""MIG instances as devices of their own: to a demand with a profile, each instance of it is a card that is free or held.

So all that holds for whole cards holds for them: how many there are, which are near which VFs, what lies within a scope, that
two containers of one phase never have the same one, and that init containers use again what later ones have. A position where
the node makes an instance on demand is an instance too. It is free while no pod holds one that takes the same memory; positions
of one profile never take the same. It takes a room and a demand. It returns the room as such a demand sees it, and converts
what was chosen there back. What it never takes: an instance of another profile, which is another size, and one whose card is
unusable or was given whole.

Preferred are, of what is equally near to free VFs, the instances of cards that have the fewest left, so that others stay whole
for a new division into instances; under the policy spread of those with the most. Of one card's positions, those come first
that take memory from the fewest others. Instances are picked by how many of each switch, beside VFs, or one by one, and not as
a set: no link connects them, and a node may have 56, of which there are too many sets. Where those that are picked leave no
room for what follows, another number of each kind is tried (container_search.py).

Source: NVIDIA MIG user guide, "Partitioning" and "Device names".
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from central.assignment.model import PlacedGpu
from central.fit.cards import Card
from central.fit.demand import Demand
from central.fit.joint import Found, Query, State, sites_of
from central.fit.model import Missing, PlacedDevices
from central.fit.topology import Apart, Distance, NodeTopology, bits
from central.fit.vfs import Choice
from central.ledger.model import CardRoom, NodeRoom
from central.request.model import Policy, RdmaPolicy
from lading.nodedevices import Gpu, MigInstance
from lading.vocabulary import GpuUuid, PciAddress

_NAMED: Final = {Missing.TOO_FEW_GPUS: Missing.TOO_FEW_MIG, Missing.TOO_FEW_FREE_GPUS: Missing.TOO_FEW_FREE_MIG}
_WITHIN: Final = "/"  # between a card's address and the instance's number
MOST_WAYS: Final = 512  # to take instances from below several switches, 50 to 100 us each
REMEMBERED: Final = 65536  # cards in MIG mode, some kilobytes each

# By the identity of a card and by profile. The entry keeps the card alive, so that no other can come to have the same one; and
# its instances stay the same objects, by which a topology is known again.
_INSTANCES: dict[tuple[int, str], tuple[Gpu, tuple[Gpu, ...]]] = {}


def choose_instances(
    room: NodeRoom, demand: Demand, choose: Callable[[NodeRoom], PlacedDevices | Missing]
) -> PlacedDevices | Missing:
    """Return what `choose` finds among the instances as cards, as instances; or what it misses, as the reason for instances."""
    found = choose(instances_as_cards(room, demand))
    if isinstance(found, Missing):
        if found is Missing.NO_MODEL and any(card.gpu.model in demand.models for card in room.cards):
            return Missing.TOO_FEW_MIG
        return _NAMED.get(found, found)
    card_of = {mig.uuid: card.gpu for card in room.cards for mig in card.gpu.mig}
    containers = {
        name: replace(placed, gpus=tuple(_placed(gpu, card_of) for gpu in placed.gpus))
        for name, placed in found.containers.items()
    }
    return replace(found, containers=containers)


def _placed(gpu: PlacedGpu, card_of: Mapping[str, Gpu]) -> PlacedGpu:
    card = card_of[gpu.uuid]
    return PlacedGpu(uuid=card.uuid, bdf=card.bdf, mig_uuid=gpu.uuid)


def instance_ranks(policy: Policy, having: Sequence[Card]) -> dict[int, int]:
    """Return the rank of each instance, by its number as a card: 0 is taken first, and equal instances have one rank. `having`
    are all instances that could be taken."""
    card_of = {one.number: one.gpu.bdf.partition(_WITHIN)[0] for one in having}
    left = Counter(card_of.values())
    order = {count: rank for rank, count in enumerate(sorted(set(left.values()), reverse=policy is Policy.SPREAD))}
    return {number: order[left[card]] for number, card in card_of.items()}


@lru_cache(maxsize=4096)
def best_instances(topology: NodeTopology, query: Query, state: State) -> State:
    """Return `state` with only the best instances: in each site of the scope no more than are wanted, chosen so that they leave
    room for what follows where that is possible."""
    picked, found = 0, list[Found]()
    for site in sites_of(topology, query.scope):
        vfs = Choice(topology, site, query.rdma, query.cards, query.vfs, state.vfs)
        useful = state.cards & site.cards & ~vfs.useless_cards()
        best = _best_by_place(topology, query, state, useful, vfs, range(site.levels[-1] + 1)) if query.vfs else None
        if best:
            found.append(best)
        else:
            picked |= _picked(topology, query, state, useful, site.ports)
    if found:  # decided here, because between the sites joint.py would compare links first, and instances have none
        picked |= min(found, key=lambda one: one.order).cards
    return state._replace(cards=picked)


def _best_by_place(
    topology: NodeTopology, query: Query, state: State, useful: int, vfs: Choice, levels: Sequence[int]
) -> Found | None:
    """Return the best choice among all ways to divide the instances among the switches; below each switch the preferred ones
    are taken. Return None if no way has VFs, or if there are more than MOST_WAYS."""
    heaps: list[list[int]] = []
    for switch in topology.groups[Distance.SWITCH]:
        heap = sorted(bits(switch.cards & useful), key=lambda n: (not state.again >> n & 1, state.ranks[n], n))
        if heap:
            heaps.append(heap[: query.cards])
    ways = list(islice(splits([len(heap) for heap in heaps], query.cards), MOST_WAYS + 1))
    if len(ways) > MOST_WAYS:
        return None
    found = []
    for counts in ways:
        numbers = [number for heap, count in zip(heaps, counts, strict=True) for number in heap[:count]]
        if one := with_vfs(topology, state, numbers, vfs, levels):
            found.append(one)
    return min(found, key=lambda one: one.order, default=None)


def _picked(topology: NodeTopology, query: Query, state: State, cards: int, ports: Sequence[int]) -> int:
    """Return the instances that are picked one by one, as a bit mask: each beside a VF of its own, as long as VFs are left."""
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


def instances_as_cards(room: NodeRoom, demand: Demand) -> NodeRoom:
    """Return a room whose cards are the instances; for a demand for cards the room itself."""
    if not demand.mig_profile:
        return room
    cards = tuple(_as_card(card, gpu) for card in room.cards for gpu in _instances(card.gpu, demand.mig_profile))
    return replace(room, cards=cards, partitions=())


def _as_card(card: CardRoom, instance: Gpu) -> CardRoom:
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
    """Return the key by which a card's instances are sorted. Positions are taken first that leave most other positions, so that
    larger instances still fit."""
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


def explain_instances(room: NodeRoom, demand: Demand) -> str:
    """Return a line that says which instances exist, for a node that has too few of them."""
    profile, count = demand.mig_profile, demand.whole_peak
    asked = f"{count} MIG {'instance' if count == 1 else 'instances'} {profile} asked"
    states = Counter(_state(card) for card in instances_as_cards(room, demand).cards)
    if states:
        return f"{asked}; of {states.total()} such {', '.join(f'{n} {state}' for state, n in states.most_common())}"
    others = Counter(mig.profile or "of unknown profile" for card in room.cards for mig in card.gpu.mig)
    return f"{asked}; the node has {', '.join(f'{n} {name}' for name, n in sorted(others.items())) or 'no MIG instance'}"


def _state(card: CardRoom) -> str:
    if not card.usable:
        return "on GPUs that are unhealthy, dirty, cordoned or used without a grant"
    return "free" if card.free else "held"


def with_vfs(topology: NodeTopology, state: State, numbers: Sequence[int], vfs: Choice, levels: Iterable[int]) -> Found | None:
    """Return these cards with their best VFs, with the key that joint.py compares first, which decides among instances."""
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
    return Found(key, cards, vfs.vfs(cost), Apart(0, max(links, default=0), level))


def splits(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to take `count` from heaps of these sizes. A way that takes more from the first heaps comes earlier."""
    if not sizes:
        if count == 0:
            yield ()
        return
    for head in range(min(sizes[0], count), -1, -1):
        if count - head <= sum(sizes[1:]):
            for tail in splits(sizes[1:], count - head):
                yield head, *tail
