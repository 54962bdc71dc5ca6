"""Decide by PodDisruptionBudgets which pods, and how many of them together, the Eviction API would evict now. Pure.

Preemption must not choose a victim that a budget protects: the Eviction API would refuse its eviction after other victims have
ended. `Budgets` answers for pods by namespace and labels. In one point it is stricter than the API: pods that are not ready
count like ready ones.

Source: k8s.io/api policy/v1, as of v1.36; apimachinery's LabelSelector; pkg/registry/core/pod/storage/eviction.go.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from central.ledger.model import PodRecord
from lading.kube.objects import Metadata, Requirement, Wire
from lading.vocabulary import PodUid


class Selector(Wire, frozen=True):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class BudgetSpec(Wire, frozen=True):
    selector: Selector | None = None


class BudgetStatus(Wire, frozen=True):
    disruptions_allowed: int = 0
    observed_generation: int = 0


BudgetKey = tuple[str, str]  # namespace and name


class Budget(Wire, frozen=True):
    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()

    @property
    def key(self) -> BudgetKey:
        return self.metadata.namespace, self.metadata.name

    @property
    def allowed(self) -> int:
        """Return how many pods may be evicted now: 0 until the controller has observed this generation."""
        counted = self.status.observed_generation >= self.metadata.generation
        return max(0, self.status.disruptions_allowed) if counted else 0

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        selector = self.spec.selector
        return selector is not None and self.metadata.namespace == namespace and matches(selector, labels)


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether the labels satisfy the selector. An empty selector matches everything."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(one, labels) for one in selector.match_expressions
    )


def _holds(one: Requirement, labels: Mapping[str, str]) -> bool:
    match one.operator:
        case "In":
            return labels.get(one.key) in (one.values or ())
        case "NotIn":
            return labels.get(one.key) not in (one.values or ())
        case "Exists":
            return one.key in labels
        case "DoesNotExist":
            return one.key not in labels
    return True  # an operator of a newer API: count the pod as covered, so that none is evicted by mistake


@dataclass(frozen=True, slots=True)
class Budgets:
    by_namespace: Mapping[str, tuple[Budget, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, budgets: Iterable[Budget]) -> Self:
        result: defaultdict[str, list[Budget]] = defaultdict(list)
        for budget in budgets:
            result[budget.metadata.namespace].append(budget)
        return cls({namespace: tuple(some) for namespace, some in result.items()})

    def beyond(self, pods: Sequence[PodRecord]) -> frozenset[PodUid]:
        """Return the pods that cannot be evicted once all pods before them in the list are evicted. Pods that are being deleted
        are never returned."""
        taken: Counter[BudgetKey] = Counter()
        return frozenset(pod.uid for pod in pods if not pod.deleting and self.refuse(pod.namespace, pod.labels, taken))

    def refuse(self, namespace: str, labels: Mapping[str, str], taken: Counter[BudgetKey]) -> str:
        """Return why the Eviction API would refuse a pod after the evictions counted in `taken`. Empty: the API would evict the
        pod, and the eviction is added to `taken`. The API refuses every pod that several budgets cover."""
        covering = [one for one in self.by_namespace.get(namespace, ()) if one.covers(namespace, labels)]
        if len(covering) > 1:
            return f"several PodDisruptionBudgets cover it: {', '.join(one.metadata.name for one in covering)}"
        for one in covering:
            if taken[one.key] >= one.allowed:
                return f"PodDisruptionBudget {one.metadata.name} lets no more of its pods go now"
            taken[one.key] += 1
        return ""


NO_BUDGETS: Final = Budgets()
