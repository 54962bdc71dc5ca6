"""Whether a running pod may be moved, by its own constraints and disruption budgets. Pure.

Enters: the pod's owners, constraints and labels, the budgets of its namespace. Leaves: what forbids it, in words; and what
the person who moves it has to know. Where a pod fits is not examined here (central.view.moves).

Source: k8s.io/api core/v1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from central.state.budgets import Budget
from kubectl_lading.objects import FullPod
from lading.vocabulary import PodUid


def forbidden(pods: Sequence[FullPod], budgets: Sequence[Budget]) -> dict[PodUid, str]:
    """Return by uid why a pod may not be moved if all of these are moved; a budget allows its first ones."""
    found = {pod.metadata.uid: why for pod in pods if (why := pod.why_bound_to_its_node)}
    taken: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        covering = [budget for budget in budgets if budget.covers(pod.metadata.namespace, pod.metadata.labels)]
        full = [one for one in covering if taken[_key(one)] >= one.allowed]
        if full and pod.metadata.uid not in found:
            found[pod.metadata.uid] = f"PodDisruptionBudget {full[0].metadata.name} lets no more of its pods go now"
        elif pod.metadata.uid not in found:
            taken.update(map(_key, covering))
    return found


def none_of(budgets: Sequence[Budget]) -> list[Budget]:
    """Return the budgets that allow no eviction now, however few pods are moved."""
    return [budget for budget in budgets if budget.allowed < 1]


def _key(budget: Budget) -> tuple[str, str]:
    return budget.metadata.namespace, budget.metadata.name


def notes(pod: FullPod) -> Iterator[str]:
    """Yield notes for the person who moves the pod."""
    owner = pod.controller
    yield f"{owner.kind} {owner.name} makes it again" if owner else "it is not created again: it has no controller"
    constraints = ["nodeSelector"] if pod.spec.node_selector else []
    constraints += ["affinity"] if pod.spec.affinity else []
    constraints += ["volumes"] if any(volume.persistent_volume_claim is not None for volume in pod.spec.volumes) else []
    if constraints:
        yield f"its {' and '.join(constraints)} may forbid that node"
