"""Move VFs into sandboxes and back. Each step is first written to the journal, then checked, then done.

`plan` decides the next step, and `steps` carries it out. An attach and a release of one VF never run at the same time (one lock
per VF); different VFs move in parallel. Each attach is a task of its own: it outlives the call that began it, and a retry for
the same sandbox awaits the same task. If the attach fails, takes too long, or its sandbox is stopped meanwhile, its changes are
undone as by a release. A kernel call that hangs blocks only its VF and one thread; the journal records it, and the waiting
caller gets a refusal.

The journal keeps a VF that cannot be released, with the reason, and each `reconcile` retries the release. Call all methods on
the event loop's thread.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from hooks.attach import plan
from hooks.attach.kernel import Kernel, KernelError, StateVersion
from hooks.attach.preparing import Attaching, Preparing, refuse
from hooks.attach.steps import InThread, Steps, Work
from hooks.ledger.journal import Journal
from hooks.model.assignment import Refusal
from hooks.model.attachment import Attachment, PodOf, Step, WantedVf
from lading.errors import LadingError, StateError
from lading.log import Event, Log
from lading.reasons import Reason
from lading.threads import in_thread as fresh_thread
from lading.vocabulary import PciAddress, SandboxId

# How long `reconcile` waits for the releases that it began: a VF that hangs must not delay the ledger's next comparison.
RECONCILE_WAIT_S: Final = 5.0

Outcome = Attachment | Refusal | None


class _AbandonedError(LadingError):
    """Report that an attach must not go on."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Attacher:
    def __init__(
        self,
        *,
        journal: Journal,
        kernel: Kernel,
        netns_of: Callable[[SandboxId], Awaitable[str | None]],
        stopped: Callable[[SandboxId], bool],
        boot_id: str,
        log: Log,
        deadline_s: float = 30.0,
        clock: Callable[[], float] = time.time,
        in_thread: InThread = fresh_thread,
    ) -> None:
        """Set the dependencies. `netns_of` returns the path of a sandbox's network namespace: empty for the host's, None if the
        runtime does not report it. It may raise LadingError. `stopped` returns whether a sandbox was stopped, or is about to
        be."""
        self._journal = journal
        self._kernel = kernel
        self._steps = Steps(kernel, in_thread, deadline_s=deadline_s, hangs=self._hangs)
        self._preparing = Preparing(self._steps, netns_of=netns_of, names_of=self._names_of, boot_id=boot_id, clock=clock)
        self._stopped = stopped
        self._boot_id = boot_id
        self._log = log
        self._deadline_s = deadline_s
        self._clock = clock
        self._locks: defaultdict[PciAddress, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._attaching: dict[tuple[PciAddress, SandboxId], tuple[Attaching, asyncio.Task[Outcome]]] = {}
        self._releasing: dict[int, asyncio.Task[None]] = {}  # releases in progress, by the attachment's generation
        self._alive: plan.LiveSandboxes | None = None
        # Each attached VF's state version at its last check, by generation. The caller of an attach may have given up before
        # its end: with an unchanged version, the retry does not begin anew.
        self._verified: dict[int, StateVersion] = {}

    # ---- requests

    async def attach(self, wanted: Sequence[WantedVf], pod: PodOf) -> tuple[Attachment, ...] | Refusal:
        """Attach these VFs to the pod. Return, in order, the attachments of the VFs with a device to move. If a VF fails,
        return the first refusal, and leave the other VFs as they are, for the retry. May be called again."""
        names = [one.ifname for one in wanted]
        begun = []
        for one in wanted:
            work, task = self._attaching.get((one.vf.bdf, pod.sandbox)) or self._begin_attaching(one, pod, names)
            begun.append(self._outcome(work, task))
        outcomes = await asyncio.gather(*begun)
        refusal = next((outcome for outcome in outcomes if isinstance(outcome, Refusal)), None)
        return refusal or tuple(outcome for outcome in outcomes if isinstance(outcome, Attachment))

    async def detach_sandbox(self, sandbox: SandboxId) -> None:
        """Release all VFs of the sandbox. Return when each VF is back, or its failure is in the journal. The sandbox is about
        to be stopped, and `stopped` already returns True for it. If the caller stops waiting, the release goes on."""
        if tasks := [self._begin_releasing(row) for row in self._journal.of_sandbox(sandbox)]:
            await asyncio.wait(tasks)

    async def reconcile(
        self,
        *,
        ready: frozenset[SandboxId],
        live: frozenset[SandboxId],
        known: frozenset[int] = frozenset(),
        unheld: frozenset[int] = frozenset(),
    ) -> None:
        """Release the VFs whose sandbox has ended by the runtime's lists, or whose pod gave them up (`unheld`, by generation),
        and retry failed releases. `ready`: sandboxes that are ready; `live`: sandboxes with a live container; `known`:
        generations that existed before the lists were requested. Call only with lists that succeeded."""
        self._alive = plan.LiveSandboxes(ready=ready, live=live, at=int(self._clock()), known=known)
        rows = self._journal.rows()
        orphans = plan.find_orphans(rows, self._alive, stopped=self._stopped, unheld=unheld, boot_id=self._boot_id)
        # An attach in progress checks itself whether it may go on.
        if tasks := [self._begin_releasing(row) for row in orphans if (row.bdf, row.sandbox) not in self._attaching]:
            await asyncio.wait(tasks, timeout=RECONCILE_WAIT_S)

    async def force_release(self, vf: PciAddress, generation: int) -> list[str]:
        """Release this attachment, and describe the steps taken; return an empty list if the VF has another attachment by now.
        A failed release is retried like any other. But if the pod's namespace is deleted, and the device with it, give the VF
        up: reset it at its PF, and delete the attachment."""
        async with self._locks[vf]:
            row = self._journal.find(vf)
            if row is None or row.generation != generation:
                return []
            text = plan.describe_release(row)
            reason = await self._release(row)
            return [f"cannot release VF {vf}: {reason}", *await self._give_up(row)] if reason else text

    # ---- attaching

    def _begin_attaching(self, one: WantedVf, pod: PodOf, names: Sequence[str]) -> tuple[Attaching, asyncio.Task[Outcome]]:
        """Begin to attach a VF. `names`: the interface names of all VFs in the same request."""
        rows = self._journal.of_sandbox(pod.sandbox)
        known = next((row.ifname for row in rows if row.bdf == one.vf.bdf), one.ifname)
        begun = [work.ifname for work, _ in self._attaching.values() if work.pod.sandbox == pod.sandbox]
        work = Attaching(
            vf=one.vf.bdf,
            wanted=one,
            ifname=known or plan.choose_ifname([*names, *begun, *(row.ifname for row in rows)]),
            pod=pod,
            deadline=_now() + self._deadline_s,
        )
        key = (one.vf.bdf, pod.sandbox)
        task = asyncio.create_task(self._attach(work))
        self._attaching[key] = work, task
        task.add_done_callback(lambda done: self._ended(done, self._attaching, key))
        return work, task

    async def _outcome(self, work: Attaching, task: asyncio.Task[Outcome]) -> Outcome:
        await asyncio.wait({task}, timeout=max(0.0, work.deadline - _now()))
        if task.done():
            return task.result()
        return refuse(work, Reason.ATTACH_FAILED, f"not done within {self._deadline_s:g} s; current step: {work.doing}")

    async def _attach(self, work: Attaching) -> Outcome:
        async with self._locks[work.vf]:
            try:
                return await self._bring_in(work)
            except _AbandonedError as e:
                refusal = refuse(work, e.reason, e.message)
            except StateError as e:
                refusal = refuse(work, Reason.LEDGER_UNAVAILABLE, str(e))
            except LadingError as e:
                refusal = refuse(work, Reason.ATTACH_FAILED, str(e))
            self._log.warning(Event.VF_ATTACH_FAILED, refusal.message, reason=refusal.reason, **_fields(work.pod, work.vf))
            row = self._journal.find(work.vf)
            if row is not None and row.generation == work.generation:
                await self._release(row)
            return refusal

    async def _bring_in(self, work: Attaching) -> Outcome:
        self._check(work)
        row = self._journal.find(work.vf)
        if row is not None and (self._is_over(work, row) or await self._is_undone(work, row)):
            if refusal := self._decide_held(work, row):
                return refusal
            if reason := await self._release(row):
                return refuse(work, Reason.ATTACH_FAILED, f"it has not come back from sandbox {row.sandbox} yet: {reason}")
            row = None
        if row is None:
            prepared = await self._preparing.prepare(work)
            if not isinstance(prepared, Attachment):
                return prepared
            row = self._journal.begin(prepared)
        work.generation = row.generation
        if row.step is not Step.ATTACHED:
            row = await self._advance(work, row)
            self._log.info(Event.VF_ATTACHED, **_fields(row, row.bdf), ifname=row.ifname)
        return row

    async def _is_undone(self, work: Attaching, row: Attachment) -> bool:
        """Return whether another process undid the attachment. While the VF's state version is unchanged, the last answer
        counts."""
        if row.step is not Step.ATTACHED:
            return False
        version = self._kernel.state_version(row.bdf)
        if self._verified.get(row.generation) == version:
            return False
        undone = await self._steps.is_undone(work, row)
        if not undone:
            self._verified[row.generation] = version
        return undone

    async def _advance(self, work: Attaching, row: Attachment) -> Attachment:
        """Bring the VF into the pod, beginning with the row's step, which may be done, half done or not begun."""
        while row.step is not Step.ATTACHED:
            self._check(work)
            version = self._kernel.state_version(row.bdf)
            done = await self._steps.act(work, row)
            self._verified[row.generation] = version
            row = self._journal.reach(row.bdf, row.generation, plan.next_in(row), mac_owner=done.mac_owner)
        return row

    def _check(self, work: Attaching) -> None:
        if self._stopped(work.pod.sandbox):
            raise _AbandonedError(Reason.SANDBOX_STOPPED, "its sandbox is stopped, or about to be")
        if _now() >= work.deadline:
            raise _AbandonedError(Reason.ATTACH_FAILED, f"not done within {self._deadline_s:g} s; last step: {work.doing}")

    def _is_over(self, work: Attaching, row: Attachment) -> bool:
        return row.sandbox != work.pod.sandbox or row.step.releasing or row.boot_id != self._boot_id

    def _decide_held(self, work: Attaching, row: Attachment) -> Refusal | None:
        """Refuse the VF if another holder still has it. An older sandbox of the same pod loses the VF once the newest lists
        show that it has ended."""
        if row.boot_id != self._boot_id or row.sandbox == work.pod.sandbox:
            return None
        if row.pod != work.pod.pod:
            return refuse(work, Reason.DEVICE_HELD, f"it has not come back from pod {row.namespace}/{row.pod_name}")
        if plan.has_ended(row, self._alive, stopped=self._stopped(row.sandbox)):
            return None
        return refuse(work, Reason.DEVICE_HELD, f"the pod's sandbox {row.sandbox} has it, and is not known to have ended")

    def _names_of(self, work: Attaching) -> frozenset[str]:
        """Return the names of the sandbox's other VFs that are attached or being attached."""
        sandbox = work.pod.sandbox
        begun = (other.ifname for other, _ in self._attaching.values() if other.pod.sandbox == sandbox and other is not work)
        return frozenset(begun) | {row.ifname for row in self._journal.of_sandbox(sandbox)}

    # ---- releasing

    def _begin_releasing(self, row: Attachment) -> asyncio.Task[None]:
        task = self._releasing.get(row.generation)
        if task is None:
            task = self._releasing[row.generation] = asyncio.create_task(self._release_own(row.bdf, row.generation))
            task.add_done_callback(lambda done: self._ended(done, self._releasing, row.generation))
        return task

    async def _release_own(self, vf: PciAddress, generation: int) -> None:
        """Release the VF. Do nothing if the VF is free by now, or has another attachment."""
        async with self._locks[vf]:
            row = self._journal.find(vf)
            if row is not None and row.generation == generation:
                await self._release(row)

    async def _release(self, row: Attachment) -> str:
        """Release the VF; the caller holds its lock. Return an empty string if the VF is free, else the failure, which is also
        in the journal."""
        work = Work(vf=row.bdf, generation=row.generation)
        self._verified.pop(row.generation, None)
        try:
            step = plan.first_return(row) if row.boot_id == self._boot_id else None  # a reboot undid all earlier changes
            while step is not None:
                if step is not row.step:
                    row = self._journal.reach(row.bdf, row.generation, step)
                await self._steps.act(work, row)
                step = plan.next_out(row)
            self._journal.forget(row.bdf, row.generation)
        except LadingError as e:
            self._note_failure(work, Event.VF_RELEASE_FAILED, str(e))
            return str(e)
        self._log.info(Event.VF_RELEASED, **_fields(row, row.bdf))
        return ""

    async def _give_up(self, row: Attachment) -> list[str]:
        work = Work(vf=row.bdf, generation=row.generation)
        observed = await self._steps.find_where(work, row)
        if observed.netns:
            return [f"it is tried again; {row.netns} is still there: delete pod {row.namespace}/{row.pod_name} first"]
        if plan.is_home(row, observed):
            return ["it is tried again; its device is back, and no pod gets it in the state in which that pod left it"]
        reset, config = f"reset VF {row.vf.index} of PF {row.vf.pf}", plan.reset_by_pf(row)
        try:
            await self._steps.call(work, reset, partial(self._kernel.set_vf, row.vf.pf, row.vf.index, config))
        except KernelError as e:
            reset = f"could not {reset}: {e}"
        self._journal.forget(row.bdf, row.generation)
        return [reset, f"forget that it is attached: {row.netns} is gone, and the device did not come back from it"]

    # ---- failures

    def _hangs(self, work: Work) -> None:
        event = Event.VF_ATTACH_FAILED if isinstance(work, Attaching) else Event.VF_RELEASE_FAILED
        self._note_failure(work, event, f"{work.doing}: no answer from the kernel for {self._deadline_s:g} s")

    def _note_failure(self, work: Work, event: Event, reason: str) -> None:
        row = self._journal.find(work.vf)
        if row is None or row.generation != work.generation or row.failure == reason:
            return
        self._log.error(event, reason, **_fields(row, row.bdf))
        try:
            self._journal.reach(row.bdf, row.generation, row.step, failure=reason)
        except StateError as e:
            self._log.error(Event.LEDGER_FAILED, str(e))

    def _ended(self, task: asyncio.Task[Any], begun: dict[Any, Any], key: object) -> None:
        del begun[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            event = Event.VF_RELEASE_FAILED if begun is self._releasing else Event.VF_ATTACH_FAILED
            self._log.error(event, f"internal error: {type(error).__name__}", reason=Reason.INTERNAL)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _fields(owner: PodOf | Attachment, vf: PciAddress) -> dict[str, Any]:
    pod = {"pod_uid": owner.pod, "namespace": owner.namespace, "pod": owner.pod_name}
    return {**pod, "sandbox": owner.sandbox, "device": vf}
