"""Run the front end for NRI: the plugin that gives containers their pods' assigned devices, without a change of kubelet.

The plugin passes each event of the runtime to the node, as the CRI proxy's front end does. The preparation of devices begins
when the pod's sandbox is created, so that most containers need not wait. If the preparation outlasts a call's budget, the
container is refused, the preparation continues, and kubelet's retry succeeds. A sandbox is never refused: containerd 2.1 leaks
a refused sandbox, and cannot start again after two refused sandboxes of one pod.

containerd reports a sandbox's end (StopPodSandbox) after its containers have ended, and before its network is torn down. VFs
delay this call for no longer than the budget. After a restart, containerd (observed: 1.7.24 and 2.1.9) reports only the removed
containers of an older sandbox, not its end. So the plugin then queries the sandbox by CRI.
"""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from hooks.frontends.nri.conversation import NriCallError
from hooks.frontends.nri.guard.rule import check_container, is_guarded
from hooks.frontends.nri.link import BUDGET_S, NriLink
from hooks.frontends.nri.messages import NriDevice, Runtime, read_container, read_netns, read_sandbox, render_answer
from hooks.frontends.nri.plugin import Handler, Request, log_internal
from hooks.model.assignment import Refusal
from hooks.model.container import Answer, Container, Sandbox
from hooks.ports import NodePort
from lading.errors import HostError
from lading.log import Log
from lading.reasons import Reason, render_refusal
from lading.vocabulary import SandboxId
from protos.nri.v1alpha1 import nri_pb2 as nri

NAME: Final = "lading"
INDEX: Final = "50"
_DRAIN_S: Final = 5.0
T = TypeVar("T")
_BEING_PREPARED: Final = Refusal(
    reason=Reason.NOT_PREPARED,
    message="cannot give the devices yet: they are being prepared; this is retried automatically",
)


def read_device_node(path: str) -> NriDevice:
    """Return the numbers, mode and owner of a device node; symlinks are not followed. Raise HostError."""
    try:
        result = os.lstat(path)
    except OSError as e:
        raise HostError(f"cannot give {path}: {e.strerror}") from e
    if not stat.S_ISCHR(result.st_mode):
        raise HostError(f"cannot give {path}: it is no character device")
    return NriDevice(
        os.major(result.st_rdev), os.minor(result.st_rdev), stat.S_IMODE(result.st_mode), result.st_uid, result.st_gid
    )


