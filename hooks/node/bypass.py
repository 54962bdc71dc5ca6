"""Find containers that run without the devices in their pod's annotations: they bypassed the proxy and its hook call.

An upgrade of kubelet can reset its runtime endpoint. Then annotated pods start without their devices, and nothing else would
report it. The input is the runtime's lists. The result is created or running containers without a grant of this node, whose
pod's annotations give them devices, or should have had them refused. Even an empty grant counts, because the annotations, and
the forms that the node accepts, may change after a container was created.

Source: CRI ListPodSandbox and ListContainers (annotations in both).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hooks.forms.annotations import parse_assignment, prefixes
from hooks.model.assignment import Refusal, Trust
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.vocabulary import ContainerId, PodUid, SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    id: ContainerId
    container: str
    pod: PodUid
    namespace: str
    pod_name: str
    running: bool = True  # False: the container is only created


def find_bypassed(lists: Lists, *, node: str, trust: Trust) -> tuple[Bypassed, ...]:
    """Return the bypassed containers. A pod's annotations may be long: they are parsed once, and only if a live container lacks
    a grant."""
    begins = prefixes()
    annotated = {s.id: s for s in lists.sandboxes if any(key.startswith(begins) for key in s.annotations)}
    bare: dict[SandboxId, list[ListedContainer]] = {}
    for container in lists.containers:
        if container.sandbox in annotated and container.live and container.grant is None:
            bare.setdefault(container.sandbox, []).append(container)
    return tuple(
        result for id_, those in bare.items() for result in _find_in_pod(annotated[id_], those, node=node, trust=trust)
    )


def _find_in_pod(sandbox: ListedSandbox, bare: Sequence[ListedContainer], *, node: str, trust: Trust) -> Iterator[Bypassed]:
    assignment = parse_assignment(sandbox.annotations, pod=sandbox.pod, node=node, trust=trust)
    if assignment is None:
        return
    for container in bare:
        if isinstance(assignment, Refusal) or not assignment.for_container(container.name).empty:
            yield Bypassed(
                id=container.id,
                container=container.name,
                pod=sandbox.pod,
                namespace=sandbox.namespace,
                pod_name=sandbox.pod_name,
                running=container.state is ContainerState.RUNNING,
            )
