"""Simulate a container runtime as two lists: a test creates, stops and removes sandboxes and containers.

As in CRI, a stopped sandbox stays listed until it is removed, and a container that outlives its sandbox stays running. `down`
makes the runtime unreachable. `pause` holds the next answer back, so that a test can act between two lists.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count

from msgspec.structs import replace

from hooks.model.attachment import Attachment
from hooks.model.grant import Grant
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.errors import RuntimeUnavailableError
from tests.fakes import holders


class FakeRuntime:
    def __init__(self) -> None:
        self.down = False
        self.asked = 0
        self._sandboxes: dict[str, ListedSandbox] = {}
        self._containers: dict[str, ListedContainer] = {}
        self._numbers = count()
        self._free = asyncio.Event()
        self._free.set()

    def run(self, pod: str, annotations: Mapping[str, str] | None = None) -> str:
        """Create a sandbox (RunPodSandbox), and return its id."""
        sandbox = holders.sandbox(pod, id=f"{pod}-s{next(self._numbers)}", annotations=annotations)
        self._sandboxes[sandbox.id] = sandbox
        return sandbox.id

    def create(
        self, sandbox: str, name: str, *, wears: Grant | str | None = None, attached: Sequence[Attachment] | str = ()
    ) -> str:
        """Create and start a container (CreateContainer, StartContainer), and return its id."""
        id_, pod = f"c{next(self._numbers)}", self._sandboxes[sandbox].pod
        container = holders.container(id_, pod=pod, name=name, sandbox=sandbox, wears=wears, attached=attached)
        self._containers[container.id] = container
        return container.id

    def exit(self, container: str) -> None:
        self._containers[container] = replace(self._containers[container], state=ContainerState.EXITED)

    def remove_container(self, container: str) -> None:
        del self._containers[container]

    def stop(self, sandbox: str, *, but: str = "") -> None:
        """Stop the sandbox (StopPodSandbox), and its containers, except for a container that cannot be killed."""
        self._sandboxes[sandbox] = replace(self._sandboxes[sandbox], ready=False)
        for container in [*self._containers.values()]:
            if container.sandbox == sandbox and container.id != but:
                self.exit(container.id)

    def remove(self, sandbox: str) -> None:
        """Remove the sandbox and its containers (RemovePodSandbox)."""
        del self._sandboxes[sandbox]
        self._containers = {i: c for i, c in self._containers.items() if c.sandbox != sandbox}

    def pause(self) -> None:
        self._free.clear()

    def go_on(self) -> None:
        self._free.set()

    async def lists(self) -> Lists:
        self.asked += 1
        sandboxes = tuple(self._sandboxes.values())
        await self._free.wait()
        if self.down:
            raise RuntimeUnavailableError("cannot call the runtime at /run/fake.sock: UNAVAILABLE")
        return Lists(sandboxes=sandboxes, containers=tuple(self._containers.values()))
