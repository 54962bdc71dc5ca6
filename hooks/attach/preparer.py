"""VFs in pods, behind the port `Preparer`: moved in before a container is created, given back when its pod ends.

`attacher` moves them; this module decides when, and what the rest of the node sees: the inventory as it would be with every VF
at home, VFs that are not free, rows of the journal that no container needs any more. An answer waits for its VFs; a stop waits
for a bounded time, and never fails. On a node that moves no VFs there are no requests and no waiting.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from hooks.attach.overlay import find_strays, holdings_of, with_attached
from hooks.ledger.attachment import render_attachments
from hooks.ledger.journal import Journal
from hooks.model.answer import Answer
from hooks.model.assignment import Refusal
from hooks.model.attachment import STRAY, Attachment, NetdevPolicy, PodOf, WantedVf
from hooks.model.container import Adjustment, Sandbox
from hooks.model.grant import Grant
from hooks.model.holding import Holding
from hooks.model.inventory import Inventory
from hooks.ports import Preparer, Seen
from lading.vocabulary import ATTACHMENTS, PciAddress, PodUid, SandboxId

# A stop goes on after so many seconds, whatever of its VFs is back: the rest is in the journal, and tried again.
STOP_WAIT_S: Final = 5.0


class VfMover(Protocol):
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
class VfPreparer(Preparer):
    journal: Journal
    attacher: VfMover
    policy: NetdevPolicy
    moved: Callable[[Operation, float, bool], object] = lambda *_: None  # what, its seconds, whether it succeeded
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

    def held(self) -> frozenset[tuple[PodUid, str]]:
        return frozenset((row.pod, row.bdf) for row in self.journal.rows())

    def under_way(self) -> frozenset[int]:
        return frozenset(row.generation for row in self.journal.rows())

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        unheld = self._unheld(grants)
        return any(row.step.releasing or is_stopped(row.sandbox) or row.generation in unheld for row in self.journal.rows())

    def moved_by_others(self, grant: Grant) -> bool:
        return self.policy.by_cni and bool(grant.devices.vfs)

    def missing(self) -> Mapping[str, str]:
        return dict.fromkeys(self.strays, STRAY)

    # ---- what is done

    def wants(self, answer: Answer) -> bool:
        return bool(answer.attach)

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        """Move the VFs into the pod. They are in the container's annotations too, in case the ledger is lost."""
        began = time.monotonic()
        pod = PodOf(pod=PodUid(sandbox.uid), namespace=sandbox.namespace, pod_name=sandbox.name, sandbox=SandboxId(sandbox.id))
        rows = await self.attacher.attach(answer.attach, pod)
        self.moved(Operation.ATTACH, time.monotonic() - began, not isinstance(rows, Refusal))
        if isinstance(rows, Refusal):
            return rows
        return Adjustment(annotations={ATTACHMENTS: render_attachments(rows)} if rows else {})

    def has(self, sandbox: Sandbox) -> bool:
        return bool(self.journal.of_sandbox(SandboxId(sandbox.id)))

    async def undo(self, sandbox: Sandbox) -> None:
        """Give back the VFs while the sandbox's namespace exists. After the time limit the release goes on in the
        background."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                await self.attacher.detach_sandbox(SandboxId(sandbox.id))
        self.moved(Operation.RELEASE, time.monotonic() - began, not self.has(sandbox))

    async def reconcile(self, seen: Seen, under_way: frozenset[int]) -> bool:
        """Compare with lists that succeeded. An empty list counts only for pods that were seen to stop."""
        rows = self.journal.rows()
        if not seen.sandboxes:
            under_way &= {row.generation for row in rows if row.pod in seen.stopped}
        unheld = self._unheld(seen.grants)
        await self.attacher.reconcile(ready=seen.ready, live=seen.live, known=under_way, unheld=unheld)
        if self.policy.expected:
            await self._look_for_strays(seen)
        left = {row.generation for row in self.journal.rows()}
        return any(row.generation not in left for row in rows)

    def _unheld(self, grants: Collection[Grant]) -> frozenset[int]:
        """Return the generations of VFs that no container of their pod has any more: it was given others."""
        held = {(grant.pod, vf.bdf) for grant in grants for vf in grant.devices.vfs}
        return frozenset(row.generation for row in self.journal.rows() if (row.pod, row.bdf) not in held)

    async def _look_for_strays(self, seen: Seen) -> None:
        """Find VFs that another process moved. An inventory may be older than the newest row, so a suspicious VF is read again
        before it counts."""
        if seen.inventory is None:
            return
        found = find_strays(seen.inventory, self.journal.rows())
        if found - self.strays:
            again = await seen.read_again()
            if again is None:
                return
            found &= find_strays(again, self.journal.rows())
        self.strays = found
