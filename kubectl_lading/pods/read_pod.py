"""Read one pod and its Events.

A user without the right to read Events gets the same warning from every command, and an answer from the pod alone. Source:
k8s.io/api/core/v1, as of v1.36.

Tests: tests/unit/kubectl_lading/pods/test_situation.py
"""

from typing import Final
from urllib.parse import quote

import msgspec

from central.request.model import DeviceRequest
from central.request.parse import Request, parse_request
from kubectl_lading.central import Central
from kubectl_lading.lists import read_all, read_permitted
from kubectl_lading.objects import FullPod
from kubectl_lading.run import not_found
from lading.errors import LadingError
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, NotFoundError
from lading.kube.objects import Object, Wire
from lading.kube.resource import EVENTS, PODS


class Involved(Wire, frozen=True):
    uid: str = ""
    field_path: str = ""  # such as spec.containers{train}


class Series(Wire, frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class Source(Wire, frozen=True):
    component: str = ""


class PodEvent(Wire, frozen=True):
    involved_object: Involved = Involved()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    source: Source = Source()
    reporting_component: str = ""
    series: Series | None = None

    @property
    def last(self) -> str:
        """Return the time of the last occurrence in RFC 3339, which sorts as text."""
        observed = self.series.last_observed_time if self.series else None
        return observed or self.last_timestamp or self.event_time or self.first_timestamp or ""

    @property
    def times(self) -> int:
        return max(self.count or 1, self.series.count if self.series else 1)


_POD: Final = msgspec.json.Decoder(FullPod)


async def read_pod(client: KubeClient, namespace: str, name: str) -> FullPod:
    """Return the pod. If there is none, raise LadingError with a hint: the same name in other namespaces, else similar names in
    this one."""
    try:
        return _POD.decode(await client.get(PODS.path(namespace, name)))
    except NotFoundError as e:
        full = f"{namespace}/{name}"
        if elsewhere := await _called(client, name):
            raise LadingError(f"cannot find pod {full}", hint=f"did you mean {' or '.join(elsewhere[:3])}?") from e
        raise not_found("pod", full, await _names(client, PODS.path(namespace)), where=f" in namespace {namespace}") from e


async def read_request(central: Central, pod: FullPod) -> Request:
    """Return the pod's device request. Ask central which systems' pods it reads only if the pod has no request of Lading's own
    form."""
    own = parse_request(pod)
    return own if isinstance(own, DeviceRequest) else parse_request(pod, await central.dialects())


async def _called(client: KubeClient, name: str) -> list[str]:
    """Return the pods of that name in all namespaces; none if the user may not list pods of all namespaces."""
    try:
        result = await _names(client, f"{PODS.path()}?fieldSelector=metadata.name={quote(name, safe='')}")
    except ForbiddenError:
        return []
    return [one for one in result if one.endswith(f"/{name}")]


async def _names(client: KubeClient, path: str) -> list[str]:
    return [f"{one.metadata.namespace}/{one.metadata.name}" for one in await read_all(client, path, Object)]


async def read_events(client: KubeClient, pod: FullPod) -> list[PodEvent]:
    """Return the pod's Events, the oldest first; none, after a warning, if the user may not read Events."""
    namespace, uid = pod.metadata.namespace, pod.metadata.uid
    path = f"{EVENTS.path(namespace)}?fieldSelector=involvedObject.uid={uid}"
    without = (
        f"you may not read Events of namespace {namespace}, so what was said of the pod there is left out: "
        "ClusterRole lading-reader (deploy/rbac/reader.yaml) gives that right"
    )
    result = await read_permitted(client, path, PodEvent, without) or ()
    return sorted((one for one in result if one.involved_object.uid == uid), key=lambda one: one.last)
