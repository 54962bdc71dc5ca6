"""Check every SCAN_S whether a container bypasses the share server: compare the driver's processes with the server's.

A bypass is logged when it begins, and is in the node report and a metric while it lasts. It is found at the latest after
SUSPECT_S, one interval between checks and the time of a reading. If the share server or the driver does not answer, no bypass
is reported.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from hooks.host.processes import find_mapped, is_ending, sees_host_processes
from hooks.ledger.share_bypass import How, ShareBypass, Suspicions, find_share_bypasses, shared_cards
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, GpuProcess
from hooks.node.node import Node
from hooks.node.node_log import owner_fields
from hooks.ports import Vendor
from lading.cgroups import read_cgroups
from lading.log import Event, Log
from lading.sharestatus import ShareUse
from lading.threads import in_thread
from lading.vocabulary import GpuUuid

_CUDA: Final = "libcuda.so"
SCAN_S: Final = 1.5  # seconds between two checks; with SUSPECT_S, 4.5 s at the most


@dataclass(slots=True, kw_only=True)
class ShareWatch:
    """Run the checks on the event loop's thread. `ask` returns the share server's containers, or raises HostError."""

    node: Node
    vendors: Sequence[Vendor]
    ask: Callable[[], Sequence[ShareUse]]
    tolerance_mib: int
    log: Log
    clock: Callable[[], float] = time.monotonic
    _suspicions: Suspicions = field(default_factory=Suspicions)
    _problem: str = ""  # failure of the last check, or empty

    async def keep_scanning(self) -> None:
        """Check the shared cards until the task is cancelled. A driver that hangs delays the next check."""
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        grants, inventory = self.node.ledger.grants(), self.node.inventory
        shared = shared_cards(grants)
        gpus = [gpu for gpu in inventory.gpus if gpu.uuid in shared] if inventory else []
        if not gpus or not sees_host_processes(self.node.host_root):
            self._show(())
            return
        try:
            result = await in_thread(partial(self._find, gpus, grants))
        except Exception as e:  # noqa: BLE001 - whatever a driver comes up with, the node's own work goes on
            self._suspicions = Suspicions()  # a bypass must be found again in every check
            self._show(())
            self._log_problem(str(e) or type(e).__name__)
            return
        self._log_problem("")
        self._show(self._suspicions.settle(result, self.clock()))

    def _find(self, gpus: Sequence[Gpu], grants: Sequence[Grant]) -> tuple[ShareBypass, ...]:
        """Find bypasses, in a thread. The driver is asked before the server: a process connects to the server before the driver
        shows it."""
        processes = self._read_processes([gpu.uuid for gpu in gpus])
        known = self.ask()
        self.node.share_contexts.update({GpuUuid(use.gpu): use.context_mib for use in known if use.context_mib})
        cgroups = read_cgroups(self.node.host_root, {one.pid for running in processes.values() for one in running})
        now = [replace(gpu, processes=processes.get(gpu.uuid)) for gpu in gpus]
        share_bypasses = find_share_bypasses(now, cgroups, known, grants, tolerance_mib=self.tolerance_mib)
        return tuple(filter(None, map(self._complete, share_bypasses)))

    def _complete(self, one: ShareBypass) -> ShareBypass | None:
        """Leave out processes that are about to end, because they have closed their connections, and name the library that the
        first other one uses; return None if no process is left."""
        if one.how is How.MEMORY:
            return one
        left = tuple(pid for pid in one.process_ids if not is_ending(self.node.host_root, pid))
        return replace(one, process_ids=left, library=find_mapped(self.node.host_root, left[0], _CUDA)) if left else None

    def _read_processes(self, cards: Sequence[GpuUuid]) -> Mapping[GpuUuid, tuple[GpuProcess, ...]]:
        gpu_processes: dict[GpuUuid, tuple[GpuProcess, ...]] = {}
        for vendor in self.vendors:
            gpu_processes |= vendor.read_processes(cards)
        return gpu_processes

    def _show(self, bypasses: tuple[ShareBypass, ...]) -> None:
        before = {one.key for one in self.node.share_bypasses}
        for one in bypasses:
            if one.key not in before:
                self.log.error(Event.SHARE_BYPASSED, one.text, **owner_fields(one), device=one.card)
        self.node.share_bypasses = bypasses

    def _log_problem(self, problem: str) -> None:
        if problem and not self._problem:
            self.log.warning(Event.SHARE_WATCH_FAILED, f"cannot see whether shares are bypassed: {problem}")
        self._problem = problem
