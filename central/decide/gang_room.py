"""Make room for a whole gang: reserve devices that ending pods release, or choose victims of lower priority.

Take a gang without a plan. Return the place of each member that starts together, and the pods in the way; nothing is held or
evicted here.

To *keep* room, each member gets the node where the fewest devices are missing. The member keeps this node as long as the node
suits it and is not abandoned because pods do not end there (decide/reservation.py).

To *evict*, all evictable pods of lower priority (decide/victims.py) count as deleted at first, and claims for unbound pods
of lower priority count as free. If the gang then fits, pods are put back, the most important first, as long as it still fits.
The remaining pods are the victims. If the gang does not fit after all evictions, no pod is evicted.

Tests: tests/unit/central/gang/test_room.py
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from central.decide.gangs import GangPlanner
from central.decide.victims import Protection, Unit, Victims, pods_of
from central.gang.draft import Want, Where, put_of
from central.gang.gang import Gang
from central.gang.life import Planned
from central.gang.plan import GangTopology, find_plan
from central.ledger.overlay import Overlay
from central.quota.giving import QuotaUnit, choosing
from central.quota.quota_snapshot import QuotaSnapshot
from central.search.shortage import requested_cards
from lading.vocabulary import PodUid

MOST_UNITS: Final = 4096  # maximum pods and gangs of lower priority that are considered


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Hold the places of the members, and the pods that have to end first."""

    where: Where
    evicted: tuple[PodUid, ...]


