"""Find what would help a pending pod: which pods would have to end, on which node, to make room for it.

It takes the scheduler in its current state, one pending pod, and nodes. It returns node by node, those that lack the least
first, the smallest sets of pods that were found: when all pods of one set have ended, the pod fits there. Every answer is
verified by central's own fit, as if these pods were gone; nothing is estimated from amounts. Only devices are considered.

Pods that do not end, or come back on the same node, are in none of these sets: those of DaemonSets, and static pods with their
mirror pods. The ledger does not know the owner of a pod, so the caller names them. If only they are in the way, they are
listed.

The search is bounded. Single pods are all tried, then pairs, threes and so on as long as the node's tries last; after that, one
set of which no pod can stay. So a set may be larger than necessary, but never too small.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Final

import msgspec

from central.fit.demand import Demand
from central.fit.shortage import requested_cards
from central.ledger.model import Held, NodeRoom
from central.scheduling.scheduler import Scheduler
from central.state.pending import Pending
from lading.vocabulary import PodUid

TRIES: Final = 400  # fits on one node, some 0.1 ms each
MOST_SETS: Final = 6  # that are reported for one node


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod whose end would free something."""

    uid: str
    namespace: str = ""
    pod: str = ""  # empty if not known: only its node still holds devices for it
    priority: int = 0
    deleting: bool = False  # it is ending already


class NodeHelp(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pods whose end would help on one node. Without sets: the end of no pod would help there."""

    node: str
    together: int = 0  # how many have to end
    any_of: tuple[Ending, ...] = ()  # any so many of these would do; those that end already first, then the least important
    sets: tuple[tuple[Ending, ...], ...] = ()  # where not any would do: these would, all of one of them
    more: int = 0  # sets that are not listed
    stay: tuple[Ending, ...] = ()  # where there is no set: who does not end, and without whom too it would fit


def find_helps(
    scheduler: Scheduler,
    pod: Pending,
    names: Collection[str],
    *,
    stay: Collection[PodUid] = frozenset(),
) -> Iterator[NodeHelp]:
    """Yield one help for each of these nodes, without sets if the end of no pod would help. Nodes where the pod fits are
    skipped. `stay`: pods that do not end."""
    demand = scheduler.demand(pod.request)
    state = scheduler.ledger.without(pod.uid)
    far = {name: lacks(state.room(name), demand) for name in names}
    for name in sorted(names, key=lambda name: (far[name], name)):
        if scheduler.fit_devices(pod.shape, name, state) is None:
            yield _help_on(scheduler, pod, name, stay)


def lacks(room: NodeRoom, demand: Demand) -> int:
    """Return how many cards and VFs are missing at least, for the order in which nodes are looked at. All shares count as one
    card."""
    cards = requested_cards(room, demand)
    free = sum(bool(card.free_mig) if demand.mig_profile else card.free for card in cards)
    some = int(any(not need.whole for need in demand.needs))
    return max(0, demand.whole_peak - free) + some + max(0, demand.vfs_peak - sum(vf.free for vf in room.vfs))


def _help_on(scheduler: Scheduler, pod: Pending, name: str, stay: Collection[PodUid]) -> NodeHelp:
    held = [one for one in scheduler.ledger.holders(name) if one.holder.pod != pod.uid]
    held.sort(key=lambda one: (not _deleting(one), _priority(one), -one.since, one.holder.pod))
    by_uid = {one.holder.pod: one for one in held}
    ending = [uid for uid in by_uid if uid not in stay]

    def fits_without(gone: Collection[PodUid]) -> bool:
        return scheduler.fit_devices(pod.shape, name, scheduler.ledger.without(pod.uid, *gone)) is not None

    found = smallest_sets(ending, fits_without, tries=TRIES)
    if not found:
        staying = [one for uid, one in by_uid.items() if uid in stay]
        return NodeHelp(node=name, stay=tuple(map(_ending, staying)) if staying and fits_without(by_uid) else ())
    together = len(found[0])
    some = [uid for uid in ending if any(uid in gone for gone in found)]
    if len(found) == comb(len(some), together) and together < len(some):
        return NodeHelp(node=name, together=together, any_of=tuple(_ending(by_uid[uid]) for uid in some))
    sets = tuple(tuple(_ending(by_uid[uid]) for uid in gone) for gone in found[:MOST_SETS])
    return NodeHelp(node=name, together=together, sets=sets, more=len(found) - len(sets))


def smallest_sets(
    pods: Sequence[PodUid], suffices: Callable[[Collection[PodUid]], bool], *, tries: int
) -> list[tuple[PodUid, ...]]:
    """Return all sets of the smallest size, in the order of the pods; if `tries` do not last to find these, one set of which
    no pod can be left out. Empty: all together are not enough. `suffices` must be monotonic: it must be true of each set that
    contains one of which it is true."""
    if not pods or not suffices(pods):
        return []
    single: list[tuple[PodUid, ...]] = [(uid,) for uid in pods if suffices((uid,))]
    if single:
        return single
    one = _none_too_many(pods, suffices)
    left = tries - 2 * len(pods)
    for size in range(2, len(one) + 1):
        some: list[tuple[PodUid, ...]] = []
        for gone in combinations(pods, size):
            left -= 1
            if left < 0:
                return some or [one]
            if suffices(gone):
                some.append(gone)
        if some:
            return some
    return [one]


def _none_too_many(pods: Sequence[PodUid], suffices: Callable[[Collection[PodUid]], bool]) -> tuple[PodUid, ...]:
    """Return a set of which no pod can be left out. The last pods of the order are put back first."""
    gone = list(pods)
    for uid in reversed(pods):
        rest = [other for other in gone if other != uid]
        if rest and suffices(rest):
            gone = rest
    return tuple(gone)


def _ending(held: Held) -> Ending:
    holder = held.holder
    return Ending(
        uid=holder.pod,
        namespace=holder.namespace,
        pod=holder.name,
        priority=_priority(held),
        deleting=_deleting(held),
    )


def _priority(held: Held) -> int:
    return held.record.priority if held.record else 0


def _deleting(held: Held) -> bool:
    """Return whether the pod is being deleted, has ended, or does not exist in the API server any more."""
    return held.record is None or held.record.deleting or held.record.terminal
