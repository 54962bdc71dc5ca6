"""Define a quota as a value, whichever kind of object it was read from, and which quota a pod says that it belongs to.

Source: Koordinator's ElasticQuota (scheduling.sigs.k8s.io/v1alpha1, apis/extension/elastic_quota.go), scheduler-plugins'
ElasticQuota (scheduling.x-k8s.io/v1alpha1, apis/scheduling/v1alpha1/types.go).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, NewType

QuotaId = NewType("QuotaId", str)  # Koordinator: the name, which is unique in the cluster; scheduler-plugins: namespace/name
Amounts = Mapping[str, int]  # by resource, in the units of central.quota.amounts; what is absent is 0

KOORDINATOR_PREFIX: Final = "quota.scheduling.koordinator.sh/"
LABEL_QUOTA: Final = f"{KOORDINATOR_PREFIX}name"  # on a pod
LABEL_PREEMPTIBLE: Final = f"{KOORDINATOR_PREFIX}preemptible"  # on a pod: "false" is never made to give back

# Koordinator's own quotas. They divide nothing: what the pods of the last two use is not there for the others.
ROOT: Final = QuotaId("koordinator-root-quota")
SYSTEM: Final = QuotaId("koordinator-system-quota")
DEFAULT: Final = QuotaId("koordinator-default-quota")
BUILT_IN: Final = frozenset({ROOT, SYSTEM, DEFAULT})
FLAT: Final = QuotaId("scheduling.x-k8s.io")  # the group of scheduler-plugins' quotas, which have no parent


class Dialect(StrEnum):
    KOORDINATOR = "scheduling.sigs.k8s.io"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    id: QuotaId
    dialect: Dialect
    namespace: str  # of the object
    name: str
    created: str = ""  # RFC 3339, in UTC: the older of two that contradict each other counts
    parent: QuotaId = ROOT  # a quota, ROOT or FLAT
    min: Amounts = field(default_factory=dict)  # guaranteed
    max: Amounts = field(default_factory=dict)  # never more; a resource that is not in it is not limited
    weights: Amounts = field(default_factory=dict)
    lends: bool = True  # what is guaranteed to it and not asked for
    is_parent: bool = False  # has quotas, no pods
    tree: str = ""  # empty: the one that divides the cluster
    total: Amounts | None = None  # what a tree of its own divides; None: it is no root of one
    apart: bool = False  # what that tree divides is not there for the tree of the cluster
    namespaces: tuple[str, ...] = ()  # whose pods belong to it
    uncounted: tuple[str, ...] = ()  # resources of its min or max that Lading does not count
    problem: str = ""  # why it cannot be read

    @property
    def flat(self) -> bool:
        """Return whether the quota has no parent and is in no tree, as those of scheduler-plugins."""
        return self.parent == FLAT

    def weight_of(self, key: str) -> int:
        """Return the weight by which the quota shares what is left. By default it is the max (Koordinator), or the min where
        the dialect has no weights."""
        if self.flat:
            return self.min.get(key, 0)
        return self.weights.get(key, 0) or self.max.get(key, 0)


class Owner(NamedTuple):
    """Say which quota a pod belongs to."""

    namespace: str
    named: str = ""  # the quota that a label of the pod names
    preemptible: bool = True


NO_OWNER: Final = Owner("")


def owner_of(namespace: str, labels: Mapping[str, str]) -> Owner:
    if not labels:
        return Owner(namespace)
    return Owner(namespace, labels.get(LABEL_QUOTA, ""), labels.get(LABEL_PREEMPTIBLE) != "false")
