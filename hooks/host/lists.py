"""Read the runtime's lists of sandboxes and containers.

Source: CRI ListPodSandbox and ListContainers, kubelet's label `io.kubernetes.pod.uid` of containers.
"""

from collections.abc import Collection, Mapping
from typing import Final

from hooks.model.grant import GrantKey
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.runtime import RuntimeClient
from lading.vocabulary import ATTACHMENTS, GRANT, ContainerId, PodUid, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri

_POD_UID_LABEL: Final = "io.kubernetes.pod.uid"
_STATES: Final[Mapping[int, ContainerState]] = {
    cri.CONTAINER_CREATED: ContainerState.CREATED,
    cri.CONTAINER_RUNNING: ContainerState.RUNNING,
    cri.CONTAINER_EXITED: ContainerState.EXITED,
}


async def read_lists(runtime: RuntimeClient) -> Lists:
    """Ask for the sandboxes, then for the containers. Raise RuntimeUnavailableError if an answer is missing."""
    sandboxes = await runtime.list_sandboxes()
    return parse_lists(sandboxes, await runtime.list_containers())


def parse_lists(sandboxes: Collection[cri.PodSandbox], containers: Collection[cri.Container]) -> Lists:
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
                grant=container.annotations.get(GRANT),
                attachments=container.annotations.get(ATTACHMENTS, ""),
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
