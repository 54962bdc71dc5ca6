"""Keep the state of the quotas: their objects, the amounts that pods hold and request, and the pods that wait for a quota.

The inputs are ElasticQuotas of both kinds, the ledger and the pending pods. Every claim in the ledger counts as held, also a
planned one. The results are whether a pod or gang may start now, and which refused pods may try again.

Nothing is counted without a quota. When the first quota appears, pods are counted in steps (`scan`), and no pod is refused
before all are counted. From then on a query counts only pods and nodes that changed since the last query, and divides again
only groups of quotas with changed amounts.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from central.assignment.model import Admitted
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, NodeCapacity, PodRecord
from central.loop.steps import Steps
from central.quota.amounts import CARD, add, held, model_key, requested, total_of
from central.quota.checks import Key, QuotaRefusal, check, lendable, turn_key
from central.quota.model import DEFAULT, FLAT, NO_OWNER, ROOT, SYSTEM, Amounts, Owner, Quota, QuotaDialect, QuotaId, owner_of
from central.quota.preemption import Preemption, as_text, guaranteed_by
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.runtime import Divided
from central.quota.tree import Tree, build
from central.request.cpu_memory import CPU, MEMORY
from central.request.reasons import OfPod
from central.state.pending import Pending, PendingPods
from central.state.tenants import InTurn
from lading.vocabulary import RESOURCE_GPU, RESOURCE_RDMA, PodUid

REQUEUED_AT_ONCE: Final = 64  # maximum pods of one quota that are requeued at once; others follow in the next scans
_AT_ONCE: Final = 64  # pods that are counted in one step
NONE: Final[Amounts] = MappingProxyType({})

ObjectKey = tuple[QuotaDialect, str]  # the dialect and the object's uid


class Counted(NamedTuple):
    owner: Owner = NO_OWNER
    quotas: tuple[QuotaId, ...] = ()
    held: Amounts = NONE
    requested: Amounts = NONE  # requested amounts; for a pod that does not wait, its held amounts
    priority: int | None = None  # only for a pod that may be evicted for others of its quotas


class _Capacity(NamedTuple):
    amounts: Amounts = NONE
    models: Mapping[str, int] = MappingProxyType({})  # smallest usable MiB of a card, by GPU model


NOTHING: Final = Counted()


class _Own:
    """Hold the sums over the pods of one quota, or a change of these sums."""

    __slots__ = ("fixed", "held", "requested")

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.fixed: dict[str, int] = {}
        self.requested: dict[str, int] = {}

    def count(self, pod: Counted, times: int) -> Self:
        add(self.held, pod.held, times)
        add(self.requested, pod.requested, times)
        if not pod.owner.preemptible:
            add(self.fixed, pod.held, times)
        return self

    def add(self, change: "_Own") -> None:
        add(self.held, change.held)
        add(self.fixed, change.fixed)
        add(self.requested, change.requested)

    @property
    def empty(self) -> bool:
        return not (self.held or self.fixed or self.requested)


class Quotas:
    def __init__(self, ledger: Ledger, pending: PendingPods) -> None:
        self._ledger = ledger
        self._pending = pending
        pending.changed = self._pod_changed
        self._quotas: dict[ObjectKey, Quota] = {}
        self._released: list[PodUid] = []  # pods refused by a quota that are in no quota any more
        self._forget()

    def _forget(self) -> None:
        self._tree = Tree()
        self._stale = False  # the tree has to be rebuilt
        self._counts = False  # all pods are counted
        self._observed = self._observed_capacities = self._observed_loads = -1
        self._uncounted: dict[str, None] = {}  # nodes that have to be counted
        self._changed: set[PodUid] = set()
        self._held: dict[PodUid, dict[str, Amounts]] = {}  # held amounts by pod and node
        self._on_node: dict[str, dict[PodUid, tuple[object, Amounts]]] = {}  # counted ledger value and amounts, by node and pod
        self._counted: dict[PodUid, Counted] = {}
        self._of_owner: dict[Owner, tuple[QuotaId, ...]] = {}
        self._priorities: defaultdict[tuple[QuotaId, ...], Counter[int]] = defaultdict(Counter)
        self._capacity: dict[str, _Capacity] = {}
        self._models: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._totals_stale = True
        self._refused: dict[QuotaId, dict[PodUid, None]] = {}
        self._turns: dict[PodUid, tuple[QuotaId, Amounts]] = {}  # pods that wait for their quota's turn, the longest first
        self._freed: set[QuotaId] = set()
        self._own: dict[QuotaId, _Own] = {}
        self._begin_sums()

    def _begin_sums(self) -> None:
        """Compute the sums of the tree from the sums of each quota's pods."""
        self._used: dict[QuotaId, dict[str, int]] = {}
        self._fixed: dict[QuotaId, dict[str, int]] = {}
        self._divided = Divided(self._tree)
        self._snapshot = QuotaSnapshot(
            tree=self._tree,
            used=self._used,
            fixed=self._fixed,
            requested=self._divided.requested,
            limited=self._divided.limited,
            runtime=self._divided.runtime,
            totals=self._divided.totals,
        )
        for quota, own in self._own.items():
            self._add_up(quota, own)

    # ---- quota objects

    def set_quota(self, uid: str, quota: Quota) -> None:
        if self._quotas.get((quota.dialect, uid)) != quota:
            self._quotas[quota.dialect, uid] = quota
            self._stale = True

    def remove_quota(self, dialect: QuotaDialect, uid: str) -> None:
        if self._quotas.pop((dialect, uid), None) is not None:
            self._stale = True

    def replace_quotas(self, dialect: QuotaDialect, quotas: Mapping[str, Quota]) -> None:
        """Replace all quotas of a dialect with these, by uid."""
        for known, uid in [key for key in self._quotas if key[0] is dialect]:
            if uid not in quotas:
                self.remove_quota(known, uid)
        for uid, quota in quotas.items():
            self.set_quota(uid, quota)

    @property
    def quotas(self) -> Mapping[ObjectKey, Quota]:
        """Return all quotas, also invalid ones."""
        return self._quotas

    def counted(self, uid: PodUid) -> Counted:
        """Return the pod's amounts as of the last query; empty if the pod is in no quota."""
        return self._counted.get(uid, NOTHING)

    def holders_in(self, quotas: AbstractSet[QuotaId]) -> Iterator[tuple[PodRecord, Counted]]:
        """Yield the bound pods of these quotas with their amounts."""
        for uid, counted in self._counted.items():
            record = self._ledger.pod(uid) if counted.held and not quotas.isdisjoint(counted.quotas) else None
            if record is not None and record.node and not record.terminal:
                yield record, counted

    # ---- queries

    def snapshot(self) -> QuotaSnapshot | None:
        """Return the current state of the quotas; None while they are not counted. The next query changes the same object."""
        if not self._counts:
            return None
        self._catch_up()
        return self._snapshot

    def admits(
        self, pods: Sequence[Pending], *, gang: bool = False, given_back: Collection[PodUid] = ()
    ) -> QuotaRefusal | None:
        """Return why these pods may not start together; None if they may. Pods of a gang may borrow as a whole, up to max.
        `given_back`: pods whose claims would end first. Nothing is recorded: see `record`."""
        if not self._counts:
            return None
        self._catch_up()
        counted = [self._amounts_of(pod) for pod in pods]
        back = [self._counted.get(uid, NOTHING) for uid in given_back]
        for quota in dict.fromkeys(quota for of in counted for quota in of.quotas):
            members = [of for of in counted if quota in of.quotas]
            beside = {key: -amount for key, amount in total_of(of.held for of in back if quota in of.quotas).items()}
            if refusal := self._check(quota, members, gang=gang, beside=beside):
                return refusal
        return None

    def record(self, pods: Sequence[Pending], refusal: QuotaRefusal | None) -> None:
        """Record the answer of `admits` about these pods: refused pods wait for their quota, and admitted pods use its turn."""
        if refusal is None:
            for pod in pods:
                self._let_in(pod.uid)
            return
        waiting = {pod.uid: of for pod in pods if refusal.quota in (of := self._amounts_of(pod)).quotas}
        whole = total_of(of.requested for of in waiting.values())
        for uid in waiting:
            self._refuse(uid, refusal.code, refusal.quota, whole)

    def _amounts_of(self, pod: Pending) -> Counted:
        """Return the pod's amounts of the last query. A pod that was not added to the pending pods yet holds nothing."""
        return self._counted.get(pod.uid) or self._count_request(pod, NONE)

    def _count_request(self, pod: Pending, holds: Amounts) -> Counted:
        return Counted(pod.owner, self._quotas_of(pod.owner), holds, requested(pod.request, pod.cpu_memory, self._models))

    def _check(self, quota: QuotaId, pods: Sequence[Counted], *, gang: bool, beside: Amounts = NONE) -> QuotaRefusal | None:
        """Check pods of one quota. `beside`: further amounts that are about to be used, or, if negative, given back."""
        whole = pods[0].requested if len(pods) == 1 else total_of(of.requested for of in pods)
        own = total_of(of.held for of in pods) if any(of.held for of in pods) else {}
        add(own, beside, -1)
        preemptible = all(of.owner.preemptible for of in pods)
        return check(self._snapshot, quota, whole, preemptible=preemptible, gang=gang, own=own, has_turn=self._has_turn)

    def _has_turn(self, quota: QuotaId) -> bool:
        """Return whether this quota may borrow next: no quota of its group that comes first could borrow its pod's request."""
        waiting: dict[QuotaId, Amounts] = {}
        for other, amounts in self._turns.values():
            waiting.setdefault(other, amounts)
        place = {other: at for at, other in enumerate(waiting)}
        own = turn_key(self._snapshot, quota), place.get(quota, len(place))
        group = self._tree.group_of(quota)
        return not any(
            self._tree.group_of(other) == group
            and (turn_key(self._snapshot, other), place[other]) < own
            and self._could_borrow(other, amounts)
            for other, amounts in waiting.items()
            if other != quota
        )

    def _could_borrow(self, quota: QuotaId, amounts: Amounts) -> bool:
        return all(lendable(self._snapshot, quota, key) >= amount for key, amount in amounts.items())

    def _refuse(self, uid: PodUid, code: OfPod, quota: QuotaId, whole: Amounts) -> None:
        """Record that the pod waits for its quota. `whole`: the amounts of all pods that start together with it."""
        self._let_in(uid, but=quota)
        self._refused.setdefault(quota, {})[uid] = None
        if code is OfPod.QUOTA_TURN:
            self._turns.setdefault(uid, (quota, whole))
        else:
            self._turns.pop(uid, None)

    def _let_in(self, uid: PodUid, *, but: QuotaId | None = None) -> None:
        for quota in self._counted.get(uid, NOTHING).quotas:
            if quota != but:
                self._no_longer_refused(uid, quota)
        if but is None:
            self._turns.pop(uid, None)

    def _no_longer_refused(self, uid: PodUid, quota: QuotaId) -> None:
        refused = self._refused.get(quota)
        if refused is not None:
            refused.pop(uid, None)
            if not refused:
                del self._refused[quota]

    def admitted(self, pod: Pending) -> Admitted | None:
        """Return the quota fields of the pod's assignment; None without any quota."""
        return Admitted(pod.owner.named, pod.owner.preemptible) if self._quotas else None

    def preemption(self, pods: Sequence[Pending]) -> Preemption | None:
        """Return which pods may be evicted for `pods`, which start together; None while quotas are not counted."""
        if not self._counts or not pods:
            return None
        self._catch_up()
        waiting = [self._amounts_of(pod) for pod in pods]
        quotas = waiting[0].quotas if len({one.quotas for one in waiting}) == 1 else None
        more = total_of(one.requested for one in waiting)
        for one in waiting:
            add(more, one.held, -1)
        guaranteed = guaranteed_by(self._snapshot, quotas or (), more)
        takes = quotas is not None and guaranteed is None

        def may_go(uid: PodUid) -> bool:
            counted = self._counted.get(uid, NOTHING)
            return not counted.held or (takes and counted.quotas == quotas and counted.owner.preemptible)

        def allows(ended: Collection[PodUid]) -> bool:
            given = [counted.held for uid in ended if (counted := self._counted.get(uid, NOTHING)).quotas == quotas]
            back = {key: -amount for key, amount in total_of(given).items()}
            each = {quota: [one for one in waiting if quota in one.quotas] for one in waiting for quota in one.quotas}
            return not any(self._check(quota, own, gang=len(pods) > 1, beside=back) for quota, own in each.items())

        lowest = min(self._priorities.get(quotas or (), ()), default=None) if takes else None
        return Preemption(lowest=lowest, takes=may_go, allows=allows, victims=as_text(quotas, guaranteed))

    def turn(self, uid: PodUid) -> Key:
        """Return the sort key of a pod's quota in the queue of gangs. The quota with the least used part of its guarantee is
        first."""
        snapshot = self.snapshot()
        quotas = self._counted.get(uid, NOTHING).quotas
        return max((turn_key(snapshot, quota) for quota in quotas), default=()) if snapshot is not None else ()

    # ---- pods that may try again

    def take_free(self, in_turn: InTurn) -> list[Pending]:
        """Return refused pods that their quota allows now, for each quota in the order of `in_turn`. A pod is returned once for
        each refusal."""
        if not (self._refused or self._released):
            return []
        if self._counts:
            self._catch_up()
        released, self._released = self._released, []
        pods = [pod for uid in released if (pod := self._pending.get(uid)) is not None]
        if self._freed:
            freed, self._freed = self._freed, set()
            quotas = [quota for quota in [*self._refused] if self._is_freed(quota, freed)]
            pods += [pod for quota in quotas for pod in self._take_free_of(quota, in_turn)]
        return pods

    def _is_freed(self, quota: QuotaId, freed: set[QuotaId]) -> bool:
        path = self._tree.paths.get(quota, (quota,))
        borrows = any(uid in self._turns for uid in self._refused[quota])
        flat = self._is_flat(quota)
        return not freed.isdisjoint(path) or ((borrows or flat) and self._tree.group_of(quota) in freed)

    def _is_flat(self, quota: QuotaId) -> bool:
        return quota in self._tree.quotas and self._tree.quotas[quota].flat

    def _take_free_of(self, quota: QuotaId, in_turn: InTurn) -> Iterator[Pending]:
        waiting = [pod for uid in self._refused[quota] if (pod := self._pending.get(uid)) is not None]
        soon: dict[str, int] = {}
        for pod in islice(in_turn(waiting), REQUEUED_AT_ONCE):
            counted = self._counted.get(pod.uid, NOTHING)
            if self._check(quota, [counted], gang=False, beside=soon) is not None:
                return
            add(soon, counted.requested)
            self._no_longer_refused(pod.uid, quota)
            yield pod
        if quota in self._refused:
            self._freed.add(quota)

    # ---- counting

    def scan(self) -> Steps:
        """Count all pods when the first quota appears, and update the cluster's capacity. Call this about once a second."""
        if not self._quotas:
            if self._counts:
                self._released += [uid for waiting in self._refused.values() for uid in waiting]
                self._forget()
            return
        yield from self._measure()
        if not self._counts:
            yield from self._count_all()

    def _count_all(self) -> Steps:
        self._tree = build(self._quotas.values())
        self._stale = False
        self._begin_sums()
        names, self._observed = self._ledger.claims_changed_since(self._observed)
        for name in names:
            self._count_node(name)
            yield
        self._changed.update(pod.uid for pod in self._pending)
        for number, uid in enumerate(list(self._changed | self._held.keys())):
            self._changed.discard(uid)
            self._count_pod(uid)
            if number % _AT_ONCE == 0:
                yield
        self._counts = True

    def _catch_up(self) -> None:
        if self._stale:
            self._rebuild()
        names, self._observed = self._ledger.claims_changed_since(self._observed)
        self._uncounted.update(dict.fromkeys(names))
        while self._uncounted:
            self._count_node(self._uncounted.popitem()[0])
        while self._changed:  # after an exception about one pod, the other pods are still counted
            self._count_pod(self._changed.pop())
        if self._totals_stale:
            self._set_totals()
        self._freed |= self._divided.refresh()

    def _rebuild(self) -> None:
        """Rebuild the tree and its sums. Only pods whose quotas changed are counted again."""
        self._tree, self._stale = build(self._quotas.values()), False
        before, self._of_owner = self._of_owner, {}
        self._begin_sums()
        moved = {owner for owner, quotas in before.items() if self._quotas_of(owner) != quotas}
        for uid in [uid for uid, counted in self._counted.items() if counted.owner in moved]:
            self._count_pod(uid)
        self._totals_stale = True
        refused = [uid for waiting in self._refused.values() for uid in waiting]
        self._refused.clear()
        for uid in refused:  # refused pods try again in their new quota
            quotas = self._counted.get(uid, NOTHING).quotas
            for quota in quotas[:1]:
                self._refused.setdefault(quota, {})[uid] = None
                self._freed.add(quota)
            if not quotas:
                self._released.append(uid)

    def _pod_changed(self, uid: PodUid) -> None:
        if self._quotas:
            self._changed.add(uid)

    def _count_node(self, name: str) -> None:
        """Count the amounts that pods hold on a node. A ledger value is counted only once; a pod that changed in the API
        server, such as by a label, has a new value."""
        before = self._on_node.get(name, {})
        now: dict[PodUid, tuple[object, Amounts]] = {}
        cards = None
        for uid, taken in self._ledger.holds_on(name):
            known = before.get(uid)
            if known is None or known[0] is not taken:
                if cards is None:
                    cards = {card.gpu.uuid: card.gpu for card in self._ledger.capacity(name).cards}
                known = taken, held(taken, self._ledger.cpu_memory_of(uid, name), cards)
                self._held.setdefault(uid, {})[name] = known[1]
                self._changed.add(uid)
            now[uid] = known
        for uid in before.keys() - now.keys():
            of = self._held[uid]
            del of[name]
            if not of:
                del self._held[uid]
            self._changed.add(uid)
        if now:
            self._on_node[name] = now
        else:
            self._on_node.pop(name, None)

    def _count_pod(self, uid: PodUid) -> None:
        counted = self._read_pod(uid)
        before = self._counted.get(uid, NOTHING)
        if counted == before:
            return
        self._count_priority(before, -1)
        self._count_priority(counted, 1)
        change = _Own()
        if before.quotas == counted.quotas and before.owner == counted.owner:
            self._change(counted.quotas, change.count(before, -1).count(counted, 1))
        else:
            self._change(before.quotas, change.count(before, -1))
            self._change(counted.quotas, _Own().count(counted, 1))
        if counted is NOTHING:
            self._counted.pop(uid, None)
            self._turns.pop(uid, None)
            for quota in before.quotas:
                self._no_longer_refused(uid, quota)
        else:
            self._counted[uid] = counted

    def _count_priority(self, counted: Counted, times: int) -> None:
        if counted.priority is not None:
            of_quotas = self._priorities[counted.quotas]
            of_quotas[counted.priority] += times
            if not of_quotas[counted.priority]:
                del of_quotas[counted.priority]
            if not of_quotas:
                del self._priorities[counted.quotas]

    def _read_pod(self, uid: PodUid) -> Counted:
        pod, record = self._pending.get(uid), self._ledger.pod(uid)
        on_nodes = [*self._held.get(uid, {}).values()]
        holds = on_nodes[0] if len(on_nodes) == 1 else _largest(on_nodes)
        if pod is not None:
            return self._count_request(pod, holds)
        if record is None and (kept := self._ledger.own_claim(uid, Claim.PLANNED)) is not None and kept.labels is not None:
            owner = owner_of(kept.holder.namespace, kept.labels)
            return Counted(owner, self._quotas_of(owner), holds, holds)
        if record is None or not holds:
            return NOTHING
        labelled = owner_of(record.namespace, record.labels)
        owner = labelled if record.admitted is None else Owner(record.namespace, *record.admitted)
        priority = record.priority if record.holds is not None and owner.preemptible else None
        return Counted(owner, self._quotas_of(owner), holds, holds, priority)

    def _quotas_of(self, owner: Owner) -> tuple[QuotaId, ...]:
        result = self._of_owner.get(owner)
        if result is None:
            result = self._of_owner[owner] = self._tree.quotas_of(owner)
        return result

    def _change(self, quotas: Iterable[QuotaId], change: "_Own") -> None:
        for quota in quotas:
            own = self._own.setdefault(quota, _Own())
            own.add(change)
            if own.empty:
                del self._own[quota]
            self._add_up(quota, change)

    def _add_up(self, quota: QuotaId, change: "_Own") -> None:
        """Add a change of a quota's sums to all quotas on its path to the root."""
        path = self._tree.paths.get(quota, (quota,))
        for step in path:
            add(self._used.setdefault(step, {}), change.held)
            add(self._fixed.setdefault(step, {}), change.fixed)
        for key, amount in change.requested.items():
            self._divided.add_request(quota, key, amount)
        if any(amount < 0 for amount in change.held.values()):
            self._freed.update(path)
            if quota in self._tree.quotas:
                self._freed.add(self._tree.group_of(quota))
        self._totals_stale |= quota in {DEFAULT, SYSTEM}

    # ---- the cluster's capacity

    def _measure(self) -> Steps:
        """Read the capacity of changed nodes, in steps."""
        changed, self._observed_capacities = self._ledger.capacities_changed_since(self._observed_capacities)
        capacities = dict(changed)
        loads, self._observed_loads = self._ledger.loads_changed_since(self._observed_loads)
        different = False
        for name in {*capacities, *(load[0] for load in loads)}:
            capacity = capacities[name] if name in capacities else self._ledger.capacity(name)
            now = _Capacity() if capacity is None else self._capacity_of(capacity)
            if now != self._capacity.get(name, _Capacity()):
                self._capacity[name] = now
                different = True
            yield
        if different:
            self._capacity = {name: one for name, one in self._capacity.items() if one.amounts}
            self._add_up_capacity()

    def _capacity_of(self, capacity: NodeCapacity) -> _Capacity:
        """Return the node's capacity: devices that may be given or are held; cpu and memory only if it has devices."""
        amounts: dict[str, int] = {}
        models: dict[str, int] = {}
        for card in capacity.cards:
            if card.usable or card.pods:
                model = card.gpu.model
                add(amounts, {RESOURCE_GPU: CARD, model_key(model): CARD})
                models[model] = min(models.get(model, card.gpu.usable_mib), card.gpu.usable_mib)
        add(amounts, {RESOURCE_RDMA: sum(vf.usable for vf in capacity.vfs)})
        allocatable = self._ledger.allocatable(capacity.name)
        if amounts and allocatable is not None:
            add(amounts, {CPU: allocatable.cpu_milli, MEMORY: allocatable.memory_mib})
        return _Capacity(amounts, models)

    def _add_up_capacity(self) -> None:
        self._total = total_of(one.amounts for one in self._capacity.values())
        models: dict[str, int] = {}
        for one in self._capacity.values():
            for model, usable_mib in one.models.items():
                models[model] = min(models.get(model, usable_mib), usable_mib)
        if models != self._models:
            self._models = models
            self._changed.update(pod.uid for pod in self._pending)
        self._totals_stale = True

    def _set_totals(self) -> None:
        """Set the total that each tree divides. The cluster's tree divides all capacity except the use of Koordinator's default
        and system quotas, and the totals of separate trees."""
        self._totals_stale = False
        total = dict(self._total)
        for quota in (DEFAULT, SYSTEM):
            add(total, self._used.get(quota, NONE), -1)
        for root in [quota for quota in self._tree.quotas.values() if quota.total is not None]:
            self._divided.set_total(root.id, root.total or NONE)
            add(total, (root.total if root.separate else None) or NONE, -1)
        self._divided.set_total(ROOT, {key: max(0, amount) for key, amount in total.items()})
        flat = [self._tree.quotas[member].min for member in self._tree.groups.get(FLAT, ())]
        self._divided.set_total(FLAT, total_of(flat))


def _largest(several: Iterable[Amounts]) -> Amounts:
    """Return, for each resource, the largest amount that one pod claims on any of several nodes."""
    largest: dict[str, int] = {}
    for amounts in several:
        for key, amount in amounts.items():
            largest[key] = max(largest.get(key, 0), amount)
    return largest