# ---- devices that ending pods release


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Hold the places of the members, and the number of pods that have to end on each node."""

    where: Where
    in_the_way: Mapping[str, int]


def keeping(
    planner: GangPlanner, gang: Gang, before: Mapping[PodUid, str], staying: Collection[str], abandoned: Collection[str]
) -> Generator[None, None, Kept | None]:
    """Search nodes to reserve, one node in each step. `before`: the reserved nodes so far, by member. `staying`: reserved nodes
    that count although kube-scheduler does not name them. `left`: abandoned nodes. Return None if a member has no suitable
    node."""
    find_wants = yield from planner.find_wants(gang, staying=staying)
    if find_wants is None:
        return None
    wants, topology, state = find_wants
    for domain in _domains(wants, state, topology, frozenset(before.values())):
        allowed = domain.difference(abandoned)
        where: dict[PodUid, Planned] = {}
        in_the_way: Counter[str] = Counter()
        now = state
        for want in wants:
            placed = yield from _keep(planner, want, now, allowed, before.get(want.uid, ""))
            if placed is None:
                break
            where[want.uid], evicted = placed
            in_the_way[where[want.uid].node] += len(evicted)
            now = now.without(*evicted).with_put(put_of(want, where[want.uid]))
        else:
            return Kept(where=where, in_the_way=in_the_way)
    return None


def _domains(
    wants: Sequence[Want], state: Overlay, topology: GangTopology, before: Collection[str]
) -> Sequence[frozenset[str]]:
    """Return the nodes of each required domain: a domain with reserved nodes first, then the domain with the most free cards.
    Without a required domain, all nodes are one domain."""
    names = {name for want in wants for name in want.nodes}
    if topology.required is None:
        return [frozenset(names)]
    nodes: dict[str, set[str]] = {}
    for name in names:
        if domain := topology.required.get(name):
            nodes.setdefault(domain, set()).add(name)
    free = {domain: sum(card.free for name in names for card in state.capacity(name).cards) for domain, names in nodes.items()}
    order = sorted(nodes, key=lambda domain: (nodes[domain].isdisjoint(before), -free[domain], domain))
    return [frozenset(nodes[domain]) for domain in order]


def _keep(
    planner: GangPlanner, want: Want, state: Overlay, allowed: Collection[str], before: str
) -> Generator[None, None, tuple[Planned, Sequence[PodUid]] | None]:
    """Return the place of one member, and the pods in its way; None if no node suits."""
    demand = planner.scheduler.demand(want.shape.request)
    missing = []
    for name in want.nodes:
        if name in allowed:
            capacity = state.capacity(name)
            free = sum(card.free for card in requested_cards(capacity, demand))
            vfs = max(0, demand.vfs_peak - sum(vf.free for vf in capacity.vfs))
            missing.append((name != before, max(0, demand.whole_peak - free) + vfs, name))
            yield
    for _, _, name in sorted(missing):
        holders = sorted(planner.scheduler.ledger.facts_on(name), key=lambda one: (-len(one[1].gpus), one[0]))
        uids = [uid for uid, _ in holders if uid not in state.removed]
        for count in range(len(uids) + 1):
            yield
            placement = planner.place(want.shape, name, state.without(*uids[:count]))
            if placement is not None:
                return Planned(node=name, placement=placement), uids[:count]
    return None


# ---- pods of lower priority


def taking_back(
    planner: GangPlanner, gang: Gang, snapshot: QuotaSnapshot, units: Sequence[QuotaUnit]
) -> Generator[None, None, Made | None]:
    """Search the fewest of these units of other quotas that have to end, so that the gang fits."""
    find_wants = yield from planner.find_wants(gang)
    if find_wants is None:
        return None
    wants, topology, state = find_wants

    def search(evicted: Collection[PodUid]) -> Generator[None, None, Where | None]:
        return (yield from find_plan(wants, (), state.without(*evicted), planner.place, topology))

    def enough(evicted: Collection[PodUid]) -> Generator[None, None, bool]:
        return (yield from search(evicted)) is not None

    pieces = yield from choosing(snapshot, units, enough)
    evicted = tuple(member.uid for piece in pieces for member in piece.members)
    where = (yield from search(evicted)) if evicted else None
    return Made(where=where, evicted=evicted) if where is not None else None


def evicting(planner: GangPlanner, gang: Gang, protection: Protection) -> Generator[None, None, Made | None]:
    """Search victims for the gang, one fit in each step. Return None if no eviction would help, or none is needed."""
    rule = planner.scheduler.preemption((yield from planner.starting(gang)))
    lowest = rule.lowest
    if lowest is None or lowest >= gang.priority:
        return None
    find_wants = yield from planner.find_wants(gang)
    if find_wants is None:
        return None
    wants, topology, state = find_wants
    state = state.without(*(uid for one in planner.scheduler.yielding(gang.priority) for uid in one.uids))
    names = sorted({name for want in wants for name in want.nodes})
    units = Victims(planner.scheduler, gang.priority, protection, rule).on(names)[-MOST_UNITS:]

    def search(evicted: Collection[Unit]) -> Generator[None, None, Where | None]:
        uids = [pod.uid for pod in pods_of(evicted)]
        if not rule.allows(uids):
            return None
        return (yield from find_plan(wants, (), state.without(*uids), planner.place, topology))

    if not units or (yield from search(units)) is None:
        return None
    victims = yield from _put_back(units, [], search)
    where = yield from search(victims)
    pods = pods_of(reversed(victims))
    if where is None or not pods or protection.forbids(pods):
        return None
    return Made(where=where, evicted=tuple(pod.uid for pod in pods))


def _put_back(
    units: Sequence[Unit], evicted: Sequence[Unit], search: Callable[[Collection[Unit]], Generator[None, None, Where | None]]
) -> Generator[None, None, list[Unit]]:
    """Return which of these units, pods or gangs, have to end. As many as possible stay, the first ones before the others.
    `evicted`: units that end in any case. Half of the units are tried at once, so that many units that stay cost one search."""
    if (yield from search(evicted)) is not None:
        return []
    if len(units) == 1:
        return [*units]
    half = len(units) // 2
    first = yield from _put_back(units[:half], [*evicted, *units[half:]], search)
    second = yield from _put_back(units[half:], [*evicted, *first], search)
    return [*first, *second]
