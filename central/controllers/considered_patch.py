"""Touch a pod: patch a condition of its status, which gives the pod a new resourceVersion.

A touch requeues the pod in kube-scheduler (central.controllers.requeue), and keeps a lost Binding from succeeding later
(central.controllers.binder). The condition's message changes with every touch, because the API server ignores a patch without a
change.

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
    """Touch a pod and return its new state as JSON. ConflictError: another pod has the name."""

    def __init__(self, client: KubeClient, *, now: Callable[[], str]) -> None:
        """Create the patch. `now`: RFC 3339 with microseconds."""
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
