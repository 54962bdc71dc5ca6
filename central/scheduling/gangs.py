"""Find a plan for a gang, and hold it: a node with devices for each member, in one step, before any of them has a yes.

It takes a gang without a plan, and the scheduler. A plan is made for the members that have to start together, and for others as
far as there is room beside them. It is held in the ledger only if all of it is free at that moment: a gang without a plan holds
nothing.

What kube-scheduler said of each member's nodes when it asked last is respected: taints, affinity, volumes, ports. cpu and
memory are counted for all members together.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Final

from central.ask.model import Shape
from central.ask.reasons import OfPod
from central.assignment.model import NOTHING_TAKEN
from central.fit.model import Placement
from central.gang.claims import hold_plan
from central.gang.model import Gang, Member
from central.gang.plan import Topology, Want, Where, find_plan
from central.ledger.overlay import Overlay
from central.scheduling.scheduler import Scheduler
from central.state.pending import Pending
from lading.vocabulary import PodUid

WITHOUT_DEVICES: Final = Placement(containers={}, taken=NOTHING_TAKEN)

Domains = Callable[[str], Mapping[str, str] | None]


class GangPlanner:
    def __init__(self, scheduler: Scheduler, *, domains: Domains = lambda key: None) -> None:
        """Create it. `domains` returns the value that each node has of a label; None: the label is not one of topology."""
        self._scheduler = scheduler
        self._domains = domains
        self._names: dict[frozenset[str], frozenset[str]] = {}  # members of one template have the same nodes: kept once

    def planning(self, gang: Gang) -> Generator[None, None, bool]:
        """Search a plan in steps, and hold it with the last one. Return whether there is one; if there is none, what the gang
        is refused for says why."""
        members = gang.waiting()
        pods = {one.uid: pod for one in members if (pod := self._scheduler.pending.get(one.uid)) is not None}
        topology = self._topology(gang)
        if isinstance(topology, str):
            gang.refuse(OfPod.REQUEST_MALFORMED, topology)
            return False
        first, surplus = _split(gang, [one for one in members if one.uid in pods])
        if first is None:
            gang.refuse(OfPod.GANG_WAITS_FOR_MEMBERS, "kube-scheduler has not asked about all of its members yet")
            return False
        wants = yield from self._wants([*first, *surplus], pods)
        state = self._scheduler.ledger.without(*pods, *gang.kept)
        where = yield from find_plan(wants[: len(first)], wants[len(first) :], state, self._place, topology)
        if where is None:
            yield from self._say_why_not(gang, wants[: len(first)], state, topology)
            return False
        return self._hold(gang, where, pods)

    def _hold(self, gang: Gang, where: Where, pods: Mapping[PodUid, Pending]) -> bool:
        """Hold the plan, if every member is still there and still waits."""
        if any(uid not in gang.members or not gang.members[uid].waits for uid in where):
            return False
        requests = {uid: pods[uid].requests for uid in where}
        return hold_plan(self._scheduler.ledger, gang, where, requests) is None

    def _say_why_not(
        self, gang: Gang, wants: Sequence[Want], state: Overlay, topology: Topology
    ) -> Generator[None, None, None]:
        gang.refuse(OfPod.GANG_NO_ROOM, f"{len(wants)} members start together, and there is no room for all of them now")
        yield

    def _topology(self, gang: Gang) -> Topology | str:
        found: list[Mapping[str, str] | None] = []
        for key in (gang.terms.required_topology, gang.terms.preferred_topology):
            domains = self._domains(key) if key else None
            if key and domains is None:
                return f"{key} is no label of topology; it is one of topology_keys of central's configuration"
            found.append(domains)
        return Topology(required=found[0], preferred=found[1])

    # ---- what each member may have

    def _wants(self, members: Sequence[Member], pods: Mapping[PodUid, Pending]) -> Generator[None, None, list[Want]]:
        known: dict[tuple[Shape, frozenset[str] | None], Sequence[str]] = {}
        wants = []
        for member in members:
            shape, names = pods[member.uid].shape, self._names_of(member)
            if (shape, names) not in known:
                known[shape, names] = yield from self._nodes(shape, names)
            wants.append(Want(uid=member.uid, shape=shape, nodes=known[shape, names]))
            yield
        return wants

    def _names_of(self, member: Member) -> frozenset[str] | None:
        if member.names is None or isinstance(member.names, frozenset):
            return member.names
        names = frozenset(member.names)
        member.names = names = self._names.setdefault(names, names)
        return names

    def _nodes(self, shape: Shape, names: Collection[str] | None) -> Generator[None, None, Sequence[str]]:
        """Return the nodes where such a pod may be, the best first."""
        if not shape.ask.containers:
            return sorted(self._scheduler.ledger.nodes() if names is None else names)
        yield from self._scheduler.verdicts.judging(shape.ask)
        ranked = self._scheduler.verdicts.ranked(shape)
        return ranked if names is None else [name for name in ranked if name in names]

    def _place(self, shape: Shape, name: str, state: Overlay) -> Placement | None:
        if not state.room(name).has_resources(shape.requests):
            return None
        if not shape.ask.containers:
            return WITHOUT_DEVICES
        found = self._scheduler.verdict(shape.ask, name, state, shape.requests)
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
