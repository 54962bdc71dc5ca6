"""List all pods that wait for devices or hold some, one `PodView` each. Pure.

Take the cluster at one moment, and return rows for the commands `pods` and `top`. The holders come from the nodes' views: a pod
that the API server no longer has is listed as long as it holds a device.

Tests: tests/unit/kubectl_lading/pods/test_pods.py
"""

from collections.abc import Mapping, Sequence

import msgspec

from central.api.times import parse_seconds
from central.request.describe import describe_request
from central.request.model import MalformedRequest
from central.request.parse import Dialects, parse_request
from central.request.reasons import OfPod
from central.view.model import NodeView
from central.view.pods import PodState, PodView, view_pods
from kubectl_lading.cluster import Cluster
from kubectl_lading.objects import Pod


def list_pods(cluster: Cluster, views: Sequence[NodeView], namespace: str = "") -> list[PodView]:
    """Return the pods of `namespace` (empty: all), sorted by namespace and name."""
    dialects = cluster.dialects
    known: Mapping[str, Pod] = {pod.metadata.uid: pod for pod in cluster.pods}
    holding = [_with_request(one, known.get(one.uid), dialects) for one in view_pods(views)]
    waiting = [_view_waiting(pod, dialects) for pod in cluster.pods if waits(pod, dialects)]
    listed = [one for one in (*holding, *waiting) if not namespace or one.namespace == namespace]
    return sorted(listed, key=lambda one: (one.namespace, one.pod, one.uid))


def waits(pod: Pod, dialects: Dialects) -> bool:
    """Return whether the pod requests devices of central, validly or not, is not bound, and is neither deleted nor ended."""
    unplaceable = pod.spec.node_name or pod.metadata.deletion_timestamp or pod.ended
    request = None if unplaceable else parse_request(pod, dialects)
    return request is not None and not (isinstance(request, MalformedRequest) and request.unread)


def _view_waiting(pod: Pod, dialects: Dialects) -> PodView:
    metadata = pod.metadata
    return PodView(
        namespace=metadata.namespace,
        pod=metadata.name,
        uid=metadata.uid,
        state=PodState.WAITING,
        created=parse_seconds(metadata.creation_timestamp),
        asks=_request_as_text(pod, dialects),
    )


def _with_request(view: PodView, pod: Pod | None, dialects: Dialects) -> PodView:
    return view if pod is None else msgspec.structs.replace(view, asks=_request_as_text(pod, dialects))


def _request_as_text(pod: Pod, dialects: Dialects) -> str:
    """Describe the pod's device request as text; empty for a pod whose devices are named by hand."""
    requested = parse_request(pod, dialects)
    if requested is None:
        return ""
    return OfPod.REQUEST_MALFORMED.value if isinstance(requested, MalformedRequest) else describe_request(requested)
