"""Make room for a whole gang: keep together what pods leave as they end, or choose pods of lower priority to evict.

It takes a gang without a plan. It returns where each member that starts together would be, and which pods are in the way there;
nothing is held or evicted here.

To *keep* room, each member gets the node where the fewest devices are missing; the same one each time, as long as it can do
and is not left, because pods do not end there (scheduling/kept_room.py).
To *evict*, all pods of lower priority that may go (scheduling/victims.py) are put out of the way in thought, with what is held
for pods of lower priority that are not bound; if the gang fits then, they are put back, the most important first, as long as it
still fits. The others are the victims. Without a plan that stands after all evictions no pod is evicted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from central.fit.shortage import requested_cards
from central.gang.draft import Want, Where, put_of
from central.gang.model import Gang, Planned
from central.gang.plan import GangTopology, find_plan
from central.ledger.overlay import Overlay
from central.quota.giving import Unit as QuotaUnit
from central.quota.giving import choosing
from central.quota.quota_snapshot import QuotaSnapshot
from central.scheduling.gangs import GangPlanner
from central.scheduling.victims import Protection, Unit, Victims, pods_of
from lading.vocabulary import PodUid

MOST_UNITS: Final = 4096  # pods and gangs of lower priority that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Hold where the members would be, and the pods that have to be gone first."""

    where: Where
    gone: tuple[PodUid, ...]


# ---- what pods leave as they end


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Hold where the members would be, and how many pods have to end on each of these nodes."""

    where: Where
    in_the_way: Mapping[str, int]


def keeping(
    planner: GangPlanner, gang: Gang, before: Mapping[PodUid, str], staying: Collection[str], left: Collection[str]
) -> Generator[None, None, Kept | None]:
    """Search, one node in each step. `before`: where room is kept already. `staying`: which of these nodes count although
    kube-scheduler does not name them. `left`: nodes not to take. None: no other node can do for some member."""
    asked = yield from planner.asked(gang, staying=staying)
    if asked is None:
        return None
    wants, topology, state = asked
    for domain in _domains(wants, state, topology, frozenset(before.values())):
        allowed = domain.difference(left)
        where: dict[PodUid, Planned] = {}
        in_the_way: Counter[str] = Counter()
        now = state
        for want in wants:
            placed = yield from _keep(planner, want, now, allowed, before.get(want.uid, ""))
            if placed is None:
                break
            where[want.uid], gone = placed
            in_the_way[where[want.uid].node] += len(gone)
            now = now.without(*gone).with_put(put_of(want, where[want.uid]))
        else:
            return Kept(where=where, in_the_way=in_the_way)
    return None


def _domains(
    wants: Sequence[Want], state: Overlay, topology: GangTopology, before: Collection[str]
) -> Sequence[frozenset[str]]:
    """Return the nodes of each required domain: the one where room is kept first, then the one with the most free cards. All
    nodes are one domain if none is required."""
    names = {name for want in wants for name in want.nodes}
    if topology.required is None:
        return [frozenset(names)]
    nodes: dict[str, set[str]] = {}
    for name in names:
        if domain := topology.required.get(name):
            nodes.setdefault(domain, set()).add(name)
    free = {domain: sum(card.free for name in names for card in state.room(name).cards) for domain, names in nodes.items()}
    order = sorted(nodes, key=lambda domain: (nodes[domain].isdisjoint(before), -free[domain], domain))
    return [frozenset(nodes[domain]) for domain in order]


def _keep(
    planner: GangPlanner, want: Want, state: Overlay, allowed: Collection[str], before: str
) -> Generator[None, None, tuple[Planned, Sequence[PodUid]] | None]:
    """Return the place of one member, and the pods in its way."""
    demand = planner.scheduler.demand(want.shape.request)
    missing = []
    for name in want.nodes:
        if name in allowed:
            room = state.room(name)
            free = sum(card.free for card in requested_cards(room, demand))
            vfs = max(0, demand.vfs_peak - sum(vf.free for vf in room.vfs))
            missing.append((name != before, max(0, demand.whole_peak - free) + vfs, name))
            yield
    for _, _, name in sorted(missing):
        holders = sorted(planner.scheduler.ledger.facts_on(name), key=lambda one: (-len(one[1].gpus), one[0]))
        uids = [uid for uid, _ in holders if uid not in state.gone]
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
    """Search which of these units of other quotas have to go, so that the gang fits; as few as that takes."""
    asked = yield from planner.asked(gang)
    if asked is None:
        return None
    wants, topology, state = asked

    def search(gone: Collection[PodUid]) -> Generator[None, None, Where | None]:
        return (yield from find_plan(wants, (), state.without(*gone), planner.place, topology))

    def enough(gone: Collection[PodUid]) -> Generator[None, None, bool]:
        return (yield from search(gone)) is not None

    pieces = yield from choosing(snapshot, units, enough)
    gone = tuple(member.uid for piece in pieces for member in piece.members)
    where = (yield from search(gone)) if gone else None
    return Made(where=where, gone=gone) if where is not None else None


def evicting(planner: GangPlanner, gang: Gang, protection: Protection) -> Generator[None, None, Made | None]:
    """Search, one fit in each step. None: no eviction would help, or none is needed."""
    rule = planner.scheduler.preemption((yield from planner.starting(gang)))
    lowest = rule.lowest
    if lowest is None or lowest >= gang.priority:
        return None
    asked = yield from planner.asked(gang)
    if asked is None:
        return None
    wants, topology, state = asked
    state = state.without(*(uid for one in planner.scheduler.yielding(gang.priority) for uid in one.uids))
    names = sorted({name for want in wants for name in want.nodes})
    units = Victims(planner.scheduler, gang.priority, protection, rule).on(names)[-MOST_UNITS:]

    def search(gone: Collection[Unit]) -> Generator[None, None, Where | None]:
        uids = [pod.uid for pod in pods_of(gone)]
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
    return Made(where=where, gone=tuple(pod.uid for pod in pods))


def _put_back(
    units: Sequence[Unit], gone: Sequence[Unit], search: Callable[[Collection[Unit]], Generator[None, None, Where | None]]
) -> Generator[None, None, list[Unit]]:
    """Put back as many of these as possible, the first ones first. `gone` are away in any case. Return those that have to go:
    half of them are tried at once, so that many that stay cost one search."""
    if (yield from search(gone)) is not None:
        return []
    if len(units) == 1:
        return [*units]
    half = len(units) // 2
    first = yield from _put_back(units[:half], [*gone, *units[half:]], search)
    second = yield from _put_back(units[half:], [*gone, *first], search)
    return [*first, *second]
