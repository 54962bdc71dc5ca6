"""Call an extender as kube-scheduler does: filter, prioritize and bind over HTTP, one pod at a time.

The pods come from a list and a watch. The extender makes the Bindings, and `outcomes` has the result for each pod. A refused
pod waits until it changes, as in kube-scheduler's queue; after a failed call the pod is tried again. Bindings run in parallel.
kube-scheduler's own checks (CPU, memory, taints) are left out, so each call names every node.

Source: k8s.io/kube-scheduler/extender/v1, v1.36.
"""

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from lading.errors import HostError
from lading.kube.client import KubeClient
from lading.kube.resource import PODS
from simnode.following import follow

SCHEDULER: Final = "lading"
AGAIN_S: Final = 1.0  # after a call that failed, as kube-scheduler's first backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold the result of the last attempt to schedule a pod. `at`: monotonic seconds."""

    at: float
    node: str = ""  # empty: it fits nowhere now
    may_fit: Mapping[str, str] = field(default_factory=dict)  # reasons by node, for nodes where an eviction could help
    never: Mapping[str, str] = field(default_factory=dict)


class ExtenderCalls:
    """Call an extender about all pending pods. `run` makes the calls; `outcomes` has their results."""

    def __init__(self, session: aiohttp.ClientSession, client: KubeClient, *, extender: str, nodes: Sequence[str]) -> None:
        self.outcomes: dict[str, Outcome] = {}  # pod uid → outcome
        self.requests = 0
        self._session = session
        self._client = client
        self._extender = extender
        self._nodes = list(nodes)
        self._pods: dict[str, dict[str, Any]] = {}  # pods in the queue, as they are now
        self._queue: asyncio.PriorityQueue[tuple[int, int, str]] = asyncio.PriorityQueue()
        self._number = itertools.count()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                *_, uid = await self._queue.get()
                pod = self._pods.pop(uid, None)
                if pod is None:
                    continue
                try:
                    node = await self._choose(pod)
                except HostError as e:
                    print(e, file=sys.stderr, flush=True)
                    tasks.create_task(self._again(pod))
                    continue
                if node:
                    tasks.create_task(self._bind(pod, node))

    async def _follow(self) -> None:
        async with contextlib.aclosing(follow(self._client, PODS.path())) as pods:
            async for pod in pods:
                self._see(pod)

    async def _again(self, pod: dict[str, Any]) -> None:
        """Put the pod back into the queue a moment later. A pod that changed meanwhile is there already."""
        await asyncio.sleep(AGAIN_S)
        if pod["metadata"]["uid"] not in self._pods:
            self._see(pod)

    def _see(self, pod: dict[str, Any]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        if spec.get("schedulerName") != SCHEDULER or spec.get("nodeName") or metadata.get("deletionTimestamp"):
            self._pods.pop(metadata["uid"], None)
            return
        if metadata["uid"] not in self._pods:
            self._queue.put_nowait((-spec.get("priority", 0), next(self._number), metadata["uid"]))
        self._pods[metadata["uid"]] = pod

    async def _choose(self, pod: dict[str, Any]) -> str:
        uid = pod["metadata"]["uid"]
        result = await self._ask("filter", {"Pod": pod, "NodeNames": self._nodes})
        fits = result.get("NodeNames") or []
        if not fits:
            reasons = {kind: result.get(kind) or {} for kind in ("FailedNodes", "FailedAndUnresolvableNodes")}
            self.outcomes[uid] = Outcome(at=time.monotonic(), may_fit=reasons["FailedNodes"], never=[*reasons.values()][1])
            return ""
        if len(fits) == 1:  # prioritize is skipped in this case
            return str(fits[0])
        scores = await self._ask("prioritize", {"Pod": pod, "NodeNames": fits})
        return str(max(scores, key=lambda one: one["Score"])["Host"])

    async def _bind(self, pod: dict[str, Any], node: str) -> None:
        metadata = pod["metadata"]
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node}
        try:
            failed = (await self._ask("bind", names)).get("Error")
        except HostError as e:
            failed = str(e)
        if failed:
            print(f"cannot bind {metadata['namespace']}/{metadata['name']}: {failed}", file=sys.stderr, flush=True)
            await self._again(pod)
            return
        self.outcomes[metadata["uid"]] = Outcome(at=time.monotonic(), node=node)

    async def _ask(self, verb: str, body: object) -> Any:
        self.requests += 1
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(
                f"{self._extender}/{verb}", data=msgspec.json.encode(body), headers=headers
            ) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as e:
            raise HostError(f"cannot ask lading-central to {verb}: {type(e).__name__}: {e}") from e
        if answer.status != 200:
            raise HostError(f"cannot ask lading-central to {verb}: {answer.status} {text[:200]!r}")
        return msgspec.json.decode(text)
