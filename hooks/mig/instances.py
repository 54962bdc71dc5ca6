"""Make MIG instances on demand (port `Preparer`), before a container with the instance's position is created.

An instance is removed when no grant has its position any more.

The ledger names the positions that need an instance, so there is no journal: `_divide` makes and removes the instances of one
card by the ledger. It can be repeated at any moment, also after a restart of lading-hooks. An instance that is about to be
removed counts as not made, so that a container with its position gets a new instance.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, Inventory, MigInstance
from hooks.ports import Preparer, RuntimeLists
from lading.errors import HostError
from lading.log import Event, Log
from lading.reasons import Reason
from lading.threads import in_thread
from lading.vocabulary import GpuUuid, SandboxId

DIVIDE_S: Final = 20.0  # for the driver, with what is under way on the card


@dataclass(slots=True, kw_only=True)
class MigInstances(Preparer):
    divide: Callable[[Gpu, Collection[str]], Mapping[str, str]]  # the port Vendor's; may block; HostError
    grants: Callable[[], Collection[Grant]]
    log: Log
    _locks: dict[GpuUuid, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _removed: set[str] = field(default_factory=set)  # removed since the newest reading, by the driver's name
    _left: bool = True  # there may be instances that no grant has; a daemon that was killed leaves some that no reading shows
    _logged: Mapping[str, str] = field(default_factory=dict)  # problems that are in the log

    def wants(self, answer: Answer) -> bool:
        return bool(answer.undivided)

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        wanted = {gpu.mig_uuid for gpu in answer.grant.devices.gpus} if answer.grant else set()
        for gpu in answer.undivided:
            problems = await self._divide(gpu)
            if cause := "; ".join(problem for name, problem in problems.items() if name in wanted | {gpu.uuid}):
                self.log.error(Event.MIG_FAILED, cause, device=gpu.uuid, pod_uid=sandbox.uid, pod=sandbox.name)
                return Refusal(reason=Reason.ISOLATION_UNAVAILABLE, message=cause)
        return Adjustment()

    def shown(self, inventory: Inventory) -> Inventory:
        if not self._removed:
            return inventory
        gpus = (replace(gpu, mig=tuple(map(self._without_removed, gpu.mig))) if gpu.mig else gpu for gpu in inventory.gpus)
        return replace(inventory, gpus=tuple(gpus))

    def _without_removed(self, mig: MigInstance) -> MigInstance:
        is_removed = mig.made_uuid in self._removed
        return MigInstance(uuid=mig.uuid, memory_mib=mig.memory_mib, profile=mig.profile, span=mig.span) if is_removed else mig

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        return self._left

    async def reconcile(self, lists: RuntimeLists, under_way: frozenset[int]) -> bool:
        """Remove instances without a grant. An instance that a process still uses is tried again soon."""
        if lists.inventory is None:
            return False
        self._removed &= {mig.made_uuid for gpu in lists.inventory.gpus for mig in gpu.mig}
        divided = [gpu for gpu in self.shown(lists.inventory).gpus if any(mig.span for mig in gpu.mig)]
        left = [gpu for gpu in divided if self._left or _made_besides(gpu, self._granted(gpu))]
        problems: dict[str, str] = {}
        self._left = False
        for gpu in left:
            problems |= await self._divide(gpu)
        if problems and problems != self._logged:
            self.log.error(Event.MIG_FAILED, "; ".join(problems.values()))
        self._logged = problems
        return bool(left)

    async def _divide(self, gpu: Gpu) -> Mapping[str, str]:
        """Make and remove the card's instances by the ledger. Return error messages by position, or by card if no position is
        known."""
        async with self._locks[gpu.uuid]:
            granted = self._granted(gpu)  # read with the lock held: a grant is in the ledger before its instance is made
            leaving = _made_besides(gpu, granted)
            self._removed |= leaving.keys()
            problems: Mapping[str, str]
            try:
                async with asyncio.timeout(DIVIDE_S):
                    problems = await in_thread(partial(self.divide, gpu, granted))
                self._removed -= {made for made, position in leaving.items() if position in problems}
            except TimeoutError:  # it may still be at work
                problems = {gpu.uuid: f"the driver of GPU {gpu.uuid} did not answer within {DIVIDE_S:g} s"}
            except HostError as e:
                problems = {gpu.uuid: str(e)}
                self._removed -= leaving.keys()
            self._left = self._left or bool(problems)
            return problems

    def _granted(self, gpu: Gpu) -> set[str]:
        """Return the positions of the card that grants have; also of instances that were granted by UUID, before the card was
        divided by Lading."""
        names = {one.mig_uuid for grant in self.grants() for one in grant.devices.gpus if one.uuid == gpu.uuid and one.mig_uuid}
        return {mig.uuid for mig in gpu.mig if mig.uuid in names or mig.made_uuid in names}


def _made_besides(gpu: Gpu, granted: Collection[str]) -> dict[str, str]:
    """Return the instances that were made and are not granted: by the driver's name, each with its position."""
    return {mig.made_uuid: mig.uuid for mig in gpu.mig if mig.made_uuid and mig.uuid not in granted}
