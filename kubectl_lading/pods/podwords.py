"""The fields of a Pod and of Events that show why a pod does not run; msgspec skips the rest.

Read for one pod: what central decides by is `central.ask.pod`. Who may not read Events is told so, in the same words by every
command, and gets what the pod itself says. Source: k8s.io/api/core/v1, as of v1.36.
"""

import contextlib
from typing import Final
from urllib.parse import quote

import msgspec

from kubectl_lading.run import not_found
from kubectl_lading.terminal.output import warn
from lading.errors import LadingError
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, NotFoundError
from lading.kube.resource import EVENTS, PODS


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields that all parts share."""


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
        """Return the last time in RFC 3339, which sorts as text."""
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
    """Return the pod's JSON. Raises LadingError with the nearest names if it does not exist; if the user gave no namespace,
    pods of that name in other namespaces come first.
    """
    try:
        return await client.get(PODS.path(namespace, name))
    except NotFoundError as e:
        full = f"{namespace}/{name}"
        if elsewhere := await _called(client, name):
            raise LadingError(f"cannot find pod {full}", hint=f"did you mean {' or '.join(elsewhere[:3])}?") from e
        raise not_found("pod", full, await _names(client, PODS.path(namespace))) from e


async def _called(client: KubeClient, name: str) -> list[str]:
    """Return the pods of that name in all namespaces; none if only one namespace may be read."""
    try:
        found = await _names(client, f"{PODS.path()}?fieldSelector=metadata.name={quote(name, safe='')}")
    except ForbiddenError:
        return []
    return [one for one in found if one.endswith(f"/{name}")]


async def _names(client: KubeClient, path: str) -> list[str]:
    found = [parse_pod(raw).metadata async for page in client.list_pages(path) for raw in page.items]
    return [f"{one.namespace}/{one.name}" for one in found]


async def read_events(client: KubeClient, pod: PodWords) -> list[EventWords]:
    """Return the pod's Events, the oldest first; none, after a warning, if they may not be read."""
    namespace, uid = pod.metadata.namespace, pod.metadata.uid
    found = []
    pages = client.list_pages(f"{EVENTS.path(namespace)}?fieldSelector=involvedObject.uid={uid}")
    try:
        async with contextlib.aclosing(pages):
            async for page in pages:
                found += [_EVENT.decode(raw) for raw in page.items]
    except ForbiddenError:
        warn(
            f"you may not read Events of namespace {namespace}, so what was said of the pod there is left out: "
            "ClusterRole lading-reader (deploy/rbac/reader.yaml) gives that right"
        )
        return []
    return sorted((one for one in found if one.involved_object.uid == uid), key=lambda one: one.last)
