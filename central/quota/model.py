"""Define a quota as a value, for all kinds of quota objects, and the quota to which a pod belongs.

Source: Koordinator's ElasticQuota (scheduling.sigs.k8s.io/v1alpha1, apis/extension/elastic_quota.go), scheduler-plugins'
ElasticQuota (scheduling.x-k8s.io/v1alpha1, apis/scheduling/v1alpha1/types.go).

Tests: tests/unit/central/quota/test_tree.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, NewType

QuotaId = NewType("QuotaId", str)  # Koordinator: the name, which is unique in the cluster; scheduler-plugins: namespace/name
Amounts = Mapping[str, int]  # amounts by resource, in the units of central.quota.amounts; absent resources are 0

KOORDINATOR_PREFIX: Final = "quota.scheduling.koordinator.sh/"
LABEL_QUOTA: Final = f"{KOORDINATOR_PREFIX}name"  # label of a pod with the name of its quota
LABEL_PREEMPTIBLE: Final = f"{KOORDINATOR_PREFIX}preemptible"  # label of a pod; "false": never evicted to give back

# Koordinator's own quotas. They divide nothing: devices used by pods of SYSTEM and DEFAULT are not available to other quotas.
ROOT: Final = QuotaId("koordinator-root-quota")
SYSTEM: Final = QuotaId("koordinator-system-quota")
DEFAULT: Final = QuotaId("koordinator-default-quota")
BUILT_IN: Final = frozenset({ROOT, SYSTEM, DEFAULT})
FLAT: Final = QuotaId("scheduling.x-k8s.io")  # the group of scheduler-plugins' quotas, which have no parent


class QuotaDialect(StrEnum):
    KOORDINATOR = "scheduling.sigs.k8s.io"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    id: QuotaId
    dialect: QuotaDialect
    namespace: str  # namespace of the quota object
    name: str
    created: str = ""  # RFC 3339, in UTC: of two contradicting quotas, the older one is valid
    parent: QuotaId = ROOT  # a quota, ROOT or FLAT
    min: Amounts = field(default_factory=dict)  # guaranteed amounts
    max: Amounts = field(default_factory=dict)  # upper limits; an absent resource is not limited
    weights: Amounts = field(default_factory=dict)
    lends: bool = True  # whether other quotas may use the guaranteed amounts that it does not request
    is_parent: bool = False  # whether it has child quotas instead of pods
    tree: str = ""  # tree of the quota; empty: the tree that divides the cluster
    total: Amounts | None = None  # amounts that its own tree divides; None: not the root of a tree
    separate: bool = False  # whether the tree's amounts are taken from the tree of the cluster
    namespaces: tuple[str, ...] = ()  # namespaces of the pods that belong to the quota
    uncounted: tuple[str, ...] = ()  # resources in min or max that Lading does not count
    problem: str = ""  # why the object cannot be read; empty: readable

    @property
    def flat(self) -> bool:
        """Return whether the quota has no parent and is in no tree, like all quotas of scheduler-plugins."""
        return self.parent == FLAT

    def weight_of(self, key: str) -> int:
        """Return the quota's weight in the division of the remaining amount. The default is the max (Koordinator), or the min
        in a dialect without weights."""
        if self.flat:
            return self.min.get(key, 0)
        return self.weights.get(key, 0) or self.max.get(key, 0)


class Owner(NamedTuple):
    """Hold the namespace and labels of a pod that determine its quota."""

    namespace: str
    named: str = ""  # the quota that a label of the pod names
    preemptible: bool = True


NO_OWNER: Final = Owner("")


def owner_of(namespace: str, labels: Mapping[str, str]) -> Owner:
    if not labels:
        return Owner(namespace)
    return Owner(namespace, labels.get(LABEL_QUOTA, ""), labels.get(LABEL_PREEMPTIBLE) != "false")
