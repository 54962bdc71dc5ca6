"""Run the node: join inventory, ledger and runtime, one decision at a time.

A grant is decided and recorded without giving up the event loop in between, so that two requests never see the same device as
free. Slow work (drivers, the runtime's lists) happens in the background. Preparers, for example of VFs, do their work after the
grant is recorded and before it is answered.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hooks.forms.annotations import parse_assignment
from hooks.grant.decide import Rules, View, decide
from hooks.grant.dirty import Cleanness, find_dirt
from hooks.grant.unhealthy import find_unhealthy
from hooks.host.binding import find_rebound
from hooks.host.mounts import recheck_mounts
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.period import Began, End, Ended
from hooks.ledger.reconcile import Actions, ProblemKind, reconcile
from hooks.ledger.share_bypass import ShareBypass
from hooks.ledger.store import Ledger
from hooks.ledger.unmanaged import Unmanaged, decide_unmanaged, find_unmanaged
from hooks.model.assignment import Assignment, Refusal
from hooks.model.attachment import Attachment
from hooks.model.container import Answer, Container, Sandbox, merge
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, Inventory
from hooks.model.lists import Lists
from hooks.node.bypass import Bypassed, find_bypassed
from hooks.node.hand_over import HandOver, name_host_processes
from hooks.node.life import Life, LifeEvent
from hooks.node.node_log import NodeLog, owner_fields
from hooks.node.unreported import EMPTY_S, UnreportedEnds
from hooks.ports import Preparer, RuntimeLists
from lading.cgroups import read_cgroups
from lading.errors import HostError, RuntimeUnavailableError, StateError
from lading.log import Event, Log
from lading.reasons import Reason
from lading.vocabulary import GpuUuid, PodUid, SandboxId

# After a failed comparison with the runtime, the next one begins after this many seconds.
RETRY_S: Final = 1.0
# After a stop, comparisons repeat after this many seconds until the grants are released: killing a container may have failed.
RELEASE_RETRY_S: Final = 2.0
# A call waits at most this many seconds for a new reading; the proxy waits for 2 s.
READING_S: Final = 1.0
# A preparer waits at most this many seconds for a reading: a card that hangs in its driver must not delay the next comparison.
SCAN_S: Final = 5.0

_NOT_RECONCILED: Final = "not reconciled"


class _Decided(NamedTuple):
    answer: Answer | Refusal
    took_s: float  # seconds of deciding and recording, without preparing


@dataclass(slots=True)
class Node:
    """Run the node, behind the port `NodePort`. Call all methods on the event loop's thread."""

    ledger: Ledger
    lists: Callable[[], Awaitable[Lists]]  # reads the runtime's lists; raises RuntimeUnavailableError
    host_root: Path
    boot_id: str
    log: Log
    rules: Callable[[], Rules]
    reconcile_interval_s: float
    preparers: Sequence[Preparer] = ()
    clock: Callable[[], float] = time.time  # Unix time, which may jump; durations use time.monotonic()
    soon: Callable[[Callable[[], None]], object] = lambda do: do()  # defers work until the answer is on its way
    answered: Callable[[Answer | Refusal, float], object] = lambda *_: None  # gets the seconds of deciding and recording too
    released: Callable[[float], object] = lambda _: None  # gets the seconds from a stop until a grant is freed
    restore: Callable[[Collection[GpuUuid]], Sequence[str]] | None = None  # resets cards after their tenant, in a thread
    bypass_found: Callable[[Sequence[Bypassed]], object] = lambda _: None  # gets the bypassed containers after each comparison
    command: Callable[[Gpu], Awaitable[None]] | None = None  # the operator's hand-over command; raises HostError
    watch: InventoryWatch | None = None
    reconciled: bool = False
    reconcile_failures: int = 0
    bypassed: tuple[Bypassed, ...] = ()  # containers that run without the devices of their pod's annotations
    share_contexts: dict[GpuUuid, int] = field(default_factory=dict)  # MiB that a context takes, by card (node/share_watch.py)
    share_bypasses: tuple[ShareBypass, ...] = ()  # containers that do not keep to their shares of cards (node/share_watch.py)
    _reconciled_at: float = float("-inf")  # last comparison, on time.monotonic()
    life: Life = field(default_factory=Life)
    hand_over: HandOver = field(init=False)
    _unreported: UnreportedEnds = field(init=False)
    _held: frozenset[GpuUuid] = frozenset()  # cards with a holder at the last check
    _work_due: asyncio.Event = field(default_factory=asyncio.Event)
    _node_log: NodeLog = field(init=False)
    _logged: Inventory = field(default_factory=Inventory)  # the inventory that was logged last

    def __post_init__(self) -> None:
        self._node_log = NodeLog(self.log)
        self._unreported = UnreportedEnds(self.ledger.path.parent)
        command = None if self.command is None else self._run_command
        self.hand_over = HandOver(log=self.log, restore=self.restore, command=command, read_soon=self._request_scan)

    def _request_scan(self) -> None:
        if self.watch is not None:
            self.watch.request_scan()

    @property
    def inventory(self) -> Inventory | None:
        """Return the newest inventory, with devices that Lading moved into pods shown as on the host. None before the first
        reading."""
        current = self.watch.current if self.watch else None
        return None if current is None else self._shown(current)

    def _shown(self, inventory: Inventory) -> Inventory:
        for preparer in self.preparers:
            inventory = preparer.shown(inventory)
        return inventory

    @property
    def unhealthy(self) -> tuple[str, ...]:
        """Return a text for each granted device that can no longer be used, with its container."""
        inventory = self.inventory
        if inventory is None:
            return ()
        return tuple(
            f"{device}, of {grant.namespace}/{grant.pod_name}/{grant.container}: {reason}"
            for grant in self.ledger.grants()
            for device, reason in find_unhealthy(grant.devices, inventory).items()
        )

    # ---- requests of front ends

    def adjust_container(self, sandbox: Sandbox, container: Container) -> Answer | Refusal | Awaitable[Answer | Refusal]:
        decided = self._adjust(sandbox, container)
        if isinstance(decided, _Decided):
            return self._note_answer(sandbox, container, decided)
        return self._adjust_later(sandbox, container, decided)

    async def _adjust_later(self, sandbox: Sandbox, container: Container, work: Awaitable[_Decided]) -> Answer | Refusal:
        return self._note_answer(sandbox, container, await work)

    def refused(self, sandbox: Sandbox, container: Container, refusal: Refusal) -> None:
        """Log and count a refusal that the front end answers in place of this node's answer."""
        self._note_answer(sandbox, container, _Decided(refusal, 0.0))

    def _note_answer(self, sandbox: Sandbox, container: Container, decided: _Decided) -> Answer | Refusal:
        """Log and count the answer to a front end. The decision may have been taken several times before."""
        answer = decided.answer
        if isinstance(answer, Refusal):
            self.log.warning(Event.GRANT_REFUSED, answer.message, **_call_fields(sandbox, container), reason=answer.reason)
        self.answered(answer, decided.took_s)
        return answer

    def _adjust(self, sandbox: Sandbox, container: Container) -> _Decided | Awaitable[_Decided]:
        began = time.monotonic()
        answer = self._decide(sandbox, container)
        if isinstance(answer, Refusal) and answer.transient:
            return self._decide_after_reading(sandbox, container, began)
        if isinstance(answer, Answer) and answer.undivided:
            return self._decide_when_divided(sandbox, container, answer, began)
        return self._prepared(sandbox, answer, time.monotonic() - began)

    async def _decide_after_reading(self, sandbox: Sandbox, container: Container, began: float) -> _Decided:
        """Read the devices again, for as long as a call can wait, and decide again."""
        await self._read_again(READING_S)
        answer = self._decide(sandbox, container)
        if isinstance(answer, Answer) and answer.undivided:
            return await self._decide_when_divided(sandbox, container, answer, began)
        return await self._finish(sandbox, answer, began)

    async def _decide_when_divided(self, sandbox: Sandbox, container: Container, granted: Answer, began: float) -> _Decided:
        """Have the granted MIG instances made, and decide again: only then are the container's devices known."""
        divided = await self._finish(sandbox, granted, began)
        if isinstance(divided.answer, Refusal):
            return divided
        await self._read_again(READING_S)
        answer = self._decide(sandbox, container)
        if isinstance(answer, Answer) and answer.undivided:
            cards = ", ".join(gpu.uuid for gpu in answer.undivided)
            answer = Refusal(
                reason=Reason.INVENTORY_UNAVAILABLE,
                message=f"cannot give MIG instances yet: they were made, and the driver of {cards} does not show them",
            )
        return await self._finish(sandbox, answer, began)

    async def _finish(self, sandbox: Sandbox, answer: Answer | Refusal, began: float) -> _Decided:
        finished = self._prepared(sandbox, answer, time.monotonic() - began)
        return finished if isinstance(finished, _Decided) else await finished

    def _prepared(self, sandbox: Sandbox, answer: Answer | Refusal, took_s: float) -> _Decided | Awaitable[_Decided]:
        if isinstance(answer, Answer) and (wanted := [one for one in self.preparers if one.wants(answer)]):
            return self._prepare(sandbox, answer, wanted, took_s)
        return _Decided(answer, took_s)

    async def _prepare(self, sandbox: Sandbox, answer: Answer, preparers: Sequence[Preparer], took_s: float) -> _Decided:
        """Let the preparers do their work outside the container. The work outlives its call: a retry waits for the same
        work."""
        self._note(LifeEvent.PREPARING, sandbox)
        parts = [answer.adjustment]
        refusal = None
        try:
            for preparer in preparers:
                part = await preparer.prepare(sandbox, answer)
                if isinstance(part, Refusal):
                    refusal = part
                    self._work_due.set()  # a comparison retries failed undoing soon
                    break
                parts.append(part)
        finally:
            self._note(LifeEvent.PREPARED, sandbox)
        return _Decided(refusal or replace(answer, adjustment=merge(parts)), took_s)

    def _decide(self, sandbox: Sandbox, container: Container) -> Answer | Refusal:
        inventory = self.inventory
        if inventory is None:
            return Refusal(reason=Reason.INVENTORY_UNAVAILABLE, message="cannot give devices yet: they have not been read")
        self._note(LifeEvent.CALLED, sandbox)
        try:
            answer = decide(sandbox, container, self.rules(), self._view(inventory, sandbox, container))
            answer = self._unless_rebound(answer, inventory)
        except HostError as e:
            return Refusal(reason=Reason.INVENTORY_UNAVAILABLE, message=str(e))
        if isinstance(answer, Refusal):
            return answer
        fields = _call_fields(sandbox, container)
        if answer.grant:
            try:
                self._record(answer.grant, answer.key_id)
            except StateError as e:
                self.log.error(Event.LEDGER_FAILED, str(e), **fields)
                return Refusal(reason=Reason.LEDGER_UNAVAILABLE, message=str(e))
            event = Event.GRANT_REUSED if answer.reused else Event.GRANT_CREATED
            self.soon(partial(self.log.info, event, **fields, devices=",".join(answer.grant.devices.names)))
        if answer.preloads:
            self.log.warning(Event.ENV_PRELOADS, ",".join(answer.preloads), **fields)
        return answer

    def _unless_rebound(self, answer: Answer | Refusal, inventory: Inventory) -> Answer | Refusal:
        """Refuse cards whose driver was bound to them again since they were read: their minor numbers may now be other cards'.
        A refusal may come from such a card too: it is marked as transient, and decided again."""
        if isinstance(answer, Refusal):
            return replace(answer, transient=True) if find_rebound(self.host_root, inventory.gpus) else answer
        granted = {gpu.uuid for gpu in answer.grant.devices.gpus} if answer.grant else ()
        rebound = find_rebound(self.host_root, (gpu for gpu in inventory.gpus if gpu.uuid in granted))
        if not rebound:
            return answer
        return Refusal(
            reason=Reason.INVENTORY_UNAVAILABLE,
            message=f"cannot give devices yet: the driver was bound again to {', '.join(rebound)} since the devices were read",
            transient=True,
        )

    def _record(self, grant: Grant, key_id: str) -> None:
        """Record the grant. If the container had other devices, the decision gave those up: release them first."""
        held = self.ledger.find(grant.pod, grant.container)
        if held is not None and held.devices != grant.devices:
            self.ledger.release(grant.pod, grant.container, end=End(at=int(self.clock()), how=Ended.GIVEN_UP))
            self.log.warning(Event.GRANT_RELEASED, "a device became unhealthy", **_fields(held))
        self.ledger.record(grant, key_id=key_id)
        self._note_holders()

    def _note(self, event: LifeEvent, sandbox: Sandbox) -> None:
        self.life.happened(event, PodUid(sandbox.uid), time.monotonic())

    def sandbox_created(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Begin to attach the VFs of the pod's containers. The grants are for containers by name: a container gets the same
        devices when it is created, even if other reasons speak against them then."""
        rules = self.rules()
        if not rules.netdev.attaches:
            return None
        assignment = parse_assignment(sandbox.annotations, pod=PodUid(sandbox.uid), node=rules.node_name, trust=rules.trust)
        if not isinstance(assignment, Assignment):
            return None
        names = [name for name, request in assignment.containers.items() if request.vfs or request.any_vfs]
        return self._begin_containers(sandbox, names) if names else None

    async def _begin_containers(self, sandbox: Sandbox, names: Sequence[str]) -> None:
        await asyncio.gather(*(self._begin_container(sandbox, Container(name=name)) for name in names))

    async def _begin_container(self, sandbox: Sandbox, container: Container) -> None:
        """Grant a container's devices, and prepare them. A refusal is not answered: the node decides about the container again
        when it is created."""
        work = self._adjust(sandbox, container)
        decided = work if isinstance(work, _Decided) else await work
        if isinstance(decided.answer, Answer):
            self.answered(decided.answer, decided.took_s)

    def compare_soon(self) -> None:
        self._work_due.set()

    def stopping(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Record that StopPodSandbox is about to go to the runtime: nothing is prepared for this sandbox any more. From now on,
        check now and then whether it has stopped, because the caller may die before it reports the stop."""
        self._note(LifeEvent.STOP_CALLED, sandbox)
        with self._ledger_failure():
            self.ledger.tombstone(SandboxId(sandbox.id), int(self.clock()))
        self._work_due.set()
        preparers = [one for one in self.preparers if one.has(sandbox)]
        return self._undo(sandbox, preparers) if preparers else None

    async def _undo(self, sandbox: Sandbox, preparers: Sequence[Preparer]) -> None:
        for preparer in preparers:
            await preparer.undo(sandbox)
        if self.watch is not None:
            self.watch.request_scan()

    def stopped(self, sandbox: Sandbox) -> None:
        """Record that the sandbox has stopped: its containers' devices are free once the containers have exited."""
        self._note(LifeEvent.STOPPED, sandbox)
        self._work_due.set()

    def sandbox_removed(self, sandbox: Sandbox) -> None:
        """Record the removal of a sandbox whose stop may have happened while the daemon was not running. The tombstone stays
        until the runtime has not listed the sandbox for a while. If the daemon dies before the grants are released, the next
        instance finds the tombstone."""
        with self._ledger_failure():
            self.ledger.tombstone(SandboxId(sandbox.id), int(self.clock()))
        self.stopped(sandbox)

    # ---- the view of a decision

    def _view(self, inventory: Inventory, sandbox: Sandbox, container: Container) -> View:
        pod = PodUid(sandbox.uid)
        self._note_holders()
        own = self.ledger.find(pod, container.name)
        unmanaged = Unmanaged() if own else find_unmanaged(self.host_root, inventory, self.ledger.grants())
        drivers = tuple(map(recheck_mounts, inventory.drivers))
        if drivers != inventory.drivers:
            inventory = replace(inventory, drivers=drivers)
        if self.share_contexts:
            gpus = (replace(gpu, context_mib=self.share_contexts.get(gpu.uuid, 0)) for gpu in inventory.gpus)
            inventory = replace(inventory, gpus=tuple(gpus))
        return View(
            inventory=inventory,
            age_s=self.watch.age_s if self.watch else math.inf,
            own=own,
            pod_gen=self.ledger.newest_gen(pod),
            held=(*self.ledger.held_by_others(pod, container.name), *(one for p in self.preparers for one in p.holdings())),
            unmanaged=unmanaged.held,
            host_processes=name_host_processes(self.host_root, unmanaged),
            waits=self.hand_over.waits(),
            dirty_since=self.hand_over.since,
            stopped=self.ledger.is_stopped(SandboxId(sandbox.id)),
            may_grant=self.reconciled,
            now=int(self.clock()),
            boot_id=self.boot_id,
        )

    # ---- the background

    @property
    def reconcile_age_s(self) -> float:
        """Return the seconds since the ledger was last compared with the runtime's lists; infinite before the first time."""
        return time.monotonic() - self._reconciled_at

    async def keep_reconciled(self) -> None:
        """Compare the ledger with the runtime at the start, at every interval, and soon after a sandbox stopped. After the
        start, compare again soon until two comparisons agree. Never returns."""
        while True:
            done = await self.reconcile()
            if done:
                self._reconciled_at = time.monotonic()
            else:
                self.reconcile_failures += 1
            wait = self.reconcile_interval_s if done else RETRY_S
            if done and self._ending:
                wait = min(wait, RELEASE_RETRY_S)
            if done and (sooner_s := self._unreported.wait_s(time.monotonic())) is not None:
                wait = min(wait, sooner_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):  # wait_for loses a cancellation that comes with the event (bpo-37658)
                    await self._work_due.wait()
            self._work_due.clear()

    @property
    def _ending(self) -> bool:
        """Return whether there are holders whose sandbox has stopped, or was asked to stop."""
        grants, is_stopped = self.ledger.grants(), self.ledger.is_stopped
        stopped = bool(self.life.stopped) or any(is_stopped(grant.sandbox) for grant in grants)
        return stopped or any(preparer.ending(is_stopped, grants) for preparer in self.preparers)

    async def reconcile(self) -> bool:
        """Compare the ledger with the runtime's lists. Return whether the comparison succeeded."""
        began = time.monotonic()
        stopped = self.life.stopped
        grants, tombstones = self.ledger.grants(), dict(self.ledger.tombstones())
        under_way = [preparer.under_way() for preparer in self.preparers]
        try:
            lists = await self.lists()
        except RuntimeUnavailableError as e:
            self._node_log.once(Event.LEDGER_FAILED, f"{_NOT_RECONCILED}: {e}")
            return False
        self._node_log.over(Event.LEDGER_FAILED, _NOT_RECONCILED)
        await self._find_bypassed(lists)
        now = time.monotonic()
        stopped |= self._find_unreported(grants, lists, now)
        actions = reconcile(  # no await from here to `_apply`: a call answered in between would be missed
            grants,
            tombstones,
            lists,
            now=int(self.clock()),
            boot_id=self.boot_id,
            busy=self.life.in_use_since(began) | self._given_back_by_others(now),
            stopped=stopped,
            not_back=frozenset().union(*(preparer.held() for preparer in self.preparers)),
        )
        for problem in actions.problems:
            message = problem.message
            if problem.kind is ProblemKind.LIST_EMPTY and not lists.containers:
                message += f"; what they hold is free if it lists none for {EMPTY_S:.0f} s"
            self._node_log.once(Event.LEDGER_FAILED, message, reason=problem.kind)
        try:
            self._apply(actions)
        except StateError as e:  # the ledger may lack a holder: nothing new is granted before it is complete
            self._node_log.once(Event.LEDGER_FAILED, str(e))
            return False
        observed = RuntimeLists(
            sandboxes=frozenset(s.id for s in lists.sandboxes),
            ready=frozenset(s.id for s in lists.sandboxes if s.ready),
            live=frozenset(c.sandbox for c in lists.containers if c.live),
            stopped=stopped,
            grants=self.ledger.grants(),
            inventory=self.watch.current if self.watch else None,
            read_again=partial(self._read_again, SCAN_S),
        )
        await self._reconcile_preparers(observed, under_way)
        left = {grant.pod for grant in self.ledger.grants()} - lists.ready
        self.life.compared(began, time.monotonic(), holders=left)
        if not self.reconciled:
            self.reconciled = True
            self._restore_free()
            self.log.info(Event.LEDGER_RECONCILED, grants=len(self.ledger.grants()), sandboxes=len(lists.sandboxes))
        return True

    def _find_unreported(self, grants: Collection[Grant], lists: Lists, now: float) -> frozenset[PodUid]:
        """Return the pods whose end was not reported. Their sandboxes count as stopped from now on, also after a restart."""
        held: list[Grant | Attachment] = [*grants, *self.ledger.journal.rows()]
        unix = int(self.clock())
        ended = self._unreported.find(grants, {one.pod for one in held}, lists, now=now, unix=unix)
        with self._ledger_failure():
            for sandbox in sorted({one.sandbox for one in held if one.pod in ended}):
                self.ledger.tombstone(sandbox, unix)
        return ended

    async def _find_bypassed(self, lists: Lists) -> None:
        """Find bypassed containers, in a thread: pods' authors decide how long annotations are, and calls are answered
        meanwhile."""
        rules = self.rules()
        find = partial(find_bypassed, lists, node=rules.node_name, trust=rules.trust)
        self.bypassed = await asyncio.to_thread(find)
        self._node_log.bypassed(self.bypassed)
        self.bypass_found(self.bypassed)

    def _given_back_by_others(self, now: float) -> set[PodUid]:
        """Return the pods whose devices another program (CNI) gives back at this moment. The journal has no rows for such
        devices: they are back when the stop has succeeded. Runtimes list a sandbox as not ready before that, because they end
        its process first and then run CNI's DEL."""
        stopping = self.life.stopping(now)
        moved = (grant for grant in self.ledger.grants() if any(one.moved_by_others(grant) for one in self.preparers))
        return {grant.pod for grant in moved if grant.pod in stopping}

    async def _reconcile_preparers(self, lists: RuntimeLists, under_way: Sequence[frozenset[int]]) -> None:
        """Let the preparers compare their work with the lists, after the grants. A grant with a device that is not back yet
        stays, and is checked again as soon as the device is back."""
        for preparer, before in zip(self.preparers, under_way, strict=True):
            if await preparer.reconcile(lists, before):
                self._work_due.set()
                if self.watch is not None:
                    self.watch.request_scan()
        self._node_log.missing({device: reason for preparer in self.preparers for device, reason in preparer.missing().items()})

    async def _read_again(self, wait_s: float) -> Inventory | None:
        """Read the devices again; return None if that fails or takes longer."""
        if self.watch is not None:
            with contextlib.suppress(TimeoutError, HostError):
                async with asyncio.timeout(wait_s):
                    return await self.watch.refresh_now()
        return None

    def _apply(self, actions: Actions) -> None:
        self.ledger.journal.restore(actions.restore)
        for grant in actions.adopt:
            self.ledger.record(grant, began=Began.ADOPTED)
            self.log.warning(Event.GRANT_ADOPTED, **_fields(grant))
        for key, held_by in actions.add_containers:
            self.ledger.add_container(key.pod, key.container, held_by.id, held_by.sandbox)
        if actions.forget_containers:
            self.ledger.forget_containers(actions.forget_containers)
        for sandbox in actions.forget:
            self.ledger.forget_sandbox(sandbox)
        end = End(at=int(self.clock()))
        for key in actions.release:
            for grant in self.ledger.release(key.pod, key.container, end=end):
                self.log.info(Event.GRANT_RELEASED, **_fields(grant))
                if (stopped := self.life.stopped_at(key.pod)) is not None:
                    self.released(time.monotonic() - stopped)
        self._note_holders()

    def _restore_free(self) -> None:
        """Hand over all free cards after the start: any of them may have lost its last holder while the daemon did not run."""
        inventory = self.inventory
        if inventory is not None and self.hand_over.has_work:
            self._hand_over(frozenset(gpu.uuid for gpu in inventory.gpus) - self.ledger.cards)

    def _note_holders(self) -> None:
        """Hand over the cards that lost their last holder since the last call, in whichever way."""
        before, self._held = self._held, self.ledger.cards
        self._hand_over(before - self._held)

    def _hand_over(self, cards: frozenset[GpuUuid]) -> None:
        """Have cards without a holder made ready for the next one, if the node's rules require it."""
        if not cards:
            return
        if self.hand_over.has_work or self.rules().clean.checks:
            self.hand_over.left(cards)

    async def _run_command(self, card: GpuUuid) -> None:
        """Run the operator's command for a card. Do nothing if the card no longer exists, or is divided: a divided card's MIG
        instances are made anew instead."""
        gpus = self.inventory.gpus if self.inventory else ()
        gpu = next((gpu for gpu in gpus if gpu.uuid == card), None)
        if gpu is not None and not gpu.mig_enabled and self.command is not None:
            await self.command(gpu)

    def inventory_read(self, began: float, inventory: Inventory) -> None:
        """Take a reading of the devices, changed or not. `began`: when the reading began, on time.monotonic()."""
        self._note_holders()
        free = replace(
            inventory, gpus=tuple(gpu for gpu in inventory.gpus if gpu.uuid not in self._held and not gpu.mig_enabled)
        )
        try:
            processes = name_host_processes(self.host_root, find_unmanaged(self.host_root, free, ()))
        except HostError:
            processes = {}  # processes that cannot be read make no card dirty
        cleanness = Cleanness(rule=self.rules().clean, processes=processes)
        self.hand_over.read(began, {gpu.uuid: find_dirt(gpu, cleanness) for gpu in free.gpus}, int(self.clock()))

    def inventory_changed(self, _: Inventory, new: Inventory) -> None:
        shown = self._shown(new)
        self._node_log.changes(self._logged, shown, self.ledger.grants())
        self._logged = shown
        try:
            processes = read_cgroups(self.host_root, [pid for gpu in new.gpus for pid in gpu.process_ids])
        except HostError as e:
            self.log.error(Event.INVENTORY_FAILED, str(e))
            return
        for device, text in decide_unmanaged(new.gpus, processes, self.ledger.grants()).held.items():
            self._node_log.once(Event.HOLDER_FOREIGN, text, device=device)

    def inventory_failed(self, error: Exception) -> None:
        self._node_log.once(Event.INVENTORY_FAILED, str(error))

    @contextlib.contextmanager
    def _ledger_failure(self) -> Iterator[None]:
        """Log a failure of the ledger inside this context. Past actions of the runtime cannot be refused any more: the next
        comparison corrects the ledger."""
        try:
            yield
        except StateError as e:
            self._node_log.once(Event.LEDGER_FAILED, str(e))


def _call_fields(sandbox: Sandbox, container: Container) -> dict[str, Any]:
    return {"pod_uid": sandbox.uid, "namespace": sandbox.namespace, "pod": sandbox.name, "container": container.name}


def _fields(grant: Grant) -> dict[str, str]:
    return {**owner_fields(grant), "devices": ",".join(grant.devices.names)}
