"""A container runtime that exists as two lists: pods and containers come, stop and go as a test says.

Honest: it keeps CRI's states, a stopped sandbox stays listed until it is removed, and a container that outlives its sandbox
stays running. `down` makes it unreachable; `pause` holds the next answer back, so that a test acts while the lists are made.
"""

import asyncio
from collections.abc import Mapping
from itertools import count

from hooks.model.grant import Grant
from lading.errors import RuntimeUnavailableError
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.fakes import holders


class FakeRuntime:
    def __init__(self) -> None:
        self.down = False
        self.asked = 0
        self._sandboxes: dict[str, cri.PodSandbox] = {}
        self._containers: dict[str, cri.Container] = {}
        self._numbers = count()
        self._free = asyncio.Event()
        self._free.set()

    def run(self, pod: str, annotations: Mapping[str, str] | None = None) -> str:
        """RunPodSandbox: the sandbox's id."""
        sandbox = holders.sandbox(pod, id=f"{pod}-s{next(self._numbers)}", annotations=annotations)
        self._sandboxes[sandbox.id] = sandbox
        return sandbox.id

    def create(self, sandbox: str, name: str, *, wears: Grant | str | None = None) -> str:
        """CreateContainer and StartContainer: the container's id."""
        pod = self._sandboxes[sandbox].metadata.uid
        container = holders.container(f"c{next(self._numbers)}", pod=pod, name=name, sandbox=sandbox, wears=wears)
        self._containers[container.id] = container
        return container.id

    def exit(self, container: str) -> None:
        self._containers[container].state = cri.CONTAINER_EXITED

    def stop(self, sandbox: str, *, but: str = "") -> None:
        """StopPodSandbox kills what runs in it, but for a container that cannot be killed."""
        self._sandboxes[sandbox].state = cri.SANDBOX_NOTREADY
        for container in self._containers.values():
            if container.pod_sandbox_id == sandbox and container.id != but:
                container.state = cri.CONTAINER_EXITED

    def remove(self, sandbox: str) -> None:
        """RemovePodSandbox removes its containers too."""
        del self._sandboxes[sandbox]
        self._containers = {i: c for i, c in self._containers.items() if c.pod_sandbox_id != sandbox}

    def pause(self) -> None:
        self._free.clear()

    def go_on(self) -> None:
        self._free.set()

    async def list_sandboxes(self) -> tuple[cri.PodSandbox, ...]:
        self.asked += 1
        answer = tuple(cri.PodSandbox.FromString(s.SerializeToString()) for s in self._sandboxes.values())
        await self._answer()
        return answer

    async def list_containers(self) -> tuple[cri.Container, ...]:
        answer = tuple(cri.Container.FromString(c.SerializeToString()) for c in self._containers.values())
        await self._answer()
        return answer

    async def _answer(self) -> None:
        await self._free.wait()
        if self.down:
            raise RuntimeUnavailableError("cannot call the runtime at /run/fake.sock: UNAVAILABLE")
