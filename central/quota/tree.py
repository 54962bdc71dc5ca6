"""Build the tree of quotas, reject invalid quotas with a text, and find the quota of a pod.

The rules are those of Koordinator's webhook, which a cluster may lack: min within max, the same resources as the parent's max,
the mins of children within their parent's min, no cycle. In addition, a tree has at most MOST_LEVELS levels. Of two
contradicting quotas, the older one is valid. A quota whose parent is rejected is rejected too.

Source: Koordinator a7a1b76, pkg/webhook/elasticquota (quota_topology_check.go), pkg/scheduler/plugins/elasticquota
(plugin_helper.go, getPodAssociateQuotaName).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from central.quota.amounts import as_text
from central.quota.model import BUILT_IN, DEFAULT, FLAT, ROOT, SYSTEM, Amounts, Owner, Quota, QuotaDialect, QuotaId

SYSTEM_NAMESPACE: Final = "kube-system"
MOST_LEVELS: Final = 16  # maximum levels of a tree: the cost of a pod grows with them, and organisations have five


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    quotas: Mapping[QuotaId, Quota] = field(default_factory=dict)  # valid quotas, by ID
    groups: Mapping[QuotaId, tuple[QuotaId, ...]] = field(default_factory=dict)  # children by parent, parents first
    paths: Mapping[QuotaId, tuple[QuotaId, ...]] = field(default_factory=dict)  # the quota itself, then its parents
    problems: Mapping[QuotaId, str] = field(default_factory=dict)  # why a quota is invalid, by ID
    by_namespace: Mapping[str, QuotaId] = field(default_factory=dict)  # quotas of Koordinator, by namespace
    flat: Mapping[str, QuotaId] = field(default_factory=dict)  # quotas of scheduler-plugins, by namespace
    dividing: frozenset[QuotaId] = frozenset()  # the members of all groups

    def quotas_of(self, owner: Owner) -> tuple[QuotaId, ...]:
        """Return the quotas that count the pod: at most one of each dialect. They may include an invalid quota."""
        result = [quota for quota in (self._of_koordinator(owner), self.flat.get(owner.namespace)) if quota is not None]
        return tuple(result)

    def _of_koordinator(self, owner: Owner) -> QuotaId | None:
        named = QuotaId(owner.named)
        if named and (named in self.paths or named in self.problems):  # an object that cannot be read may have no name
            return named
        result = self.by_namespace.get(owner.namespace)
        if result is not None:
            return result
        builtin = SYSTEM if owner.namespace == SYSTEM_NAMESPACE else DEFAULT
        return builtin if builtin in self.paths or self.by_namespace or self._has_koordinator else None

    @property
    def _has_koordinator(self) -> bool:
        return any(group != FLAT for group in self.groups)

    def leaves_first(self) -> Iterator[Quota]:
        """Yield the quotas of all groups, each one after its children."""
        for members in reversed(list(self.groups.values())):
            yield from map(self.quotas.__getitem__, members)

    def group_of(self, quota: QuotaId) -> QuotaId:
        """Return the group at the top of the quota's path: the amount divided there is shared by the quota's whole tree."""
        top = self.quotas[self.paths[quota][-1]]
        return top.id if top.total is not None else top.parent


def build(quotas: Iterable[Quota]) -> Tree:
    """Return the tree of these quotas, which may be in any order."""
    building = _Building(sorted(quotas, key=lambda one: (one.created, one.namespace, one.name)))
    building.build()
    return building.tree()


class _Building:
    def __init__(self, quotas: Sequence[Quota]) -> None:
        self._readable: dict[QuotaId, Quota] = {}
        self._problems: dict[QuotaId, str] = {}
        self._accepted: dict[QuotaId, Quota] = {}
        self._groups: dict[QuotaId, tuple[QuotaId, ...]] = {}
        self._paths: dict[QuotaId, tuple[QuotaId, ...]] = {}
        self._flat: dict[str, QuotaId] = {}
        self._children: defaultdict[QuotaId, list[Quota]] = defaultdict(list)
        for quota in quotas:
            self._add(quota)

    def _add(self, quota: Quota) -> None:
        if quota.id == ROOT:
            return  # Koordinator's object of the whole cluster; central sums the nodes instead
        if quota.id in self._readable:
            other = self._readable[quota.id]
            self._problems[QuotaId(f"{quota.namespace}/{quota.name}")] = (
                f"namespace {other.namespace} has an older quota {other.name}; names are unique in the cluster"
            )
            return
        self._readable[quota.id] = quota
        if quota.flat:
            first = self._flat.setdefault(quota.namespace, quota.id)
            if first != quota.id:
                self._problems[quota.id] = (
                    f"namespace {quota.namespace} has an older quota {first}; there is one in a namespace"
                )
                return
        if quota.problem:
            self._problems[quota.id] = quota.problem
        elif quota.id in BUILT_IN or quota.total is not None:
            self._accept(quota, ())
        else:
            self._children[quota.parent].append(quota)

    def build(self) -> None:
        parents: list[QuotaId] = [ROOT, FLAT, *(quota.id for quota in self._accepted.values() if quota.total is not None)]
        for parent in parents:  # the list grows in the loop
            members = self._accept_children(parent)
            if members:
                self._groups[parent] = members
                parents += members
        for quota in self._readable.values():
            if quota.id not in self._accepted and quota.id not in self._problems:
                self._problems[quota.id] = self._why_not_reached(quota)

    def _accept_children(self, parent: QuotaId) -> tuple[QuotaId, ...]:
        above = self._accepted.get(parent)
        guaranteed: dict[str, int] = {}
        members = []
        too_deep = len(self._paths.get(parent, ())) >= MOST_LEVELS
        for quota in self._children.get(parent, ()):
            problem = (
                TOO_DEEP
                if too_deep
                else _own_problem(quota) or (_problem_below(quota, above, guaranteed) if above is not None else "")
            )
            if problem:
                self._problems[quota.id] = problem
                continue
            for key, amount in quota.min.items():
                guaranteed[key] = guaranteed.get(key, 0) + amount
            self._accept(quota, self._paths.get(parent, ()))
            members.append(quota.id)
        return tuple(sorted(members))

    def _accept(self, quota: Quota, above: tuple[QuotaId, ...]) -> None:
        self._accepted[quota.id] = quota
        self._paths[quota.id] = (quota.id, *above)

    def _why_not_reached(self, quota: Quota) -> str:
        observed, parent = {quota.id}, quota.parent
        while parent in self._readable and parent not in observed:
            if len(observed) > MOST_LEVELS:
                return TOO_DEEP
            if parent in self._problems:
                return f"its parent {parent} is refused"
            observed.add(parent)
            parent = self._readable[parent].parent
        if parent in observed:
            return f"its parents form a circle: {quota.parent} is below {quota.name}"
        return f"its parent {parent} does not exist" if parent == quota.parent else f"a parent of it, {parent}, does not exist"

    def tree(self) -> Tree:
        by_namespace: dict[str, QuotaId] = {}
        koordinator = [quota for quota in self._readable.values() if quota.dialect is QuotaDialect.KOORDINATOR]
        for quota in koordinator:
            for namespace in quota.namespaces:
                by_namespace.setdefault(namespace, quota.id)
        by_namespace |= {quota.namespace: quota.id for quota in koordinator if quota.name == quota.namespace}
        return Tree(
            quotas=self._accepted,
            groups=self._groups,
            paths=self._paths,
            problems=self._problems,
            by_namespace=by_namespace,
            flat=self._flat,
            dividing=frozenset(member for members in self._groups.values() for member in members),
        )


TOO_DEEP: Final = f"it has more than {MOST_LEVELS - 1} quotas above it; a tree has at most {MOST_LEVELS} levels"


def _own_problem(quota: Quota) -> str:
    for key, amount in sorted(quota.min.items()):
        if quota.dialect is QuotaDialect.KOORDINATOR and key not in quota.max:
            return f"min has {key}, and max does not; add it to max"
        if key in quota.max and amount > quota.max[key]:
            return f"min {as_text(key, amount)} is more than max {as_text(key, quota.max[key])}"
    return ""


def _problem_below(quota: Quota, above: Quota, guaranteed: Amounts) -> str:
    if not (above.is_parent or above.total is not None):
        return f"its parent {above.name} is not marked as a parent; set its label is-parent to true"
    if quota.tree != above.tree:
        return f"it is of tree {quota.tree!r}, and its parent {above.name} of tree {above.tree!r}; write the same tree-id"
    if above.total is not None:
        return ""
    if quota.max.keys() != above.max.keys():
        different = ", ".join(sorted(quota.max.keys() ^ above.max.keys()))
        return f"max has other resources than that of its parent {above.name}: {different}; write the same"
    for key, amount in sorted(quota.min.items()):
        together = guaranteed.get(key, 0) + amount
        if together > above.min.get(key, 0):
            return (
                f"min {as_text(key, amount)}, with the min of the older children of its parent {above.name}, is "
                f"{as_text(key, together)}; the parent has min {as_text(key, above.min.get(key, 0))}"
            )
    return ""
