"""Touch a pod: a condition of its status says that central looked at it, and its resourceVersion is a new one.

That wakes kube-scheduler (central.controllers.requeue), and keeps a Binding that got lost from succeeding later
(central.controllers.binder). The message of the condition changes with every touch, for a patch that changes nothing is none.

Source: PodCondition (k8s.io/api core/v1); the strategic merge patch of `pods/status` merges conditions by their type.
"""

from collections.abc import Callable
from typing import Final

from central.state.pending import Pending
from lading.kube.client import KubeClient
from lading.kube.resource import PODS

CONDITION: Final = "lading.dev/Considered"
TIMEOUT_S: Final = 4.0


class ConsideredPatch:
    """Touch a pod and return it as the API server then has it. ConflictError: another pod has the name."""

    def __init__(self, client: KubeClient, *, now: Callable[[], str]) -> None:
        """Create it. `now`: RFC 3339 with microseconds."""
        self._client = client
        self._now = now

    async def __call__(self, pod: Pending) -> bytes:
        at = self._now()
        condition = {
            "type": CONDITION,
            "status": "True",
            "reason": "RoomAppeared" if pod.refused_at is not None else "BindingUnclear",
            "message": f"lading-central requeued this pod at {at}",
            "lastTransitionTime": at,
        }
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        path = PODS.path(pod.namespace, pod.name, "status")
        return await self._client.merge_lists(path, body, timeout_s=TIMEOUT_S)
