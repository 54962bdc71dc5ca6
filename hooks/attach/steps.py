"""Carry out one step of an attachment: look where its devices are, let `plan` decide, do that; each kernel call in a thread.

A call that does not return is reported after a while, and is still waited for: nothing else may change what it is about to
change. Every failure is a KernelError.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from hooks.attach import plan
from hooks.attach.acts import calls_of
from hooks.attach.kernel import Kernel, KernelError, NetnsGoneError
from hooks.attach.plan import Seen, Stuck
from hooks.model.attachment import Attachment, Link, RdmaDevice, Step
from lading.errors import LadingError
from lading.vocabulary import PciAddress

T = TypeVar("T")


class InThread(Protocol):
    async def __call__(self, do: Callable[[], T]) -> T: ...


@dataclass(slots=True, kw_only=True)
class Work:
    """One attach or release that is in progress."""

    vf: PciAddress
    doing: str = "waiting for an earlier operation on this VF"  # what it hangs in, if it does
    generation: int | None = None  # of its row, once it has one


class Steps:
    def __init__(self, kernel: Kernel, in_thread: InThread, *, deadline_s: float, hangs: Callable[[Work], None]) -> None:
        """Set the dependencies. `hangs` is called for a call that takes longer than `deadline_s`, on the loop."""
        self.kernel = kernel
        self._in_thread = in_thread
        self._deadline_s = deadline_s
        self._hangs = hangs

    async def call(self, work: Work, doing: str, do: Callable[[], T]) -> T:
        work.doing = doing
        call = asyncio.ensure_future(self._in_thread(do))
        await asyncio.wait({call}, timeout=self._deadline_s)
        if not call.done():
            self._hangs(work)
        try:
            return await call
        except LadingError:
            raise
        except Exception as e:
            raise KernelError(f"{doing}: {type(e).__name__}: {e}") from e

    async def act(self, work: Work, row: Attachment) -> Attachment:
        """Do what the row's step names, unless it is done already. Return the row with what that showed."""
        if row.step in {Step.RECORDED, Step.ATTACHED}:
            return row
        seen = await self.look(work, row)
        act = plan.decide_act(row, seen)
        if isinstance(act, Stuck):
            raise KernelError(act.why)
        answer: object = None
        for doing, do in calls_of(act, row, seen, self.kernel):
            answer = await self.call(work, doing, do)
        return replace(row, mac_owner=plan.decide_mac_owner(row, taken=bool(answer))) if act is plan.Act.ADDRESS else row

    async def is_undone(self, work: Work, row: Attachment) -> bool:
        """Return whether another process undid an attachment that was complete."""
        return plan.is_undone(row, await self.look(work, row))

    async def look(self, work: Work, row: Attachment) -> Seen:
        look = partial(self.call, work, "looking where its devices are")
        netns = await look(partial(self.kernel.netns_id, row.netns)) == row.netns_id
        host, pod, rdma_host, rdma_pod = None, None, None, None
        if row.netdev is not None:
            host = await look(partial(self.kernel.host_link, row.bdf))
            pod = await look(partial(_find_in_pod, self.kernel, row)) if netns else None
        if row.rdma:
            rdma_host = await look(partial(self.kernel.host_ibdev, row.bdf, row.ibdev_number))
            rdma_pod = await look(partial(_find_ibdev_in_pod, self.kernel, row)) if netns else None
        return Seen(netns=netns, host=host, pod=pod, rdma_host=rdma_host, rdma_pod=rdma_pod)


def _find_in_pod(kernel: Kernel, row: Attachment) -> Link | None:
    """Return the VF's network device in the pod's namespace, by one of the names that it can have there."""
    try:
        links = (kernel.link(row.netns, name) for name in plan.names_in_pod(row))
        return next((link for link in links if link is not None and plan.is_own(row, link)), None)
    except NetnsGoneError:
        return None


def _find_ibdev_in_pod(kernel: Kernel, row: Attachment) -> RdmaDevice | None:
    try:
        return plan.find_own_ibdev(row, kernel.rdma_devices(row.netns))
    except NetnsGoneError:
        return None
