"""Find the pods that would have to end so that a pending pod fits, node by node.

The nodes with the fewest missing devices come first. For each node the result has the smallest found sets of pods: once all
pods of one set have ended, the pending pod fits there. Every set is verified by central's own fit, as if its pods had ended;
nothing is estimated from amounts. Only devices are considered.

Some pods do not end, or come back on the same node: pods of DaemonSets, and static pods with their mirror pods. They are in no
set, but are listed if only they are in the way. The ledger has no owners of pods, so the caller names these pods.

The search is bounded. All single pods are tried, then pairs, threes and so on, up to the node's maximum number of fits. After
that, the result is one set from which no pod can be left out. So a set may be larger than necessary, but never too small.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Final

import msgspec

from central.decide.scheduler import Scheduler
from central.ledger.model import Held, NodeCapacity
from central.search.demand import Demand
from central.search.shortage import requested_cards
from central.state.pending import Pending
from central.view.model import Ending
from lading.vocabulary import PodUid

TRIES: Final = 400  # maximum fits on one node, some 0.1 ms each
MOST_SETS: Final = 6  # maximum sets that are reported for one node


class NodeHelp(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the pods that would have to end on one node. Without `any_of` and `sets`, the end of no pod would help there."""

    node: str
    together: int = 0  # number of pods that have to end
    any_of: tuple[Ending, ...] = ()  # any `together` of these suffice; ending pods first, then the least important
    sets: tuple[tuple[Ending, ...], ...] = ()  # used if not any pods suffice: all pods of one of these sets suffice
    more: int = 0  # number of sets that are not listed
    stay: tuple[Ending, ...] = ()  # without sets: pods that do not end, if the pending pod would fit without them too


def find_helps(
    scheduler: Scheduler,
    pod: Pending,
    names: Collection[str],
    *,
    stay: Collection[PodUid] = frozenset(),
) -> Iterator[NodeHelp]:
    """Yield one NodeHelp for each of these nodes, except those where the pod fits. `stay`: pods that do not end."""
    demand = scheduler.demand(pod.request)
    state = scheduler.ledger.without(pod.uid)
    far = {name: lacks(state.capacity(name), demand) for name in names}
    for name in sorted(names, key=lambda name: (far[name], name)):
        if scheduler.fit_devices(pod.shape, name, state) is None:
            yield _help_on(scheduler, pod, name, stay)


def lacks(capacity: NodeCapacity, demand: Demand) -> int:
    """Return the minimum number of missing cards and VFs, to order the nodes of a search. All shares count as one card."""
    cards = requested_cards(capacity, demand)
    free = sum(bool(card.free_mig) if demand.mig_profile else card.free for card in cards)
    some = int(any(not need.whole for need in demand.needs))
    return max(0, demand.whole_peak - free) + some + max(0, demand.vfs_peak - sum(vf.free for vf in capacity.vfs))


def _help_on(scheduler: Scheduler, pod: Pending, name: str, stay: Collection[PodUid]) -> NodeHelp:
    held = [one for one in scheduler.ledger.holders(name) if one.holder.pod != pod.uid]
    held.sort(key=lambda one: (not _deleting(one), _priority(one), -one.since, one.holder.pod))
    by_uid = {one.holder.pod: one for one in held}
    ending = [uid for uid in by_uid if uid not in stay]

    def fits_without(ended: Collection[PodUid]) -> bool:
        return scheduler.fit_devices(pod.shape, name, scheduler.ledger.without(pod.uid, *ended)) is not None

    result = smallest_sets(ending, fits_without, tries=TRIES)
    if not result:
        staying = [one for uid, one in by_uid.items() if uid in stay]
        return NodeHelp(node=name, stay=tuple(map(_ending, staying)) if staying and fits_without(by_uid) else ())
    together = len(result[0])
    some = [uid for uid in ending if any(uid in ended for ended in result)]
    if len(result) == comb(len(some), together) and together < len(some):
        return NodeHelp(node=name, together=together, any_of=tuple(_ending(by_uid[uid]) for uid in some))
    sets = tuple(tuple(_ending(by_uid[uid]) for uid in ended) for ended in result[:MOST_SETS])
    return NodeHelp(node=name, together=together, sets=sets, more=len(result) - len(sets))


def smallest_sets(
    pods: Sequence[PodUid], suffices: Callable[[Collection[PodUid]], bool], *, tries: int
) -> list[tuple[PodUid, ...]]:
    """Return all sufficient sets of the smallest size, in the order of the pods. Empty: all pods together do not suffice. After
    about `tries` calls, return the sets of that size found so far, or one set from which no pod can be left out.
    `suffices` must be monotonic: if it is true for a set, it is true for each larger set that contains the set."""
    if not pods or not suffices(pods):
        return []
    single: list[tuple[PodUid, ...]] = [(uid,) for uid in pods if suffices((uid,))]
    if single:
        return single
    one = _none_too_many(pods, suffices)
    left = tries - 2 * len(pods)
    for size in range(2, len(one) + 1):
        some: list[tuple[PodUid, ...]] = []
        for ended in combinations(pods, size):
            left -= 1
            if left < 0:
                return some or [one]
            if suffices(ended):
                some.append(ended)
        if some:
            return some
    return [one]


def _none_too_many(pods: Sequence[PodUid], suffices: Callable[[Collection[PodUid]], bool]) -> tuple[PodUid, ...]:
    """Return a sufficient set from which no pod can be left out. The last pods are left out first."""
    ended = list(pods)
    for uid in reversed(pods):
        rest = [other for other in ended if other != uid]
        if rest and suffices(rest):
            ended = rest
    return tuple(ended)


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
