"""Find a plan for a gang (a node with devices for each member), and hold it in one step before any member is accepted.

A plan covers the members that have to start together, and other members as far as free capacity is left beside them.
The ledger holds a plan only if all of its devices are free at that moment: a gang without a plan holds nothing.

The planner respects the nodes that kube-scheduler named in its last call about a member: taints, affinity, volumes, ports. The
member's own node rules are checked again, because nodes may have changed since. cpu and memory count for all members together.

Tests: tests/unit/central/gang/test_tenants.py
"""

from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from central.decide.scheduler import Scheduler
from central.decide.yielding import Yielding
from central.gang.draft import Want, Where
from central.gang.gang import Gang, Member, Size
from central.gang.life import Phase
from central.gang.plan import GangTopology, count_placeable, find_plan
from central.gang.rails import running_rails
from central.ledger.model import Claim
from central.ledger.overlay import Overlay
from central.quota.checks import QuotaRefusal
from central.request.gang import Terms
from central.request.model import CpuMemory, Shape
from central.request.node_rules import NodeRules
from central.request.reasons import OfPod
from central.search.placement import Placement
from central.state.nodes import Nodes
from central.state.pending import Pending
from lading.vocabulary import PodUid

ALL_DEVICES: Final = Fraction(1)

Names = Mapping[PodUid, frozenset[str] | None]  # allowed nodes of each member; None: any node


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlan:
    where: Where
    cpu_memory: Mapping[PodUid, CpuMemory]
    takes_lower: bool  # the plan includes devices that are claimed for unbound pods of lower priority
    pods: Sequence[Pending]  # the placed members
    left_out: Sequence[tuple[Pending, QuotaRefusal]]  # members beyond the minimum that the quota does not allow


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    reason: OfPod
    message: str
    size: Size | None = None  # whether the gang would fit on empty nodes, if this was searched
    quota: QuotaRefusal | None = None  # refusal by the quota of `pods`, the members that start together
    pods: Sequence[Pending] = ()


