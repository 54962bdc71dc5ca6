"""The VFs that are in this node's pods, beside its ledger: brought in before a container is made, given back as its pod ends.

`attach.attacher` does it; here is when, and what the rest of the node is to see of it: the inventory as it would be with every
VF at home, VFs that are not free, rows that nobody has a use for any more. An answer waits for its VFs; a stop waits as long as
a stop may, and never fails. On a node that brings no VF anywhere nothing is asked for, and there is nothing to wait for.
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
    """hooks.attach.attacher"""

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
    """All methods on the loop's thread."""

    journal: Journal
    attacher: Attacher
    told: Callable[[Operation, float, bool], object] = lambda *_: None  # what, its seconds, whether it succeeded
    strays: frozenset[PciAddress] = frozenset()  # network devices that somebody else moved
    _shown: tuple[tuple[Inventory, tuple[Attachment, ...], frozenset[PciAddress]], Inventory] | None = None

    # ---- what the node sees

    def shown(self, inventory: Inventory) -> Inventory:
        """Made once for what it is made of: every container asks for it, those without a VF too."""
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
        """Something is to come back that has not yet."""
        unheld = self._unheld(grants)
        return any(row.step.releasing or is_stopped(row.sandbox) or row.generation in unheld for row in self.journal.rows())

    def has(self, sandbox: hook_pb2.PodSandbox) -> bool:
        return bool(self.journal.of_sandbox(SandboxId(sandbox.id)))

    # ---- what is done

    async def attach(self, sandbox: hook_pb2.PodSandbox, answer: Answer) -> Answer | Refusal:
        """The answer, when its VFs are in the pod: they are in the container's annotations too, for a ledger that is lost."""
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
        """While the namespace of a sandbox that is about to be stopped still lives. What takes too long goes on behind."""
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
        """With lists that succeeded; `known` are the `generations` from before they were asked for. An empty list is a witness
        only of pods that were seen to stop. Whether a VF came back."""
        rows = self.journal.rows()
        if not sandboxes:
            known &= {row.generation for row in rows if row.pod in stopped}
        ready = frozenset(SandboxId(s.id) for s in sandboxes if s.state == cri.SANDBOX_READY)
        live = frozenset(SandboxId(c.pod_sandbox_id) for c in containers if c.state in LIVE)
        await self.attacher.reconcile(ready=ready, live=live, known=known, unheld=self._unheld(grants))
        left = {row.generation for row in self.journal.rows()}
        return any(row.generation not in left for row in rows)

    def _unheld(self, grants: Collection[Grant]) -> frozenset[int]:
        """Generations of VFs that no container of their pod has any more: it was given others."""
        held = {(grant.pod, vf.bdf) for grant in grants for vf in grant.devices.vfs}
        return frozenset(row.generation for row in self.journal.rows() if (row.pod, row.bdf) not in held)

    async def look_for_strays(self, watch: InventoryWatch) -> None:
        """An inventory may be older than the newest row is: what looks strange is looked at again before it is believed."""
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
