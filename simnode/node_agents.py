"""Simulate the daemons of nodes: kubelet, which runs bound pods, and lading-hooks, which reads assignments and reports grants.

The input is pods, from a list and a watch, and each node's devices, from a file. The agents set pods Running, write NodeDevices
with the grants, and end pods when a test requests it: first the pod is deleted, then its node reports that the devices are
free. The real code of lading-hooks reads an assignment, with central's public key; a refused assignment is not granted.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hooks.forms.annotations import parse_assignment
from hooks.model.assignment import ContainerRequest, Form, Refusal, Trust
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError
from lading.kube.resource import NODE_DEVICES, PODS
from lading.nodedevices import Grant, GrantedGpu, Status
from lading.vocabulary import GpuUuid, PciAddress, PodUid
from simnode.following import AGAIN_S, follow

END_S: Final = 0.3  # for a container to end after its deletion


class NodeAgents:
    def __init__(self, client: KubeClient, reports: Mapping[str, Status], keys: Mapping[str, Ed25519PublicKey]) -> None:
        self.refused: dict[str, Refusal] = {}  # pod uid → the node's refusal
        self.released: dict[str, float] = {}  # pod uid → when its node reports the end; monotonic seconds
        self._client = client
        self._reports = dict(reports)
        self._trust = Trust(accepted=frozenset({Form.SIGNED}), keys=keys)
        self._grants: dict[str, dict[PodUid, Sequence[Grant]]] = {node: {} for node in reports}
        self._ending: set[PodUid] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks, contextlib.aclosing(follow(self._client, PODS.path())) as pods:
            async for pod in pods:
                node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
                if not node or uid in self._ending:
                    continue
                if pod["metadata"].get("deletionTimestamp"):
                    self._ending.add(uid)
                    tasks.create_task(self._end(pod, node))
                elif uid not in self._grants[node] and uid not in self.refused:
                    await self._start(pod, node)

    def held(self, node: str) -> tuple[Grant, ...]:
        return tuple(grant for grants in self._grants[node].values() for grant in grants)

    async def _start(self, pod: dict[str, Any], node: str) -> None:
        metadata = pod["metadata"]
        uid = PodUid(metadata["uid"])
        assignment = parse_assignment(metadata.get("annotations", {}), pod=uid, node=node, trust=self._trust)
        if isinstance(assignment, Refusal):
            self.refused[uid] = assignment
            return
        gen, containers = (assignment.gen, assignment.containers) if assignment else (0, {})
        who = {"pod": uid, "namespace": metadata["namespace"], "pod_name": metadata["name"], "form": "signed", "gen": gen}
        card_of = {mig.uuid: gpu.uuid for gpu in self._reports[node].gpus for mig in gpu.mig}
        self._grants[node][uid] = [_grant(name, request, card_of, who) for name, request in containers.items()]
        await self._report(node)
        status = PODS.path(metadata["namespace"], metadata["name"], "status")
        await _until_done(lambda: self._client.merge(status, {"status": {"phase": "Running"}}))

    async def _end(self, pod: dict[str, Any], node: str) -> None:
        metadata = pod["metadata"]
        await asyncio.sleep(END_S)
        path, uid = PODS.path(metadata["namespace"], metadata["name"]), metadata["uid"]
        await _until_done(lambda: self._client.delete(path, uid=uid, grace_s=0))
        self._grants[node].pop(metadata["uid"], None)
        self.released[metadata["uid"]] = time.monotonic()
        await self._report(node)

    async def _report(self, node: str) -> None:
        status = msgspec.structs.replace(self._reports[node], grants=self.held(node))
        path = NODE_DEVICES.path(name=node, subresource="status")
        await _until_done(lambda: self._client.apply(path, {"status": status}, manager="lading-hooks", force=True))


async def _until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Make the call until it succeeds, or its object is gone."""
    while True:
        try:
            await call()
        except (NotFoundError, ConflictError):  # the pod is gone, or another one has its name
            return
        except KubeError as e:
            print(e, file=sys.stderr, flush=True)
            await asyncio.sleep(AGAIN_S)
        else:
            return


def _grant(container: str, request: ContainerRequest, card_of: Mapping[str, GpuUuid], who: Mapping[str, Any]) -> Grant:
    """Return the grant. `card_of`: a MIG instance's card."""
    gpus = tuple(
        GrantedGpu(
            uuid=card_of.get(gpu.name, GpuUuid(gpu.name)),
            mig_uuid=gpu.name if gpu.name in card_of else "",
            memory_mib=gpu.memory_mib,
            core_percent=gpu.core_percent,
            pod_memory_mib=gpu.pod_memory_mib,
            pod_core_percent=gpu.pod_core_percent,
        )
        for gpu in request.gpus
    )
    return Grant(container=container, gpus=gpus, vfs=tuple(PciAddress(vf.name) for vf in request.vfs), **who)
