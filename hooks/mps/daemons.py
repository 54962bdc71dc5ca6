"""Run an MPS daemon for each card that has shares with isolation mps (port `Preparer`). The daemon is started before the first
container with such a share is created, and stopped after the last such grant has ended.

The ledger names the cards that need a daemon, so there is no journal: `_settle` starts or stops one card's daemon by the
ledger, and can be repeated at any moment, also after a restart of lading-hooks, which finds the daemons running. A card's
folder is made before any other change and removed last: it records that the card's compute mode has to be restored.

While a daemon is being stopped, no other pod gets its card, because the card's compute mode would allow only one process. A
card whose server is blocked by a fault is reported as unhealthy until its clients have ended.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hooks.isolation.mps import Limits, MpsFolders, largest_limits, mps_cards
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant, Holding
from hooks.model.inventory import Inventory
from hooks.mps.control import Control
from hooks.ports import CardService, Preparer, RuntimeLists
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.log import Event, Log
from lading.reasons import Reason
from lading.threads import in_thread
from lading.vocabulary import GpuUuid, PodUid, SandboxId

PREPARE_S: Final = 20.0  # for a container, with the stops that may be under way on its cards
_MODE_S: Final = 5.0  # for the driver
_SCAN_S: Final = 2.0  # seconds for a comparison; slower work continues beside the next comparison
_FAULT: Final = "a process that shares it by MPS had a fatal fault: all processes that share it end"


@dataclass(slots=True)
class _Card:
    there: bool = False  # whether the daemon's folder exists, and perhaps the daemon
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    work: asyncio.Task[None] | None = None
    limits: Limits | None = None  # limits that this instance has set
    servers: tuple[int, ...] = ()  # newest list: a daemon that died cannot be asked
    clients: int = 0
    fault: bool = False
    failure: str = ""
    failures: int = 0


@dataclass(slots=True, kw_only=True)
class MpsDaemons(Preparer):
    folders: MpsFolders
    control: Callable[[GpuUuid], Control]
    set_exclusive: Callable[[GpuUuid, bool], None]  # may block; HostError
    grants: Callable[[], Collection[Grant]]
    log: Log
    _back: bool = False  # a card was put back since the last comparison
    _cards: dict[GpuUuid, _Card] = field(default_factory=lambda: defaultdict(_Card))

    def __post_init__(self) -> None:
        for folder in Path(self.folders.mps_dir).glob("GPU-*"):
            self._cards[GpuUuid(folder.name)].there = True

    # ---- what the node sees

    def wants(self, answer: Answer) -> bool:
        return answer.grant is not None and any(mps_cards([answer.grant]))

    def holdings(self) -> tuple[Holding, ...]:
        """Return the cards without shares whose daemon is not stopped yet. A new share may get such a card."""
        if not (left := self._left(self.grants())):
            return ()
        rests = (GrantedGpu(uuid=uuid, core_percent=0, isolation=IsolationName.MPS) for uuid in left)
        stopping = "the MPS daemon, which is being stopped,"
        return tuple(
            Holding(pod=PodUid(""), pod_name="", container="", devices=GrantedDevices(gpus=(rest,)), program=stopping)
            for rest in rests
        )

    def shown(self, inventory: Inventory) -> Inventory:
        faults = {uuid for uuid, card in self._cards.items() if card.fault}
        if not faults:
            return inventory
        gpus = tuple(
            replace(gpu, unhealthy="; ".join(filter(None, (gpu.unhealthy, _FAULT)))) if gpu.uuid in faults else gpu
            for gpu in inventory.gpus
        )
        return replace(inventory, gpus=gpus)

    def services(self) -> tuple[CardService, ...]:
        needed = {gpu.uuid for gpu in mps_cards(self.grants())}
        known = {uuid for uuid, card in self._cards.items() if card.there or card.failures}
        return tuple(self._service(uuid, self._cards[uuid]) for uuid in sorted(needed | known))

    def _service(self, uuid: GpuUuid, card: _Card) -> CardService:
        runs = self.control(uuid).pid() is not None
        clients = card.clients if runs else 0
        return CardService(
            name=IsolationName.MPS, card=uuid, runs=runs, clients=clients, fault=card.fault, failures=card.failures
        )

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        return self._back or bool(self._left(grants)) or any(card.fault or card.failure for card in self._cards.values())

    def _left(self, grants: Collection[Grant]) -> list[GpuUuid]:
        there = [uuid for uuid, card in self._cards.items() if card.there]
        held = {gpu.uuid for gpu in mps_cards(grants)} if there else ()
        return [uuid for uuid in there if uuid not in held]

    # ---- what is done

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        deadline = asyncio.get_running_loop().time() + PREPARE_S
        for gpu in mps_cards([answer.grant] if answer.grant else []):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._settle(gpu.uuid)
            except (OSError, HostError) as e:  # a TimeoutError is an OSError, without words
                cause = str(e) or f"its MPS daemon was not ready within {PREPARE_S:g} s"
                self._cards[gpu.uuid].failures += 1
                self.log.error(Event.MPS_FAILED, cause, device=gpu.uuid, pod_uid=sandbox.uid, pod=sandbox.name)
                return Refusal(
                    reason=Reason.ISOLATION_UNAVAILABLE,
                    message=f"cannot give a share of {gpu.uuid} with isolation mps: {cause}",
                )
            if self._cards[gpu.uuid].fault:
                return Refusal(reason=Reason.DEVICE_UNHEALTHY, message=f"cannot give a share of {gpu.uuid}: {_FAULT}")
        return Adjustment()

    async def reconcile(self, lists: RuntimeLists, under_way: frozenset[int]) -> bool:
        """Settle each card that has, or needs, a daemon. What takes long, or hangs, keeps no other work waiting."""
        needed = {gpu.uuid for gpu in mps_cards(lists.grants)}
        work = []
        for uuid in needed | {uuid for uuid, card in self._cards.items() if card.there or card.failure}:
            card = self._cards[uuid]
            if card.work is not None and card.work.done():
                card.work.result()  # an error of this program is not hidden
                card.work = None
            if card.work is None:
                card.work = asyncio.create_task(self._settle_later(uuid), name=f"mps {uuid}")
            work.append(card.work)
        if work:
            await asyncio.wait(work, timeout=_SCAN_S)
        back, self._back = self._back, False
        return back

    async def _settle_later(self, uuid: GpuUuid) -> None:
        """Settle the card. A failure is tried again at the next comparison, which `ending` makes soon."""
        card = self._cards[uuid]
        failure = ""
        try:
            await self._settle(uuid)
        except (OSError, HostError) as e:
            failure = str(e)
            card.failures += 1
        if failure and failure != card.failure:
            self.log.error(Event.MPS_FAILED, failure, device=uuid)
        card.failure = failure

    async def _settle(self, uuid: GpuUuid) -> None:
        card = self._cards[uuid]
        async with card.lock:
            limits = largest_limits(self.grants(), uuid)
            if limits is not None:
                await self._run(uuid, card, limits)
            elif card.there:
                await self._stop(uuid, card)

    async def _run(self, uuid: GpuUuid, card: _Card, limits: Limits) -> None:
        """Start the daemon unless it runs, set the largest limits of the card's shares, and check for a fault."""
        control = self.control(uuid)
        if control.pid() is None:
            if card.limits is not None:
                card.failures += 1
                self.log.error(
                    Event.MPS_FAILED, "the daemon has ended, and its clients with it; another is started", device=uuid
                )
            await control.quit(card.servers)  # servers of a daemon that died would disturb the new servers
            card.there, card.limits = True, None
            control.make_folders()
            await self._set_exclusive(uuid, exclusive=True)
            await control.start()
            self.log.info(Event.MPS_STARTED, device=uuid, pid=control.pid() or 0)
        card.servers = await control.servers()
        if limits != card.limits:
            await control.set_limits(limits, card.servers)
            card.limits = limits
        card.clients = await control.count_clients(card.servers)
        fault = await control.has_fault(card.servers)
        if fault != card.fault:
            write = self.log.error if fault else self.log.info
            write(Event.MPS_FAULT if fault else Event.MPS_RECOVERED, _FAULT if fault else "", device=uuid)
        card.fault = fault

    async def _stop(self, uuid: GpuUuid, card: _Card) -> None:
        control = self.control(uuid)
        await control.quit(card.servers)
        card.servers, card.limits, card.clients, card.fault = (), None, 0, False
        await self._set_exclusive(uuid, exclusive=False)
        await control.remove_folders()
        card.there, self._back = False, True
        self.log.info(Event.MPS_STOPPED, device=uuid)

    async def _set_exclusive(self, uuid: GpuUuid, *, exclusive: bool) -> None:
        try:
            async with asyncio.timeout(_MODE_S):
                await in_thread(lambda: self.set_exclusive(uuid, exclusive))
        except TimeoutError as e:
            raise HostError(f"cannot set the compute mode of {uuid}: the driver gave no answer within {_MODE_S:g} s") from e
