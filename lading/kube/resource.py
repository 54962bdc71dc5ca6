"""Build the API server's paths of kinds of objects: `PODS.path("default", "train", "binding")`. Source: "API concepts".

The default time limits of calls are here too, for programs that name them without calling the API server.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

TIMEOUT_S: Final = 10.0  # default time limit of a call
PAGE_TIMEOUT_S: Final = 60.0  # default time limit of a call for one page of a list


@dataclass(frozen=True, slots=True)
class Resource:
    group: str  # "" is the core group
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path. No namespace: a cluster-scoped kind, or the objects of all namespaces. Names are quoted."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += filter(None, [self.plural, name, subresource])
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes")
EVENTS: Final = Resource("", "v1", "events")
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
ELASTIC_QUOTAS: Final = Resource("scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas")  # Koordinator's
NAMESPACE_QUOTAS: Final = Resource("scheduling.x-k8s.io", "v1alpha1", "elasticquotas")  # scheduler-plugins'
ADMISSION_CHECKS: Final = Resource("kueue.x-k8s.io", "v1beta2", "admissionchecks")
WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
FLAVORS: Final = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors")
NODE_DEVICES: Final = Resource("devices.lading.dev", "v1alpha1", "nodedevices")
