"""The node at work: inventory, ledger and runtime joined, one decision at a time.

Deciding and recording a grant happen without giving up the loop in between, so two requests never see one device free. What
takes time (NVML, the runtime's lists, cgroups of GPU processes) happens in the background; VFs are brought into a pod after its
grant is recorded and before it is answered (`attaching`).
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from hooks.grant.decide import Answer, Rules, View, decide
from hooks.grant.unwell import find_unwell
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.foreign import Foreign, decide_foreign, find_foreign, name_processes, read_cgroups
from hooks.ledger.period import Began, End, Ended
from hooks.ledger.reconcile import Actions, reconcile
from hooks.ledger.store import Ledger
from hooks.model.assignment import Refusal
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.node.attaching import Attacher, Attaching
from hooks.node.bypass import Bypassed, find_bypassed
from hooks.node.telling import Telling, owner_fields
from hooks.vendors.nvidia.binding import find_rebound
from hooks.vendors.nvidia.driver import recheck_mounts
from lading.errors import HostError, RuntimeUnavailableError, StateError
from lading.log import Event, Log
from lading.reasons import Reason
from lading.vocabulary import ContainerId, PodUid, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2

# While the runtime does not answer, and before the first comparison with it.
RETRY_S: Final = 1.0
# After a sandbox was stopped: its containers have exited, unless killing one failed; then it is looked at again.
RELEASE_RETRY_S: Final = 2.0
# How long a call waits for a new reading; the proxy waits for 2 s.
READING_S: Final = 1.0
# A stop that is under way for so long has no caller any more: kubelet gives up after two minutes, and asks again.
STOPPING_S: Final = 150.0

_NOT_RECONCILED: Final = "not reconciled"


class Lists(Protocol):
    """The runtime's lists that are used here (lading.runtime.RuntimeClient)."""

    async def list_sandboxes(self) -> tuple[cri.PodSandbox, ...]: ...

    async def list_containers(self) -> tuple[cri.Container, ...]: ...


