"""Containers that run without the devices that their pod's annotations ask for: made past the proxy, so nobody asked us.

An upgrade of kubelet can reset its runtime endpoint; then annotated pods start bare, and nothing else would say so. Enters: the
runtime's lists. Leaves: each container that is created or running in a pod whose annotations give it devices (or should have
had it refused), and that carries no grant of this node. Source: CRI ListPodSandbox and ListContainers (annotations in both).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hooks.assignment.annotations import Trust, parse_assignment
from hooks.assignment.model import Refusal
from hooks.ledger.reconcile import LIVE
from lading.vocabulary import GRANT, PREFIX, ContainerId, PodUid
from protos.cri.runtime.v1 import api_pb2 as cri


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    id: ContainerId
    container: str
    pod: PodUid
    namespace: str
    pod_name: str


def find_bypassed(
    sandboxes: Sequence[cri.PodSandbox], containers: Sequence[cri.Container], *, node: str, trust: Trust
) -> tuple[Bypassed, ...]:
    annotated = {s.id: s for s in sandboxes if any(key.startswith(PREFIX) for key in s.annotations)}
    found = []
    for container in containers:
        sandbox = annotated.get(container.pod_sandbox_id)
        if sandbox is None or container.state not in LIVE or GRANT in container.annotations:
            continue
        pod = PodUid(sandbox.metadata.uid)
        assignment = parse_assignment(sandbox.annotations, pod=pod, node=node, trust=trust)
        if assignment is None:
            continue
        if isinstance(assignment, Refusal) or not assignment.for_container(container.metadata.name).empty:
            found.append(
                Bypassed(
                    id=ContainerId(container.id),
                    container=container.metadata.name,
                    pod=pod,
                    namespace=sandbox.metadata.namespace,
                    pod_name=sandbox.metadata.name,
                )
            )
    return tuple(found)