@dataclass(slots=True, kw_only=True)
class LadingPlugin:
    """Handle the runtime's events. The plugin writes sandboxes' network namespaces into `netns`, before CRI shows them."""

    node: NodePort
    netns: MutableMapping[SandboxId, str]
    log: Log
    has_ended: Callable[[SandboxId], Awaitable[bool]]  # returns whether the sandbox was stopped or deleted, by CRI
    runtime: Runtime = field(default_factory=Runtime)
    name: str = NAME
    index: str = INDEX
    _working: "set[asyncio.Future[Any]]" = field(default_factory=set)

    def handlers(self, runtime: Runtime) -> Mapping[nri.Event, Handler]:
        self.runtime = runtime
        handlers: dict[nri.Event, Handler] = {
            nri.RUN_POD_SANDBOX: self._sandbox_created,
            nri.CREATE_CONTAINER: self._create,
            nri.START_CONTAINER: self._start,
            nri.STOP_POD_SANDBOX: self._stop,
            nri.REMOVE_POD_SANDBOX: self._sandbox_removed,
            nri.REMOVE_CONTAINER: self._container_removed,
        }
        return {**handlers, nri.VALIDATE_CONTAINER_ADJUSTMENT: self._validate} if runtime.validates else handlers

    def synchronized(self, pods: Sequence[nri.PodSandbox]) -> None:
        self.netns.clear()
        for pod in pods:
            self._note_netns(pod)
        self.node.compare_soon()

    async def drain(self) -> None:
        if self._working:
            await asyncio.wait(self._working, timeout=_DRAIN_S)

    # ---- events

    def _sandbox_created(self, request: Request) -> Message:
        self._note_netns(request.pod)
        work = self.node.sandbox_created(read_sandbox(request.pod))
        if work is not None:
            self._work(work)
        return nri.Empty()

    def _create(self, request: Request) -> Message | Awaitable[Message]:
        sandbox, container = read_sandbox(request.pod), read_container(request.container)
        answer = self.node.adjust_container(sandbox, container)
        if isinstance(answer, Answer | Refusal):
            return self._render(sandbox, container, answer)
        return self._create_later(sandbox, container, self._work(answer))

    async def _create_later(self, sandbox: Sandbox, container: Container, work: "asyncio.Future[Answer | Refusal]") -> Message:
        await asyncio.wait({work}, timeout=BUDGET_S)
        if not work.done():
            raise self._refused(sandbox, container, _BEING_PREPARED)
        return self._render(sandbox, container, work.result())

    def _render(self, sandbox: Sandbox, container: Container, answer: Answer | Refusal) -> Message:
        if isinstance(answer, Refusal):
            raise NriCallError(*render_refusal(answer.reason, answer.message))
        try:
            result = render_answer(answer, self.runtime, read_device_node)
        except HostError as e:
            result = Refusal(reason=Reason.DEVICE_NODE_INVALID, message=e.message)
        if isinstance(result, Refusal):
            raise self._refused(sandbox, container, result)
        return nri.CreateContainerResponse(adjust=result)

    def _refused(self, sandbox: Sandbox, container: Container, refusal: Refusal) -> NriCallError:
        self.node.refused(sandbox, container, refusal)
        return NriCallError(*render_refusal(refusal.reason, refusal.message))

    def _start(self, request: Request) -> Message:
        """Refuse a container that the runtime created without calling this plugin or a guard."""
        refusal = check_container(request.pod.annotations, request.container.annotations)
        if refusal is not None:
            raise NriCallError(*render_refusal(refusal.reason, refusal.message))
        return nri.Empty()

    def _validate(self, request: Request) -> Message:
        """Reject a guarded container without a grant after all adjustments: the runtime may have lost this plugin in the
        call."""
        assert isinstance(request, nri.ValidateContainerAdjustmentRequest)  # noqa: S101  of this event
        annotations = {**request.container.annotations, **request.adjust.annotations}
        refusal = check_container(request.pod.annotations, annotations)
        if refusal is None:
            return nri.ValidateContainerAdjustmentResponse()
        return nri.ValidateContainerAdjustmentResponse(reject=True, reason=render_refusal(refusal.reason, refusal.message)[1])

    def _stop(self, request: Request) -> Message | Awaitable[Message]:
        work = self._stopped(read_sandbox(request.pod))
        return nri.Empty() if work is None else self._stop_later(self._work(work))

    def _stopped(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Have the node give back the sandbox's prepared devices, and note the stop. Return None if that needs no waiting."""
        work = self.node.stopping(sandbox)
        if work is None:
            self.node.stopped(sandbox)
        return None if work is None else self._stopped_after(work, sandbox)

    async def _stopped_after(self, work: Awaitable[None], sandbox: Sandbox) -> None:
        await work
        self.node.stopped(sandbox)

    async def _stop_later(self, work: "asyncio.Future[None]") -> Message:
        await asyncio.wait({work}, timeout=BUDGET_S)
        return nri.Empty()

    def _sandbox_removed(self, request: Request) -> Message:
        self.netns.pop(SandboxId(request.pod.id), None)
        self.node.sandbox_removed(read_sandbox(request.pod))
        return nri.Empty()

    def _container_removed(self, request: Request) -> Message:
        if is_guarded(request.pod.annotations):
            self._work(self._check_end(read_sandbox(request.pod)))
        return nri.Empty()

    async def _check_end(self, sandbox: Sandbox) -> None:
        if await self.has_ended(SandboxId(sandbox.id)) and (work := self._stopped(sandbox)) is not None:
            await work

    # ---- background work

    def _note_netns(self, pod: nri.PodSandbox) -> None:
        if path := read_netns(pod):
            self.netns[SandboxId(pod.id)] = path

    def _work(self, work: Awaitable[T]) -> "asyncio.Future[T]":
        """Run the work to its end, even if the call that began it is answered before."""
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Future[Any]") -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_internal(self.log, error)


@dataclass(slots=True, kw_only=True)
class NriFrontEnd:
    """Run the plugin and its connection to the runtime."""

    link: NriLink
    plugin: LadingPlugin
    find_guard: Callable[[], str]  # returns an error if no guard is connected; empty if one is
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self.link.keep_connected())

    def conditions(self) -> Mapping[str, str]:
        return {"nri": self.link.problem, "nri-guard": self.find_guard()}

    async def close(self) -> None:
        """Answer the pending calls, because the runtime continues without an answer. Then disconnect and end background
        work."""
        await self.link.drain(_DRAIN_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.plugin.drain()
