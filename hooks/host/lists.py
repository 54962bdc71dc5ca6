"""Read the runtime's lists of sandboxes and containers.

Annotations that an NRI plugin has set are not in the lists, but in the OCI configuration of the container. The configuration
never changes, so it is requested once for each container without a grant in the list whose pod has annotations of Lading.

Source: CRI ListPodSandbox, ListContainers and ContainerStatus, kubelet's label `io.kubernetes.pod.uid` of containers;
containerd's `info` of a verbose ContainerStatus.
"""

import json
from collections.abc import Collection, Mapping, MutableMapping
from types import MappingProxyType
from typing import Final

from hooks.model.grant import GrantKey
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.errors import RuntimeUnavailableError
from lading.runtime import RuntimeClient
from lading.vocabulary import ATTACHMENTS, GRANT, NOTHING, RESERVED, ContainerId, PodUid, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri

_POD_UID_LABEL: Final = "io.kubernetes.pod.uid"
_STATES: Final[Mapping[int, ContainerState]] = {
    cri.CONTAINER_CREATED: ContainerState.CREATED,
    cri.CONTAINER_RUNNING: ContainerState.RUNNING,
    cri.CONTAINER_EXITED: ContainerState.EXITED,
}


Annotations = Mapping[str, str]
_NONE: Final[Annotations] = MappingProxyType({})
_GOING: Final[Annotations] = MappingProxyType({GRANT: NOTHING})  # neither held by anything nor created past Lading


async def read_lists(
    runtime: RuntimeClient,
    *,
    prefixes: tuple[str, ...],
    configured: MutableMapping[str, Annotations] | None = None,
) -> Lists:
    """Request the sandboxes, then the containers. Raise RuntimeUnavailableError if an answer is missing. `prefixes`: prefixes
    of annotations of Lading's pods. `configured`: cached results from configurations of containers, by id; the caller keeps
    them between two calls."""
    sandboxes = await runtime.list_sandboxes()
    containers = await runtime.list_containers()
    configured = {} if configured is None else configured
    going: set[str] = set()
    guarded = {sandbox.id for sandbox in sandboxes if any(key.startswith(prefixes) for key in sandbox.annotations)}
    for removed in configured.keys() - {container.id for container in containers}:
        del configured[removed]
    for container in containers:
        if container.pod_sandbox_id in guarded and GRANT not in container.annotations and container.id not in configured:
            status = await runtime.container_status(container.id)
            result = None if status is None else parse_configured(status)
            if result is None:
                going.add(container.id)
            else:
                configured[container.id] = result
    return parse_lists(sandboxes, containers, {**configured, **dict.fromkeys(going, _GOING)})


async def find_pods_of_handler(runtime: RuntimeClient, handler: str) -> tuple[str, ...]:
    """Return namespace and name of each pod that runs by a runtime handler. Raise RuntimeUnavailableError."""
    result = (
        one for one in await runtime.list_sandboxes() if one.state == cri.SANDBOX_READY and one.runtime_handler == handler
    )
    return tuple(sorted(f"{one.metadata.namespace}/{one.metadata.name}" for one in result))


async def has_ended(runtime: RuntimeClient, sandbox: SandboxId) -> bool:
    """Return whether the runtime says that the sandbox is not ready, or does not know it; False if it says nothing."""
    try:
        result = await runtime.sandbox_status(sandbox)
    except RuntimeUnavailableError:
        return False
    return result is None or result.status.state == cri.SANDBOX_NOTREADY


def parse_configured(status: cri.ContainerStatusResponse) -> Annotations | None:
    """Return Lading's annotations in a container's configuration; None if the runtime does not return the configuration, for
    example of a container that is being removed."""
    try:
        match json.loads(status.info.get("info", "")):
            case {"runtimeSpec": {"annotations": dict(result)}}:
                return {key: result[key] for key in RESERVED if isinstance(result.get(key), str)}
            case {"runtimeSpec": {}}:
                return _NONE
    except (ValueError, RecursionError):
        pass
    return None


def parse_lists(
    sandboxes: Collection[cri.PodSandbox],
    containers: Collection[cri.Container],
    configured: Mapping[str, Annotations] = MappingProxyType({}),
) -> Lists:
    """Return the lists as own values. `configured`: annotations that they do not have, by container."""
    pods = {sandbox.id: sandbox.metadata.uid for sandbox in sandboxes}
    return Lists(
        sandboxes=tuple(map(_parse_sandbox, sandboxes)),
        containers=tuple(
            ListedContainer(
                id=ContainerId(container.id),
                sandbox=SandboxId(container.pod_sandbox_id),
                key=GrantKey(
                    PodUid(pods.get(container.pod_sandbox_id) or container.labels.get(_POD_UID_LABEL, "")),
                    container.metadata.name,
                ),
                state=_STATES.get(container.state, ContainerState.UNKNOWN),
                created_at=container.created_at,
                grant=container.annotations.get(GRANT, configured.get(container.id, _NONE).get(GRANT)),
                attachments=container.annotations.get(ATTACHMENTS) or configured.get(container.id, _NONE).get(ATTACHMENTS, ""),
            )
            for container in containers
        ),
    )


def _parse_sandbox(sandbox: cri.PodSandbox) -> ListedSandbox:
    return ListedSandbox(
        id=SandboxId(sandbox.id),
        pod=PodUid(sandbox.metadata.uid),
        namespace=sandbox.metadata.namespace,
        pod_name=sandbox.metadata.name,
        ready=sandbox.state == cri.SANDBOX_READY,
        annotations=dict(sandbox.annotations),
    )
