"""The VFs in this node's pods, beside its ledger: moved in before a container is created, given back when its pod ends.

`attach.attacher` moves them; this module decides when, and what the rest of the node sees: the inventory as it would be with
every VF at home, VFs that are not free, rows that no container needs any more. An answer waits for its VFs; a stop waits for a
bounded time, and never fails. On a node that moves no VFs there are no requests and no waiting.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from hooks.attach.overlay import find_strays, holdings_of, with_attached
from hooks.grant.decide import Answer
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.attachment import render_attachments
from hooks.ledger.journal import Journal
from hooks.ledger.reconcile import LIVE
from hooks.model.assignment import Refusal
from hooks.model.attachment import Attachment, PodOf, WantedVf
from hooks.model.grant import Grant
from hooks.model.holding import Holding
from hooks.model.inventory import Inventory
from lading.errors import HostError
from lading.vocabulary import ATTACHMENTS, PciAddress, PodUid, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2

# For a reading of the inventory that is asked for here; a card that hangs in its driver must not hold up the next comparison.
LOOK_S: Final = 5.0
# A stop goes on after so many seconds, whatever of its VFs is back: the rest is in the journal, and tried again.
STOP_WAIT_S: Final = 5.0


class Attacher(Protocol):
    """The part of hooks.attach.attacher that is used here."""

    async def attach(self, wanted: Sequence[WantedVf], pod: PodOf) -> tuple[Attachment, ...] | Refusal: ...

    async def detach_sandbox(self, sandbox: SandboxId) -> None: ...

    async def reconcile(
        self,
        *,
        ready: frozenset[SandboxId],
        live: frozenset[SandboxId],
        known: frozenset[int],
        unheld: frozenset[int],
    ) -> None: ...


class Operation(StrEnum):
    ATTACH = "attach"
    RELEASE = "release"


@dataclass(slots=True, kw_only=True)
class Attaching:
    """The attaching of a node. Call all methods on the loop's thread."""

    journal: Journal
    attacher: Attacher
    told: Callable[[Operation, float, bool], object] = lambda *_: None  # what, its seconds, whether it succeeded
    strays: frozenset[PciAddress] = frozenset()  # network devices that another process moved
    _shown: tuple[tuple[Inventory, tuple[Attachment, ...], frozenset[PciAddress]], Inventory] | None = None

    # ---- what the node sees

    def shown(self, inventory: Inventory) -> Inventory:
        """Return the inventory as others see it, cached: every container's decision uses it, also without a VF."""
        made_of = inventory, self.journal.rows(), self.strays
        if self._shown is None or self._shown[0][0] is not inventory or self._shown[0][1:] != made_of[1:]:
            self._shown = made_of, with_attached(inventory, made_of[1], strays=self.strays)
        return self._shown[1]

    def holdings(self) -> tuple[Holding, ...]:
        return holdings_of(self.journal.rows())

    def held(self) -> frozenset[tuple[PodUid, PciAddress]]:
        return frozenset((row.pod, row.bdf) for row in self.journal.rows())

    def generations(self) -> frozenset[int]:
        return frozenset(row.generation for row in self.journal.rows())

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        """Return whether a VF has to come back that is not back yet."""
        unheld = self._unheld(grants)
        return any(row.step.releasing or is_stopped(row.sandbox) or row.generation in unheld for row in self.journal.rows())

    def has(self, sandbox: hook_pb2.PodSandbox) -> bool:
        return bool(self.journal.of_sandbox(SandboxId(sandbox.id)))

    # ---- what is done

    async def attach(self, sandbox: hook_pb2.PodSandbox, answer: Answer) -> Answer | Refusal:
        """Return the answer when its VFs are in the pod. They are in the container's annotations too, in case the ledger is
        lost."""
        began = time.monotonic()
        pod = PodOf(pod=PodUid(sandbox.uid), namespace=sandbox.namespace, pod_name=sandbox.name, sandbox=SandboxId(sandbox.id))
        rows = await self.attacher.attach(answer.attach, pod)
        self.told(Operation.ATTACH, time.monotonic() - began, not isinstance(rows, Refusal))
        if isinstance(rows, Refusal):
            return rows
        if rows:
            answer.adjustment.annotations[ATTACHMENTS] = render_attachments(rows)
        return answer

    async def give_back(self, sandbox: hook_pb2.PodSandbox) -> None:
        """Give back the VFs while the namespace of a sandbox that is about to be stopped still exists. After the time limit the
        release goes on in the background."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                await self.attacher.detach_sandbox(SandboxId(sandbox.id))
        self.told(Operation.RELEASE, time.monotonic() - began, not self.has(sandbox))

    async def reconcile(
        self,
        sandboxes: Sequence[cri.PodSandbox],
        containers: Sequence[cri.Container],
        *,
        known: frozenset[int],
        stopped: Collection[PodUid],
        grants: Collection[Grant],
    ) -> bool:
        """Compare with lists that succeeded; `known` are the `generations` from before they were requested. An empty list
        counts only for pods that were seen to stop. Return whether a VF came back."""
        rows = self.journal.rows()
        if not sandboxes:
            known &= {row.generation for row in rows if row.pod in stopped}
        ready = frozenset(SandboxId(s.id) for s in sandboxes if s.state == cri.SANDBOX_READY)
        live = frozenset(SandboxId(c.pod_sandbox_id) for c in containers if c.state in LIVE)
        await self.attacher.reconcile(ready=ready, live=live, known=known, unheld=self._unheld(grants))
        left = {row.generation for row in self.journal.rows()}
        return any(row.generation not in left for row in rows)

    def _unheld(self, grants: Collection[Grant]) -> frozenset[int]:
        """Return the generations of VFs that no container of their pod has any more: it was given others."""
        held = {(grant.pod, vf.bdf) for grant in grants for vf in grant.devices.vfs}
        return frozenset(row.generation for row in self.journal.rows() if (row.pod, row.bdf) not in held)

    async def look_for_strays(self, watch: InventoryWatch) -> None:
        """Find VFs that another process moved. An inventory may be older than the newest row, so a suspicious VF is read again
        before it counts."""
        current = watch.current
        if current is None:
            return
        found = find_strays(current, self.journal.rows())
        if found - self.strays:
            try:
                async with asyncio.timeout(LOOK_S):
                    current = await watch.refresh_now()
            except (TimeoutError, HostError):
                return
            found &= find_strays(current, self.journal.rows())
        self.strays = found