class GangPlanner:
    def __init__(self, scheduler: Scheduler, nodes: Nodes | None = None, *, plan_share: Fraction = ALL_DEVICES) -> None:
        """Create the planner. `nodes`: the nodes' traits, against which node rules are checked. `plan_share`: the part of all
        devices that plans without a bound member may hold together; a single plan may be larger."""
        self.scheduler = scheduler
        self._plan_share = plan_share
        self.for_singles = frozenset[str]()  # nodes that gangs leave to single pods for a moment
        self._nodes = Nodes() if nodes is None else nodes

    def state(self, gang: Gang) -> object:
        """Return a value for the inputs of a search: while the value is the same, another search has the same result."""
        ledger, calls = self.scheduler.ledger, self.scheduler.gangs.calls.count(gang.members)
        return ledger.version, ledger.loads_version, gang.version, calls, self.for_singles

    def planning(self, gang: Gang) -> Generator[None, None, FoundPlan | NoPlan]:
        """Search a plan in steps. The gang may have changed by the last step, so ask can_start before the plan is used."""
        topology = self.topology(gang.terms)
        if isinstance(topology, str):
            return NoPlan(reason=OfPod.REQUEST_MALFORMED, message=topology)
        pods, names = yield from self._waiting(gang)
        first, surplus = self._split(gang, names)
        if first is None:
            message = "kube-scheduler has not asked about all of its members yet"
            return NoPlan(reason=OfPod.GANG_WAITS_FOR_MEMBERS, message=message)
        starting = [pods[one.uid] for one in first]
        refused = self._refused_by_quota(gang, starting)
        refused = refused or (None if gang.finishing else self._beyond_share(gang, starting))
        if refused is not None:
            return refused
        lower: Sequence[Yielding] = ()
        where = yield from self._find(gang, first, surplus, pods, names, topology, lower)
        if where is None and (lower := self.scheduler.yielding(gang.priority)):
            where = yield from self._find(gang, first, surplus, pods, names, topology, lower)
        if where is None:
            return (yield from self._why_not(gang))
        # Other pods of the quota may have started during the search.
        if (refused := self._refused_by_quota(gang, starting)) is not None:
            return refused
        allowed, left_out = self._within_quota(gang, where, starting, surplus, pods)
        placed = self._within_share(gang, starting, allowed[len(starting) :])
        return FoundPlan(
            where={pod.uid: where[pod.uid] for pod in placed},
            cpu_memory={pod.uid: pod.cpu_memory for pod in placed},
            takes_lower=bool(lower),
            pods=placed,
            left_out=left_out,
        )

    def _find(
        self,
        gang: Gang,
        first: Sequence[Member],
        surplus: Sequence[Member],
        pods: Mapping[PodUid, Pending],
        names: Names,
        topology: GangTopology,
        lower: Sequence[Yielding],
    ) -> Generator[None, None, Where | None]:
        """Search a plan as if `lower`, the claims for pods of lower priority, were free."""
        last = dict.fromkeys(claim.node for one in lower for claim in one.claims)
        wants = yield from self._wants(gang, [*first, *surplus], pods, names, last)
        evicted = [uid for one in lower for uid in one.uids]
        state = self.scheduler.ledger.without(*pods, *gang.life.kept, *evicted)
        rails = running_rails(gang, self.scheduler.ledger)
        return (yield from find_plan(wants[: len(first)], wants[len(first) :], state, self.place, topology, rails=rails))

    def _beyond_share(self, gang: Gang, pods: Sequence[Pending]) -> NoPlan | None:
        """Return a refusal if this plan and the other plans without a bound member exceed `plan_share`. A single plan is never
        refused."""
        held = self._planned_beside(gang)
        part = self.scheduler.tenants.part_of([*held, *pods])
        if not held or part <= self._plan_share:
            return None
        reason = f"gangs that are planned and not bound, and this one, are {_percent(part)} of all devices"
        message = f"{reason}; {_percent(self._plan_share)} are allowed (gang_plan_share)"
        return NoPlan(reason=OfPod.GANG_WAITS_FOR_TURN, message=message)

    def _planned_beside(self, gang: Gang) -> list[Pending]:
        """Return the pods of other gangs' plans without a sent Binding, of the gang's priority or higher."""
        gangs = (one for one in self.scheduler.gangs.holding if one.key != gang.key and not one.is_below(gang.priority))
        uids = (uid for one in gangs if one.phase is Phase.PLANNED for uid in one.plan)
        return [pod for uid in uids if (pod := self.scheduler.pending.get(uid)) is not None]

    def _within_share(self, gang: Gang, first: Sequence[Pending], surplus: Sequence[Pending]) -> list[Pending]:
        """Return the members without the surplus that would exceed `plan_share`."""
        counted = [*self._planned_beside(gang), *first]
        return [*first, *self.scheduler.tenants.within(self._plan_share, counted, surplus)]

    def _refused_by_quota(self, gang: Gang, pods: Sequence[Pending]) -> NoPlan | None:
        refusal = self.scheduler.quotas.admits(pods, gang=True, given_back=gang.life.kept)
        return None if refusal is None else NoPlan(reason=refusal.code, message=refusal.why, quota=refusal, pods=pods)

    def _within_quota(
        self, gang: Gang, where: Where, first: Sequence[Pending], surplus: Sequence[Member], pods: Mapping[PodUid, Pending]
    ) -> tuple[list[Pending], list[tuple[Pending, QuotaRefusal]]]:
        """Return the placed members that the quota allows together, and the refused ones."""
        allowed, left_out = [*first], list[tuple[Pending, QuotaRefusal]]()
        for pod in (pods[member.uid] for member in surplus if member.uid in where):
            refusal = self.scheduler.quotas.admits([*allowed, pod], gang=True, given_back=gang.life.kept)
            if refusal is None:
                allowed.append(pod)
            else:
                left_out.append((pod, refusal))
        return allowed, left_out

    def find_wants(
        self, gang: Gang, *, staying: Collection[str] | None = None
    ) -> Generator[None, None, tuple[list[Want], GangTopology, Overlay] | None]:
        """Return the members that start together, with all nodes that kube-scheduler allows, whether free or not; None if the
        nodes are not known. If `staying` is given, its nodes count too, and so do nodes that lack only cpu or memory now.
        kube-scheduler leaves out the latter; if it leaves out all nodes, it does not call central, and sets the pod's
        condition."""
        topology = self.topology(gang.terms)
        pods, names = yield from self._waiting(gang)
        if staying is not None:
            names = {uid: frozenset() for uid, pod in pods.items() if pod.unschedulable} | dict(names)
        first, _ = self._split(gang, names)
        if first is None or isinstance(topology, str):
            return None
        state = self.scheduler.ledger.without(*pods, *gang.life.kept)
        known, wants = dict[tuple[Shape, frozenset[str] | None, NodeRules | None], list[str]](), list[Want]()
        for member in first:
            pod, possible = pods[member.uid], names[member.uid]
            kind = pod.shape, possible, pod.node_rules
            if kind not in known:
                known[kind] = yield from self._possible(pod, possible, state, staying)
            wants.append(Want(uid=member.uid, shape=pod.shape, nodes=known[kind]))
            yield
        return wants, topology, state

    def _possible(
        self, pod: Pending, named: Collection[str] | None, state: Overlay, staying: Collection[str] | None
    ) -> Generator[None, None, list[str]]:
        """Return the nodes that such a pod may use, by the rules of `find_wants`."""
        if not pod.request.containers:
            return sorted(named or self.scheduler.ledger.nodes())
        nodes = []
        for name in self.scheduler.ledger.nodes():
            if named is None or name in named or (staying is not None and name in staying):
                nodes.append(name)
            elif staying is not None and self._nodes.allow(pod.node_rules, name):
                if not state.capacity(name).has_resources(pod.cpu_memory):
                    nodes.append(name)
                yield
        return nodes

    def starting(self, gang: Gang) -> Generator[None, None, list[Pending]]:
        """Return the pods that start together, as far as their nodes are known."""
        pods, names = yield from self._waiting(gang)
        first, _ = self._split(gang, names)
        return [pods[member.uid] for member in first or ()]

    def _has_place(self, gang: Gang, member: Member) -> bool:
        """Return whether a node is decided for the member: it stays there when the gang is planned again, because
        kube-scheduler may be binding it there."""
        return member.uid in gang.life.places or self.scheduler.ledger.own_claim(member.uid, Claim.RESERVED) is not None

    def _split(self, gang: Gang, names: Names) -> tuple[list[Member] | None, list[Member]]:
        """Split the members without a place and with known nodes into the members that have to start together, and the others.
        The first part is None if it has too few members."""
        lacking = Counter(gang.lacking())
        lacking.subtract(member.membership.role for member in gang.waiting() if self._has_place(gang, member))
        first, surplus = [], []
        for member in (one for one in gang.waiting() if one.uid in names):
            role = member.membership.role
            if lacking[role] > 0:
                lacking[role] -= 1
                first.append(member)
            else:
                surplus.append(member)
        return (None if +lacking else first), surplus

    def _waiting(self, gang: Gang) -> Generator[None, None, tuple[dict[PodUid, Pending], Names]]:
        """Return the pods to place, by rank and age, and the allowed nodes of each pod, if known. A member without a call from
        kube-scheduler gets the nodes of another member with the same request. If this guess was wrong once, central waits for
        the call."""
        calls = self.scheduler.gangs.calls
        members = [member for member in gang.waiting() if not self._has_place(gang, member)]
        pods = {one.uid: pod for one in members if (pod := self.scheduler.pending.get(one.uid)) is not None}
        names: dict[PodUid, frozenset[str] | None] = {}
        whole: dict[frozenset[Collection[str]], frozenset[str]] = {}  # members of one template share a copy
        like: dict[Shape, frozenset[str]] = {}
        for member in members:
            if member.uid in pods and calls.names(member.uid):
                calls.compress(member.uid)
                parts = frozenset(calls.names(member.uid).values())
                if parts not in whole:
                    whole[parts] = frozenset().union(*parts)
                names[member.uid] = whole[parts]
                like.setdefault(pods[member.uid].shape, whole[parts])
                yield
        for uid, pod in pods.items():
            if uid not in names and gang.search.guesses and pod.shape in like:
                names[uid] = like[pod.shape]
            elif uid not in names and gang.finishing:
                names[uid] = None  # a missing member of a gang that runs in part may use any node
        return pods, names

    def can_start(self, gang: Gang, where: Where) -> bool:
        """Return whether the gang can start with these places. Its members may have changed during the search."""
        waiting = {member.uid: member for member in gang.waiting()}
        placed = (one.membership.role for one in waiting.values() if one.uid in where or self._has_place(gang, one))
        lacking = Counter(gang.lacking())
        lacking.subtract(placed)
        return where.keys() <= waiting.keys() and not +lacking

    def apply(self, gang: Gang, result: FoundPlan | NoPlan, *, until: float, counts: bool) -> bool:
        """Hold the plan of a search, or record why there is none. A plan is held if the gang can still start with it and its
        devices are still free; claims of lower priority on its nodes end before that. Return whether the plan is held.
        `until`, `counts`: see Starts.plan."""
        quotas = self.scheduler.quotas
        if isinstance(result, NoPlan):
            if result.quota is not None:
                quotas.record(result.pods, result.quota)
            size = result.size or gang.search.size
            self.scheduler.gangs.note(gang, reason=result.reason, message=result.message, size=size)
            return False
        quotas.record(result.pods, None)
        for pod, refusal in result.left_out:
            quotas.record([pod], refusal)
        if not self.can_start(gang, result.where):
            return False
        if result.takes_lower:
            self.scheduler.end_lower({planned.node for planned in result.where.values()}, gang.priority)
        return self.scheduler.starts.plan(gang, result.where, result.cpu_memory, until=until, counts=counts) is None

    def _why_not(self, gang: Gang) -> Generator[None, None, NoPlan]:
        """Return the refusal of a gang that does not fit: too few devices are free, or the gang is too large for the
        cluster."""
        find_wants = yield from self.find_wants(gang)
        if find_wants is None:
            return NoPlan(reason=gang.search.reason, message=gang.search.message)
        _, topology, _ = find_wants
        wants = self._anywhere(find_wants[0])
        nodes, size = len(self.scheduler.ledger.nodes()), gang.search.size
        if size is None or (size.nodes, size.members) != (nodes, len(wants)):
            # A search on all nodes as empty takes as long as a plan, so its result is kept.
            empty = self.scheduler.ledger.empty_nodes()
            fits = yield from find_plan(wants, (), empty, self.place, topology)
            most = len(wants) if fits is not None else (yield from count_placeable(wants, empty, self.place))
            within = f" within one {gang.terms.required_topology}" if topology.required is not None else ""
            message = f"of {len(wants)} members that start together{within}, {most} would have room on empty nodes"
            size = Size(nodes=nodes, members=len(wants), too_large=fits is None, message=message)
        if size.too_large:
            return NoPlan(reason=OfPod.GANG_TOO_LARGE, message=size.message, size=size)
        message = f"{len(wants)} members start together, and there is no room for all of them now"
        return NoPlan(reason=OfPod.GANG_NO_ROOM, message=message, size=size)

    def _anywhere(self, wants: Sequence[Want]) -> list[Want]:
        """Return these members with all nodes allowed, because kube-scheduler leaves out nodes that lack cpu only now."""
        every = self.scheduler.ledger.nodes()
        return [replace(want, nodes=every) if want.shape.request.containers else want for want in wants]

    def topology(self, terms: Terms) -> GangTopology | str:
        result: list[Mapping[str, str] | None] = []
        for key in (terms.required_topology, terms.preferred_topology):
            domains = self.scheduler.domains(key) if key else None
            if key and domains is None:
                return f"{key} is no label of topology; it is one of topology_keys of central's configuration"
            result.append(domains)
        return GangTopology(required=result[0], preferred=result[1])

    # ---- nodes and devices of each member

    def _held_nodes(self, gang: Gang) -> list[str]:
        """Return the nodes where devices are already kept, or freed by evictions, for the gang."""
        claims = (self.scheduler.ledger.own_claim(uid, Claim.NOMINATED) for uid in gang.members)
        return [*dict.fromkeys(claim.node for claim in (*gang.life.kept.values(), *claims) if claim is not None)]

    def _wants(
        self, gang: Gang, members: Sequence[Member], pods: Mapping[PodUid, Pending], names: Names, last: Collection[str]
    ) -> Generator[None, None, list[Want]]:
        """Return the members with the allowed nodes of each. `last`: nodes to try after all other nodes, because they may
        appear full."""
        held = self._held_nodes(gang)
        without = frozenset[str]() if gang.finishing else self.for_singles
        known: dict[tuple[Shape, frozenset[str] | None, NodeRules | None], Sequence[str]] = {}
        wants = []
        for member in members:
            pod, possible = pods[member.uid], names[member.uid]
            kind = pod.shape, possible, pod.node_rules
            if kind not in known:
                ranked = yield from self.ranked(pod.shape, possible, held, last)
                allowed = (name for name in ranked if self._nodes.allow(pod.node_rules, name) is not False)
                known[kind] = [name for name in allowed if name not in without or not pod.request.containers]
            wants.append(Want(uid=member.uid, shape=pod.shape, nodes=known[kind]))
            yield
        return wants

    def ranked(
        self, shape: Shape, names: Collection[str] | None, held: Sequence[str], last: Collection[str] = ()
    ) -> Generator[None, None, Sequence[str]]:
        """Return the nodes for such a pod, the best first. `held` nodes come before all other nodes, `last` nodes after them,
        because they may appear full."""
        if not shape.request.containers:
            return sorted(self.scheduler.ledger.nodes() if names is None else names)
        yield from self.scheduler.verdicts.judging(shape.request)
        ranked = [*dict.fromkeys([*held, *self.scheduler.verdicts.ranked(shape), *last])]
        return ranked if names is None else [name for name in ranked if name in names]

    def place(self, shape: Shape, name: str, state: Overlay) -> Placement | None:
        """Return the devices for such a pod on the node in this state; None if the pod does not fit."""
        return self.scheduler.fit_pod(shape, name, state)


def _percent(part: Fraction) -> str:
    return f"{round(100 * part)} %"
