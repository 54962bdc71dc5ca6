"""Find a plan for a gang, and hold it: a node with devices for each member, in one step, before any of them has a yes.

It takes a gang without a plan, and the scheduler. A plan is made for the members that have to start together, and for others as
far as there is room beside them. It is held in the ledger only if all of it is free at that moment: a gang without a plan holds
nothing.

What kube-scheduler said of each member's nodes when it asked last is respected: taints, affinity, volumes, ports. cpu and
memory are counted for all members together.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from central.ask.gang import Terms
from central.ask.model import Shape
from central.ask.reasons import OfPod
from central.assignment.model import NOTHING_TAKEN
from central.fit.model import Placement
from central.gang.claims import hold_plan
from central.gang.model import Gang, Member
from central.gang.plan import Topology, Want, Where, count_placeable, find_plan
from central.ledger.model import Claim
from central.ledger.overlay import EmptyNodes, Overlay
from central.scheduling.scheduler import Scheduler
from central.state.pending import Pending
from lading.vocabulary import PodUid

WITHOUT_DEVICES: Final = Placement(containers={}, taken=NOTHING_TAKEN)

Domains = Callable[[str], Mapping[str, str] | None]


class GangPlanner:
    def __init__(self, scheduler: Scheduler, *, domains: Domains = lambda key: None) -> None:
        """Create it. `domains` returns the value that each node has of a label; None: the label is not one of topology."""
        self.scheduler = scheduler
        self._domains = domains
        self._names: dict[frozenset[str], frozenset[str]] = {}  # members of one template have the same nodes: kept once

    def planning(self, gang: Gang) -> Generator[None, None, bool]:
        """Search a plan in steps, and hold it with the last one. Return whether there is one; if there is none, what the gang
        is refused for says why."""
        topology = self.topology(gang.terms)
        if isinstance(topology, str):
            gang.refuse(OfPod.REQUEST_MALFORMED, topology)
            return False
        pods, first, surplus = self._waiting(gang)
        if first is None:
            gang.refuse(OfPod.GANG_WAITS_FOR_MEMBERS, "kube-scheduler has not asked about all of its members yet")
            return False
        starting = [pods[one.uid] for one in first]
        if self._refused_by_quota(gang, starting, starts=False):
            return False
        wants = yield from self._wants([*first, *surplus], pods, self._held_nodes(gang))
        state = self.scheduler.ledger.without(*pods, *gang.kept)
        where = yield from find_plan(wants[: len(first)], wants[len(first) :], state, self.place, topology)
        if where is None:
            yield from self._say_why_not(gang)
            return False
        if self._refused_by_quota(gang, starting, starts=True):  # others may have started meanwhile
            return False
        return self._hold(gang, self._within_quota(where, starting, surplus, pods), pods)

    def _refused_by_quota(self, gang: Gang, pods: Sequence[Pending], *, starts: bool) -> bool:
        refusal = self.scheduler.quotas.admits(pods, gang=True, starting=starts)
        if refusal is not None:
            gang.refuse(refusal.code, refusal.why)
        return refusal is not None

    def _within_quota(
        self, where: Where, first: Sequence[Pending], surplus: Sequence[Member], pods: Mapping[PodUid, Pending]
    ) -> Where:
        """Return the plan without the members beyond the minimum that the quota does not allow beside the others."""
        allowed = [*first]
        for member in surplus:
            if member.uid in where and self.scheduler.quotas.admits([*allowed, pods[member.uid]], gang=True) is None:
                allowed.append(pods[member.uid])
        return {pod.uid: where[pod.uid] for pod in allowed}

    def asked(self, gang: Gang) -> Generator[None, None, tuple[list[Want], Topology, Overlay] | None]:
        """Return the members that start together, with all nodes where kube-scheduler lets them go, whether or not these have
        room; None if that is not known."""
        topology = self.topology(gang.terms)
        pods, first, _ = self._waiting(gang)
        if first is None or isinstance(topology, str):
            return None
        every, known, wants = self.scheduler.ledger.nodes(), dict[frozenset[str] | None, list[str]](), list[Want]()
        for member in first:
            names = self._names_of(member)
            if names not in known:
                known[names] = [name for name in every if names is None or name in names]
            nodes = known[names] if pods[member.uid].ask.containers else sorted(names or every)
            wants.append(Want(uid=member.uid, shape=pods[member.uid].shape, nodes=nodes))
            yield
        return wants, topology, self.scheduler.ledger.without(*pods, *gang.kept)

    def starting(self, gang: Gang) -> list[Pending]:
        """Return the pods that start together, as far as kube-scheduler asked about them."""
        pods, first, _ = self._waiting(gang)
        return [pods[member.uid] for member in first or ()]

    def _waiting(self, gang: Gang) -> tuple[dict[PodUid, Pending], list[Member] | None, list[Member]]:
        """Return the pods to place, and as members those that have to start together, and the others; see `_split`."""
        members = gang.waiting()
        pods = {one.uid: pod for one in members if (pod := self.scheduler.pending.get(one.uid)) is not None}
        return pods, *_split(gang, [one for one in members if one.uid in pods])

    def _hold(self, gang: Gang, where: Where, pods: Mapping[PodUid, Pending]) -> bool:
        """Hold the plan, if every member is still there and still waits."""
        if any(uid not in gang.members or not gang.members[uid].waits for uid in where):
            return False
        requests = {uid: pods[uid].requests for uid in where}
        return hold_plan(self.scheduler.ledger, gang, where, requests) is None

    def _say_why_not(self, gang: Gang) -> Generator[None, None, None]:
        """Set what the gang is refused for: too little is free, or it is too large for the cluster."""
        asked = yield from self.asked(gang)
        if asked is None:
            return
        _, topology, _ = asked
        wants = self._anywhere(asked[0])
        size = len(self.scheduler.ledger.nodes()), len(wants)
        if gang.sized != size:  # to look at all nodes as if they were empty takes as long as a plan
            empty = EmptyNodes(ledger=self.scheduler.ledger)
            fits = yield from find_plan(wants, (), empty, self.place, topology)
            most = len(wants) if fits is not None else (yield from count_placeable(wants, empty, self.place))
            gang.sized, gang.too_large = size, fits is None
            within = f" within one {gang.terms.required_topology}" if topology.required is not None else ""
            gang.size_in_words = f"of {len(wants)} members that start together{within}, {most} would have room on empty nodes"
        if gang.too_large:
            gang.refuse(OfPod.GANG_TOO_LARGE, gang.size_in_words)
        else:
            gang.refuse(OfPod.GANG_NO_ROOM, f"{len(wants)} members start together, and there is no room for all of them now")

    def _anywhere(self, wants: Sequence[Want]) -> list[Want]:
        """Return these members as if they might be on every node: kube-scheduler leaves out nodes that lack cpu only now."""
        every = self.scheduler.ledger.nodes()
        return [replace(want, nodes=every) if want.shape.ask.containers else want for want in wants]

    def topology(self, terms: Terms) -> Topology | str:
        found: list[Mapping[str, str] | None] = []
        for key in (terms.required_topology, terms.preferred_topology):
            domains = self._domains(key) if key else None
            if key and domains is None:
                return f"{key} is no label of topology; it is one of topology_keys of central's configuration"
            found.append(domains)
        return Topology(required=found[0], preferred=found[1])

    # ---- what each member may have

    def _held_nodes(self, gang: Gang) -> list[str]:
        """Return the nodes where the gang has something already: room that is kept or made for it."""
        claims = (self.scheduler.ledger.own_claim(uid, Claim.NOMINATED) for uid in gang.members)
        return [*dict.fromkeys(claim.node for claim in (*gang.kept.values(), *claims) if claim is not None)]

    def _wants(
        self, members: Sequence[Member], pods: Mapping[PodUid, Pending], held: Sequence[str]
    ) -> Generator[None, None, list[Want]]:
        known: dict[tuple[Shape, frozenset[str] | None], Sequence[str]] = {}
        wants = []
        for member in members:
            shape, names = pods[member.uid].shape, self._names_of(member)
            if (shape, names) not in known:
                known[shape, names] = yield from self.ranked(shape, names, held)
            wants.append(Want(uid=member.uid, shape=shape, nodes=known[shape, names]))
            yield
        return wants

    def _names_of(self, member: Member) -> frozenset[str] | None:
        if member.names is None or isinstance(member.names, frozenset):
            return member.names
        names = frozenset(member.names)
        member.names = names = self._names.setdefault(names, names)
        return names

    def ranked(self, shape: Shape, names: Collection[str] | None, held: Sequence[str]) -> Generator[None, None, Sequence[str]]:
        """Return the nodes where such a pod may be, the best first; before these, `held`, which may look full to others."""
        if not shape.ask.containers:
            return sorted(self.scheduler.ledger.nodes() if names is None else names)
        yield from self.scheduler.verdicts.judging(shape.ask)
        ranked = [*dict.fromkeys([*held, *self.scheduler.verdicts.ranked(shape)])]
        return ranked if names is None else [name for name in ranked if name in names]

    def place(self, shape: Shape, name: str, state: Overlay) -> Placement | None:
        """Return what such a pod would have on the node in that state; None if it does not fit."""
        if not state.room(name).has_resources(shape.requests):
            return None
        if not shape.ask.containers:
            return WITHOUT_DEVICES
        found = self.scheduler.verdict(shape.ask, name, state, shape.requests)
        return found if isinstance(found, Placement) else None


def _split(gang: Gang, members: Sequence[Member]) -> tuple[list[Member] | None, list[Member]]:
    """Return the members that have to start together, and the others. None: kube-scheduler has not asked about enough of them,
    so that their nodes are not known. For members that are missing in a gang that runs in part any node is tried."""
    lacking = Counter(gang.lacking())
    first, surplus = [], []
    for member in members:
        role = member.membership.role
        if member.names is None and not gang.finishing:
            continue
        if lacking[role] > 0:
            lacking[role] -= 1
            first.append(member)
        else:
            surplus.append(member)
    return (None if +lacking else first), surplus
