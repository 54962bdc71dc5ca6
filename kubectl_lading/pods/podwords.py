"""The fields of a Pod and of Events by which a person sees why a pod does not run; msgspec skips the rest.

Read for one pod: what central decides by is `central.ask.pod`. Source: k8s.io/api/core/v1, as of v1.36.
"""

import contextlib
from typing import Final

import msgspec

from kubectl_lading.run import not_found
from lading.kube.client import KubeClient
from lading.kube.errors import NotFoundError
from lading.kube.resource import EVENTS, PODS


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all parts have in common."""


class Meta(_Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = {}


class Waiting(_Wire, frozen=True):
    reason: str = ""
    message: str = ""


class Ended(_Wire, frozen=True):
    reason: str = ""
    message: str = ""
    exit_code: int = 0


class ContainerState(_Wire, frozen=True):
    waiting: Waiting | None = None
    running: dict[str, object] | None = None
    terminated: Ended | None = None


class ContainerStatus(_Wire, frozen=True):
    name: str
    ready: bool = False
    state: ContainerState = ContainerState()


class Condition(_Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Gate(_Wire, frozen=True):
    name: str = ""


class Spec(_Wire, frozen=True):
    scheduler_name: str = ""
    node_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()


class Status(_Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodWords(_Wire, frozen=True):
    metadata: Meta
    spec: Spec = Spec()
    status: Status = Status()

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.status.conditions if one.type == kind), None)


class Involved(_Wire, frozen=True):
    uid: str = ""
    field_path: str = ""  # spec.containers{train}


class Series(_Wire, frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class Source(_Wire, frozen=True):
    component: str = ""


class EventWords(_Wire, frozen=True):
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
        """RFC 3339, which compares as text."""
        seen = self.series.last_observed_time if self.series else None
        return seen or self.last_timestamp or self.event_time or self.first_timestamp or ""

    @property
    def times(self) -> int:
        return max(self.count or 1, self.series.count if self.series else 1)


_POD: Final = msgspec.json.Decoder(PodWords)
_EVENT: Final = msgspec.json.Decoder(EventWords)


def parse_pod(raw: bytes | msgspec.Raw) -> PodWords:
    return _POD.decode(raw)


async def read_pod(client: KubeClient, namespace: str, name: str) -> bytes:
    """Its JSON. Raises LadingError with the nearest names where there is no such pod."""
    try:
        return await client.get(PODS.path(namespace, name))
    except NotFoundError as e:
        pages = client.list_pages(PODS.path(namespace))
        names = [f"{namespace}/{parse_pod(raw).metadata.name}" async for page in pages for raw in page.items]
        raise not_found("pod", f"{namespace}/{name}", names) from e


async def read_events(client: KubeClient, pod: PodWords) -> list[EventWords]:
    """Of this pod, the oldest first."""
    found = []
    pages = client.list_pages(f"{EVENTS.path(pod.metadata.namespace)}?fieldSelector=involvedObject.uid={pod.metadata.uid}")
    async with contextlib.aclosing(pages):
        async for page in pages:
            found += [_EVENT.decode(raw) for raw in page.items]
    return sorted((one for one in found if one.involved_object.uid == pod.metadata.uid), key=lambda one: one.last)
