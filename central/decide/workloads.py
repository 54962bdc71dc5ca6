"""Find a place for every pod of a Workload of Kueue before the pods exist.

Take a Workload with quota, and the planner of gangs. Return the places of each pod set, or the answer to Kueue if the pods do
not fit. Nothing is held here.

The node selector of the template counts, with the labels of the flavors that Kueue chose. The cpu and memory of all pods
together count too. kube-scheduler judges taints, affinity and volumes when the pods exist. Pods without devices are not
planned, unless they are members of a gang.

Tests: tests/unit/central/gang/test_kueue.py
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

from central.api.kueue import PodSet, Workload
from central.decide.gangs import GangPlanner
from central.gang.admission import AdmissionAnswer, AnswerState
from central.gang.draft import Want, Where
from central.gang.plan import GangTopology, count_placeable, find_plan
from central.gang.workload_places import place_uid
from central.ledger.model import Claim, Holder, OwnClaim
from central.request.cpu_memory import cpu_memory_of
from central.request.gang import MAX_MIN, Terms, parse_membership
from central.request.model import MalformedRequest, Shape
from central.request.parse import parse_request
from lading.vocabulary import GANG_ANNOTATIONS, PodUid

Places = Mapping[str, Sequence[OwnClaim]]  # claims by pod set


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """Hold the pods of one set that have to be placed."""

    name: str
    uids: tuple[PodUid, ...]
    shape: Shape
    selector: Mapping[str, str]
    terms: Terms | None  # settings of the pods' gang


class WorkloadPlanner:
    def __init__(
        self,
        planner: GangPlanner,
        *,
        chosen: Callable[[Mapping[str, str]], Collection[str]],
        flavor: Callable[[str], Mapping[str, str]],
    ) -> None:
        """Create the planner. `chosen` returns the nodes with these labels; `flavor` returns the node labels of a flavor."""
        self._planner = planner
        self._chosen = chosen
        self._flavor = flavor

    def planning(self, workload: Workload) -> Generator[None, None, Places | AdmissionAnswer]:
        """Search places for the Workload's pods, in steps."""
        sets = self._sets(workload)
        if isinstance(sets, str):
            return AdmissionAnswer(state=AnswerState.REJECTED, message=sets)
        terms = next((one.terms for one in sets if one.terms is not None), Terms())
        topology = self._planner.topology(terms)
        if isinstance(topology, str):
            return AdmissionAnswer(state=AnswerState.REJECTED, message=topology)
        ledger = self._planner.scheduler.ledger
        places = [uid for one in sets for uid in one.uids]  # held already, if an earlier answer could not be written
        held = [claim.node for uid in places if (claim := ledger.own_claim(uid, Claim.PLANNED)) is not None]
        wants = list[Want]()
        for one in sets:
            nodes = yield from self._planner.ranked(one.shape, self._names(one), held)
            wants += [Want(uid=uid, shape=one.shape, nodes=nodes) for uid in one.uids]
        where = yield from find_plan(wants, (), ledger.without(*places), self._planner.place, topology)
        if where is None:
            return (yield from self._why_not(sets, topology))
        return {one.name: [_claim(workload, one, number, where) for number in range(len(one.uids))] for one in sets}

    def _sets(self, workload: Workload) -> list[_Set] | str:
        """Return the sets with pods to place, or a message why the Workload cannot be used."""
        counts, result = workload.counts, list[_Set]()
        for pod_set in workload.spec.pod_sets:
            pod = pod_set.pod(workload.metadata.namespace)
            request, gang = parse_request(pod, self._planner.scheduler.dialects), parse_membership(pod)
            if isinstance(request, MalformedRequest):
                return f"pod set {pod_set.name}: {request.message}"
            if isinstance(gang, MalformedRequest) and GANG_ANNOTATIONS & pod.metadata.annotations.keys():
                return f"pod set {pod_set.name}: {gang.message}"  # keys of other systems may be added to the pods later
            if request is None:
                continue
            if sum(len(one.uids) for one in result) + counts.get(pod_set.name, 0) > MAX_MIN:
                return f"{sum(counts.values())} pods with devices are too many; {MAX_MIN} at most start together"
            uid = workload.metadata.uid
            one = _Set(
                name=pod_set.name,
                uids=tuple(place_uid(uid, pod_set.name, number) for number in range(counts.get(pod_set.name, 0))),
                shape=Shape(request=request, cpu_memory=cpu_memory_of(pod)),
                selector=self._selector(workload, pod_set),
                terms=None if gang is None or isinstance(gang, MalformedRequest) else gang.terms,
            )
            result.append(one)
        return result

    def _selector(self, workload: Workload, pod_set: PodSet) -> Mapping[str, str]:
        selector = dict(pod_set.template.spec.node_selector or {})
        for flavor in workload.flavors(pod_set.name):
            selector |= self._flavor(flavor)
        return selector

    def _names(self, one: _Set) -> Collection[str] | None:
        """Return the allowed nodes of the set's pods; None: any node."""
        return self._chosen(one.selector) if one.selector else None

    def _why_not(self, sets: Sequence[_Set], topology: GangTopology) -> Generator[None, None, AdmissionAnswer]:
        """Return Rejected if the pods would not fit on empty nodes with everything in service, else Retry."""
        ledger, place = self._planner.scheduler.ledger, self._planner.place
        wants = list[Want]()
        for one in sets:
            names, every = self._names(one), ledger.nodes()
            nodes = every if names is None else [name for name in every if name in names]
            wants += [Want(uid=uid, shape=one.shape, nodes=nodes) for uid in one.uids]
        capacities = [*ledger.capacities()]
        away = sum(not capacity.serving for capacity in capacities)
        broken = sum(not card.usable for capacity in capacities if capacity.serving for card in capacity.cards)
        less = f"; {away} nodes and {broken} cards are out of service" if away or broken else ""
        empty = ledger.empty_nodes()
        if not capacities or (yield from find_plan(wants, (), empty, place, topology)) is not None:
            return AdmissionAnswer(state=AnswerState.RETRY, message=f"there is no room for all of {len(wants)} pods now{less}")
        most = yield from count_placeable(wants, empty, place)
        message = f"of {len(wants)} pods that start together, {most} would have room on empty nodes{less}"
        return AdmissionAnswer(state=AnswerState.REJECTED, message=message)


def _claim(workload: Workload, one: _Set, number: int, where: Where) -> OwnClaim:
    uid = one.uids[number]
    holder = Holder(pod=uid, namespace=workload.metadata.namespace, name=f"{workload.metadata.name}/{one.name}/{number}")
    return OwnClaim(holder=holder, node=where[uid].node, taken=where[uid].placement.taken, cpu_memory=one.shape.cpu_memory)