@dataclass(slots=True)
class Node:
    """The node. Call all methods on the loop's thread."""

    ledger: Ledger
    runtime: Lists
    host_root: Path
    boot_id: str
    log: Log
    rules: Callable[[], Rules]
    reconcile_interval_s: float
    attacher: Attacher
    clock: Callable[[], float] = time.time  # Unix time, which may jump; what must not uses time.monotonic()
    soon: Callable[[Callable[[], None]], object] = lambda do: do()  # what can wait until the answer is on its way
    released: Callable[[float], object] = lambda _: None  # is called with the seconds from a stop until a grant is freed
    watch: InventoryWatch | None = None
    vfs: Attaching = field(init=False)
    reconciled: bool = False
    reconcile_failures: int = 0
    bypassed: tuple[Bypassed, ...] = ()  # containers that run without the devices of their pod's annotations
    _reconciled_at: float = float("-inf")  # on time.monotonic()
    _touched: dict[PodUid, float] = field(default_factory=dict)  # pods with a call since, on time.monotonic()
    _stopped_pods: dict[PodUid, float] = field(default_factory=dict)  # a sandbox was seen to stop, and not released yet
    _stopping: dict[PodUid, float] = field(default_factory=dict)  # a sandbox is being stopped, since when on time.monotonic()
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _telling: Telling = field(init=False)
    _told: Inventory = field(default_factory=Inventory)  # the one of which the log knows

    def __post_init__(self) -> None:
        self.vfs = Attaching(journal=self.ledger.journal, attacher=self.attacher)
        self._telling = Telling(self.log)

    @property
    def inventory(self) -> Inventory | None:
        """Return the newest inventory, with devices that Lading moved into pods shown as at home. None before the first."""
        current = self.watch.current if self.watch else None
        return None if current is None else self.vfs.shown(current)

    @property
    def unwell(self) -> tuple[str, ...]:
        """Return containers with a device that can no longer be used, in words."""
        inventory = self.inventory
        if inventory is None:
            return ()
        return tuple(
            f"{device}, of {grant.namespace}/{grant.pod_name}/{grant.container}: {why}"
            for grant in self.ledger.grants()
            for device, why in find_unwell(grant.devices, inventory).items()
        )

    # ---- what the hook API asks

    async def adjust_after_reading(self, sandbox: hook_pb2.PodSandbox, container: hook_pb2.Container) -> Answer | Refusal:
        """Read the devices again, for as long as a call can wait, and decide again."""
        if self.watch is not None:
            with contextlib.suppress(TimeoutError, HostError):
                async with asyncio.timeout(READING_S):
                    await self.watch.refresh_now()
        return self.adjust_container(sandbox, container)

    def adjust_container(self, sandbox: hook_pb2.PodSandbox, container: hook_pb2.Container) -> Answer | Refusal:
        """Decide. The caller brings what `attach` of the answer names into the pod with `attach_vfs`, before it answers, and
        has a transient refusal decided again with `adjust_after_reading`."""
        inventory = self.inventory
        if inventory is None:
            return Refusal(reason=Reason.INVENTORY_UNAVAILABLE, message="cannot give devices yet: they have not been read")
        pod = PodUid(sandbox.uid)
        self._touched[pod] = time.monotonic()
        try:
            answer = decide(sandbox, container, self.rules(), self._view(inventory, sandbox, container))
        except HostError as e:
            return Refusal(reason=Reason.INVENTORY_UNAVAILABLE, message=str(e))
        fields = {"pod_uid": pod, "namespace": sandbox.namespace, "pod": sandbox.name, "container": container.name}
        if isinstance(answer, Refusal):
            self.log.warning(Event.GRANT_REFUSED, answer.message, **fields, reason=answer.reason)
            return answer
        if answer.grant:
            try:
                self._record(answer.grant, answer.key_id)
            except StateError as e:
                self.log.error(Event.LEDGER_FAILED, str(e), **fields)
                return Refusal(reason=Reason.LEDGER_UNAVAILABLE, message=str(e))
            event = Event.GRANT_REUSED if answer.reused else Event.GRANT_CREATED
            self.soon(partial(self.log.info, event, **fields, devices=",".join(answer.grant.devices.names)))
        return answer

    def _record(self, grant: Grant, key_id: str) -> None:
        """Record the grant. If its devices differ from those the container had, the decision gave those up."""
        held = self.ledger.find(grant.pod, grant.container)
        if held is not None and held.devices != grant.devices:
            self.ledger.release(grant.pod, grant.container, end=End(at=int(self.clock()), how=Ended.GIVEN_UP))
            self.log.warning(Event.GRANT_RELEASED, "a device fell ill", **_fields(held))
        self.ledger.record(grant, key_id=key_id)

    async def attach_vfs(self, sandbox: hook_pb2.PodSandbox, answer: Answer) -> Answer | Refusal:
        """Attach the VFs of the answer. The task outlives its call: the retry waits for the same one."""
        self._touched[PodUid(sandbox.uid)] = math.inf  # however often the lists are compared meanwhile
        try:
            attached = await self.vfs.attach(sandbox, answer)
        finally:
            self._touched[PodUid(sandbox.uid)] = time.monotonic()
        if isinstance(attached, Refusal):
            self._wake.set()  # what could not be undone is tried again soon
        return attached

    def has_vfs(self, sandbox: hook_pb2.PodSandbox) -> bool:
        return self.vfs.has(sandbox)

    async def give_back_vfs(self, sandbox: hook_pb2.PodSandbox) -> None:
        """Give back the VFs, after `stopping`, while the sandbox's namespace exists; waits for a bounded time."""
        await self.vfs.give_back(sandbox)
        if self.watch is not None:
            self.watch.look_soon()

    def stopping(self, sandbox: hook_pb2.PodSandbox) -> None:
        """Record that StopPodSandbox is about to go to the runtime: nothing is attached to this sandbox any more. From now on,
        check now and then whether it has stopped, because the caller may die before it reports the stop."""
        self._stopping[PodUid(sandbox.uid)] = time.monotonic()
        with self._ledger_failure():
            self.ledger.tombstone(SandboxId(sandbox.id), int(self.clock()))
        self._wake.set()

    def stopped(self, sandbox: hook_pb2.PodSandbox) -> None:
        """Record that the sandbox has stopped: what its containers held is free once they have exited."""
        self._stopping.pop(PodUid(sandbox.uid), None)
        self._stopped_pods[PodUid(sandbox.uid)] = time.monotonic()
        self._wake.set()

    def sandbox_removed(self, sandbox: hook_pb2.PodSandbox) -> None:
        """Record the removal of a sandbox whose stop may have happened while the daemon was not running. The tombstone stays
        until the lists have been without the sandbox for a while: if the daemon dies before the grants are released, the next
        instance learns it from there."""
        self.stopping(sandbox)
        self.stopped(sandbox)

    def container_created(self, sandbox: hook_pb2.PodSandbox, container: hook_pb2.Container) -> None:
        with self._ledger_failure():
            self.ledger.add_container(PodUid(sandbox.uid), container.name, ContainerId(container.id), SandboxId(sandbox.id))

    def container_removed(self, container: hook_pb2.Container) -> None:
        with self._ledger_failure():
            self.ledger.forget_containers([ContainerId(container.id)])

    # ---- the view of a decision

    def _view(self, inventory: Inventory, sandbox: hook_pb2.PodSandbox, container: hook_pb2.Container) -> View:
        pod = PodUid(sandbox.uid)
        own = self.ledger.find(pod, container.name)
        foreign = Foreign() if own else find_foreign(self.host_root, inventory, self.ledger.grants())
        return View(
            inventory=replace(inventory, driver=inventory.driver and recheck_mounts(inventory.driver)),
            age_s=self.watch.age_s if self.watch else math.inf,
            rebound=find_rebound(self.host_root, inventory.gpus),
            own=own,
            pod_gen=self.ledger.newest_gen(pod),
            held=(*self.ledger.held_by_others(pod, container.name), *self.vfs.holdings()),
            foreign=foreign.held,
            host_processes={card: name_processes(self.host_root, pids) for card, pids in foreign.host.items()},
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
        """Compare ledger and runtime at the start, every interval, and soon after a sandbox stopped. Never returns."""
        while True:
            done = await self._reconcile()
            if done:
                self._reconciled_at = time.monotonic()
            else:
                self.reconcile_failures += 1
            wait = self.reconcile_interval_s if done else RETRY_S
            if done and self._ending:
                wait = min(wait, RELEASE_RETRY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):  # wait_for loses a cancellation that comes with the event (bpo-37658)
                    await self._wake.wait()
            self._wake.clear()

    @property
    def _ending(self) -> bool:
        """Return whether there are holders whose sandbox was stopped, or was to be."""
        grants, is_stopped = self.ledger.grants(), self.ledger.is_stopped
        stopped = bool(self._stopped_pods) or any(is_stopped(grant.sandbox) for grant in grants)
        return stopped or self.vfs.ending(is_stopped, grants)

    async def _reconcile(self) -> bool:
        began = time.monotonic()
        stopped = frozenset(self._stopped_pods)
        grants, tombstones, generations = self.ledger.grants(), dict(self.ledger.tombstones()), self.vfs.generations()
        try:
            sandboxes, containers = await self.runtime.list_sandboxes(), await self.runtime.list_containers()
        except RuntimeUnavailableError as e:
            self._telling.once(Event.LEDGER_FAILED, f"{_NOT_RECONCILED}: {e}")
            return False
        self._telling.over(Event.LEDGER_FAILED, _NOT_RECONCILED)
        await self._find_bypassed(sandboxes, containers)
        actions = reconcile(  # no await from here to `_apply`: a call answered in between would be missed
            grants,
            tombstones,
            sandboxes,
            containers,
            now=int(self.clock()),
            boot_id=self.boot_id,
            busy={pod for pod, at in self._touched.items() if at >= began} | self._with_vfs_on_their_way_back(),
            stopped=stopped,
            attached=self.vfs.held(),
        )
        for problem in actions.problems:
            self._telling.once(Event.LEDGER_FAILED, problem.message, reason=problem.kind)
        try:
            self._apply(actions)
        except StateError as e:  # the ledger may lack a holder: nothing new is granted before it is complete
            self._telling.once(Event.LEDGER_FAILED, str(e))
            return False
        await self._reconcile_vfs(sandboxes, containers, stopped, generations)
        self._forget_settled(began, {PodUid(s.metadata.uid) for s in sandboxes if s.state == cri.SANDBOX_READY})
        if actions.reconciled and not self.reconciled:
            self.reconciled = True
            self.log.info(Event.LEDGER_RECONCILED, grants=len(self.ledger.grants()), sandboxes=len(sandboxes))
        return actions.reconciled

    async def _find_bypassed(self, sandboxes: Sequence[cri.PodSandbox], containers: Sequence[cri.Container]) -> None:
        """Compare annotations in a thread, because pods' authors decide how long they are, and calls are answered meanwhile."""
        rules = self.rules()
        find = partial(find_bypassed, sandboxes, containers, node=rules.node_name, trust=rules.trust)
        self.bypassed = await asyncio.to_thread(find)
        self._telling.bypassed(self.bypassed)

    def _with_vfs_on_their_way_back(self) -> set[PodUid]:
        """Return the pods whose VFs are on their way back. If others move VFs into pods and back (CNI), the journal has no rows
        of them: they are back when the stop has succeeded. Runtimes list a sandbox as not ready before that, since they end its
        process first and run CNI's DEL then."""
        oldest = time.monotonic() - STOPPING_S
        self._stopping = {pod: at for pod, at in self._stopping.items() if at >= oldest}
        if not self.rules().netdev.by_cni:
            return set()
        return {grant.pod for grant in self.ledger.grants() if grant.devices.vfs and grant.pod in self._stopping}

    async def _reconcile_vfs(
        self,
        sandboxes: Sequence[cri.PodSandbox],
        containers: Sequence[cri.Container],
        stopped: Collection[PodUid],
        known: frozenset[int],
    ) -> None:
        """Compare the VFs, after the grants: a grant with a VF that is not back yet stays, and is looked at again as soon as it
        is."""
        grants = self.ledger.grants()
        if await self.vfs.reconcile(sandboxes, containers, known=known, stopped=stopped, grants=grants):
            self._wake.set()
            if self.watch is not None:
                self.watch.look_soon()
        if self.watch is not None and self.rules().netdev.expected:
            await self.vfs.look_for_strays(self.watch)
            self._telling.strays(self.vfs.strays)

    def _forget_settled(self, began: float, ready: Collection[PodUid]) -> None:
        """Delete notes of what happened before the lists were begun, because they contain it. A pod with a newer sandbox keeps
        its grants."""
        holders = {grant.pod for grant in self.ledger.grants() if grant.pod not in ready}
        self._stopped_pods = {pod: at for pod, at in self._stopped_pods.items() if at >= began or pod in holders}
        self._touched = {pod: at for pod, at in self._touched.items() if at >= began}

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
                if (stopped := self._stopped_pods.get(key.pod)) is not None:
                    self.released(time.monotonic() - stopped)

    def inventory_changed(self, _: Inventory, new: Inventory) -> None:
        shown = self.vfs.shown(new)
        self._telling.changes(self._told, shown, self.ledger.grants())
        self._told = shown
        try:
            processes = read_cgroups(self.host_root, [pid for gpu in new.gpus for pid in gpu.process_ids])
        except HostError as e:
            self.log.error(Event.INVENTORY_FAILED, str(e))
            return
        for device, words in decide_foreign(new.gpus, processes, self.ledger.grants()).held.items():
            self._telling.once(Event.HOLDER_FOREIGN, words, device=device)

    def inventory_failed(self, error: Exception) -> None:
        self._telling.once(Event.INVENTORY_FAILED, str(error))

    @contextlib.contextmanager
    def _ledger_failure(self) -> Iterator[None]:
        """Log a failure of the ledger. The runtime's past actions cannot be refused any more: the next comparison corrects the
        ledger."""
        try:
            yield
        except StateError as e:
            self._telling.once(Event.LEDGER_FAILED, str(e))


def _fields(grant: Grant) -> dict[str, str]:
    return {**owner_fields(grant), "devices": ",".join(grant.devices.names)}
