"""Carry out one step of an attachment: find its devices, let `plan` decide, and do the act, each kernel call in a thread.

A kernel call that takes longer than `deadline_s` is reported. The step still waits for its return: no other call may change the
same device meanwhile. Every failure is a KernelError.

Tests: tests/unit/hooks/attach/test_attacher.py
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from hooks.attach import plan
from hooks.attach.acts import calls_of
from hooks.attach.kernel import Kernel, KernelError, NetnsMissingError
from hooks.attach.plan import ObservedDevices, Stuck
from hooks.model.attachment import Attachment, Link, RdmaDevice, Step
from lading.errors import LadingError
from lading.vocabulary import PciAddress

T = TypeVar("T")


class InThread(Protocol):
    async def __call__(self, do: Callable[[], T]) -> T: ...


@dataclass(slots=True, kw_only=True)
class Work:
    """Represent one attach or release that is in progress."""

    vf: PciAddress
    doing: str = "waiting for an earlier operation on this VF"  # the current operation, which a message about a hang names
    generation: int | None = None  # generation of its journal row; None before it has a row


@dataclass(slots=True)
class Steps:
    kernel: Kernel
    in_thread: InThread
    deadline_s: float
    hangs: Callable[[Work], None]  # called on the event loop for a kernel call that takes longer than `deadline_s`

    async def call(self, work: Work, doing: str, do: Callable[[], T]) -> T:
        work.doing = doing
        call = asyncio.ensure_future(self.in_thread(do))
        await asyncio.wait({call}, timeout=self.deadline_s)
        if not call.done():
            self.hangs(work)
        try:
            return await call
        except LadingError:
            raise
        except Exception as e:
            raise KernelError(f"{doing}: {type(e).__name__}: {e}") from e

    async def act(self, work: Work, row: Attachment) -> Attachment:
        """Do the act of the row's step, unless it is done already. Return the row, with the MAC's owner if the act showed
        it."""
        if row.step in {Step.RECORDED, Step.ATTACHED}:
            return row
        observed = await self.find_where(work, row)
        act = plan.decide_act(row, observed)
        if isinstance(act, Stuck):
            raise KernelError(act.why)
        answer: object = None
        for doing, do in calls_of(act, row, observed, self.kernel):
            answer = await self.call(work, doing, do)
        return replace(row, mac_owner=plan.decide_mac_owner(row, taken=bool(answer))) if act is plan.Act.ADDRESS else row

    async def is_undone(self, work: Work, row: Attachment) -> bool:
        """Return whether another process undid an attachment that was complete."""
        return plan.is_undone(row, await self.find_where(work, row))

    async def find_where(self, work: Work, row: Attachment) -> ObservedDevices:
        read = partial(self.call, work, "looking where its devices are")
        netns = await read(partial(self.kernel.netns_id, row.netns)) == row.netns_id
        host, pod, rdma_host, rdma_pod = None, None, None, None
        if row.netdev is not None:
            host = await read(partial(self.kernel.host_link, row.bdf))
            pod = await read(partial(_find_in_pod, self.kernel, row)) if netns else None
        if row.rdma:
            rdma_host = await read(partial(self.kernel.host_ibdev, row.bdf, row.ibdev_number))
            rdma_pod = await read(partial(_find_ibdev_in_pod, self.kernel, row)) if netns else None
        return ObservedDevices(netns=netns, host=host, pod=pod, rdma_host=rdma_host, rdma_pod=rdma_pod)


def _find_in_pod(kernel: Kernel, row: Attachment) -> Link | None:
    """Return the VF's network device in the pod's namespace, by one of the names that it can have there."""
    try:
        links = (kernel.link(row.netns, name) for name in plan.names_in_pod(row))
        return next((link for link in links if link is not None and plan.is_own(row, link)), None)
    except NetnsMissingError:
        return None


def _find_ibdev_in_pod(kernel: Kernel, row: Attachment) -> RdmaDevice | None:
    try:
        return plan.find_own_ibdev(row, kernel.rdma_devices(row.netns))
    except NetnsMissingError:
        return None
