"""Move VFs into pods before a container is created, and give them back when the pod ends (port `Preparer`).

`attacher` moves the VFs; this module decides when. It shows the rest of the node an inventory with every VF on the host, and
the VFs that are not free. It also reports journal rows that no container needs any more. An answer about a container waits for
its VFs. A stop waits for a bounded time, and never fails. A node that moves no VFs has no such calls and no waiting.

Tests: tests/unit/hooks/node/test_attaching.py
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
from hooks.model.assignment import Refusal
from hooks.model.attachment import STRAY, Attachment, NetdevPolicy, PodOf, WantedVf
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant, Holding
from hooks.model.inventory import Inventory
from hooks.ports import Preparer, RuntimeLists
from lading.vocabulary import ATTACHMENTS, PciAddress, PodUid, SandboxId

# A stop waits at most this many seconds for its VFs. The VFs that are not back by then are in the journal, and are tried again.
STOP_WAIT_S: Final = 5.0


class VfMover(Protocol):
    """Represent the part of `hooks.attach.attacher` that this module uses."""

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
    moved: Callable[[Operation, float, bool], object] = lambda *_: None  # gets the operation, its seconds, and its success
    strays: frozenset[PciAddress] = frozenset()  # VFs whose network device another process moved
    _shown: tuple[tuple[Inventory, tuple[Attachment, ...], frozenset[PciAddress]], Inventory] | None = None

    # ---- the node's view

    def shown(self, inventory: Inventory) -> Inventory:
        """Return the inventory with attached VFs shown as on the host. It is cached, because each container's decision uses it,
        even without a VF."""
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

    # ---- actions

    def wants(self, answer: Answer) -> bool:
        return bool(answer.attach)

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        """Move the VFs into the pod. The container's annotations record the attachments too, in case the ledger is lost."""
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

    async def reconcile(self, lists: RuntimeLists, under_way: frozenset[int]) -> bool:
        """Release VFs by lists that succeeded; return whether an attachment has ended. Lists without a sandbox count only for
        pods that were observed to stop."""
        rows = self.journal.rows()
        if not lists.sandboxes:
            under_way &= {row.generation for row in rows if row.pod in lists.stopped}
        unheld = self._unheld(lists.grants)
        await self.attacher.reconcile(ready=lists.ready, live=lists.live, known=under_way, unheld=unheld)
        if self.policy.expected:
            await self._find_unmanaged(lists)
        left = {row.generation for row in self.journal.rows()}
        return any(row.generation not in left for row in rows)

    def _unheld(self, grants: Collection[Grant]) -> frozenset[int]:
        """Return the generations of VFs that no grant of their pod has any more, because the container got other VFs."""
        held = {(grant.pod, vf.bdf) for grant in grants for vf in grant.devices.vfs}
        return frozenset(row.generation for row in self.journal.rows() if (row.pod, row.bdf) not in held)

    async def _find_unmanaged(self, lists: RuntimeLists) -> None:
        """Find VFs that another process moved. An inventory may be older than the newest row, so a suspicious VF is read again
        before it counts."""
        if lists.inventory is None:
            return
        strays = find_strays(lists.inventory, self.journal.rows())
        if strays - self.strays:
            again = await lists.read_again()
            if again is None:
                return
            strays &= find_strays(again, self.journal.rows())
        self.strays = strays
