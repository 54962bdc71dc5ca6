"""Simulate kube-scheduler's calls of central: ask about one pod at a time, bind pods in the background, and retry.

A pod is tried when it is new, after each change of it, and RETRY_S after its Binding failed. The test decides which nodes are
possible for a pod. As in kube-scheduler there is at most one filter call at a time, and any number of Bindings.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tests.fakes.kube_objects import pod_path
from tests.fakes.led import REFUSED, Led, is_touch

RETRY_S = 1.0
STEP_S = 0.01  # seconds for one pod: a hundred pods a second
IDLE_S = 0.1  # until it looks again, if no pod is to be tried


class KubeScheduler:
    def __init__(self, cluster: Led) -> None:
        self._cluster = cluster
        self.possible: Callable[[str], Sequence[str]] = lambda name: cluster.node_names()  # the nodes that fit, of a pod
        self._due: dict[str, float] = {}  # pods to be tried, from when
        self._seen: set[str] = set()
        self._read = 0  # requests of the API server that were looked at
        self._binding: dict[str, asyncio.Task[None]] = {}
        self.refusals: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()
        self.said: dict[str, str] = {}  # the last refusal of a Binding
        self.ignores: set[str] = set()  # pods that are never sent to bind, whatever central answers

    def _waiting(self) -> dict[str, str]:
        """Return the pods to schedule, in kube-scheduler's order: the UID of each, by its name."""
        objects, of_pods = self._cluster.server.objects, pod_path("")
        pods = [objects[path] for path in objects if path.startswith(of_pods)]
        waiting = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName")
            and not pod["spec"].get("schedulingGates")
            and "deletionTimestamp" not in pod["metadata"]
        ]
        waiting.sort(key=lambda pod: (-pod["spec"]["priority"], pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in waiting}

    async def run(self, seconds: float) -> None:
        """Schedule for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            waiting = self._waiting()
            self._hear(waiting, loop.time())
            tried = next((name for name in waiting if self._is_due(name, loop.time())), None)
            if tried is not None:
                self.ask(tried)
            await asyncio.sleep(STEP_S if tried is not None else IDLE_S)

    def _hear(self, waiting: Mapping[str, str], now: float) -> None:
        requests = self._cluster.server.requests
        for request in requests[self._read :]:
            if is_touch(request):
                self._due[request.path.split("/")[-2]] = now
        self._read = len(requests)
        for name, uid in waiting.items():
            if uid not in self._seen:
                self._seen.add(uid)
                self._due[name] = now

    def _is_due(self, name: str, now: float) -> bool:
        return name not in self._binding and self._due.get(name, float("inf")) <= now

    def ask(self, name: str) -> str:
        """Ask about one pod, and bind it if it fits. Return its node, or REFUSED."""
        self._due.pop(name, None)
        self.asked[name] += 1
        names = list(self.possible(name))
        if not names:  # then it asks no extender
            return REFUSED
        result = self._cluster.leadership.scheduler.filter(self._cluster.shown(name), names)
        fits = list(result.fitting)
        if not fits:
            self.refusals[name] = [*result.fails.values(), *result.never.values()]
            return REFUSED
        best = self._cluster.leadership.scheduler.prioritize(self._cluster.shown(name), fits) if len(fits) > 1 else fits[0]
        assert best is not None
        if name not in self.ignores:
            self._binding[name] = asyncio.get_running_loop().create_task(self._bind(name, best))
        return best

    async def _bind(self, name: str, node: str) -> None:
        try:
            reason = await self._cluster.bind(name, node)
        finally:
            del self._binding[name]
        if reason:
            self.said[name] = reason
            self._due[name] = asyncio.get_running_loop().time() + RETRY_S

    async def end(self) -> None:
        tasks = [*self._binding.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
