"""Simulate an attacher: the journal alone says which VFs are in a sandbox, and a test decides how long a move takes.

As for the real attacher, a VF has a row from before its move until it is back. A VF in `stuck` keeps its row and its failure. A
move continues if its caller stops waiting.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hooks.ledger.journal import Journal
from hooks.model.assignment import Refusal
from hooks.model.attachment import Attachment, PodOf, Step, WantedVf
from lading.reasons import Reason
from lading.vocabulary import PciAddress, SandboxId
from tests.fakes import holders


class FakeAttacher:
    def __init__(self, journal: Journal) -> None:
        self.refuses = False
        self.stuck = False
        self.asked: list[tuple[WantedVf, ...]] = []
        self.reconciled: list[tuple[frozenset[SandboxId], frozenset[SandboxId], frozenset[int]]] = []
        self.known: frozenset[int] = frozenset()  # in the last of them
        self._journal = journal
        self._free = asyncio.Event()
        self._free.set()

    def pause(self) -> None:
        self._free.clear()

    def go_on(self) -> None:
        self._free.set()

    async def attach(self, wanted: Sequence[WantedVf], pod: PodOf) -> tuple[Attachment, ...] | Refusal:
        self.asked.append(tuple(wanted))
        if self.refuses:
            return Refusal(reason=Reason.ATTACH_FAILED, message="cannot attach VF")
        rows = [self._journal.find(one.vf.bdf) or self._begin(one, pod) for one in wanted if one.netdev]
        await self._free.wait()
        return tuple(self._journal.reach(row.bdf, row.generation, Step.ATTACHED) for row in rows)

    def _begin(self, one: WantedVf, pod: PodOf) -> Attachment:
        like = holders.row(pod=pod.pod, sandbox=pod.sandbox, step=Step.RECORDED)
        name = one.ifname or f"rdma{len(self._journal.of_sandbox(pod.sandbox))}"
        return self._journal.begin(replace(like, vf=one.vf, ifname=name, settings=one.settings))

    async def detach_sandbox(self, sandbox: SandboxId) -> None:
        await asyncio.shield(asyncio.gather(*(self._release(row.bdf) for row in self._journal.of_sandbox(sandbox))))

    async def reconcile(
        self,
        *,
        ready: frozenset[SandboxId],
        live: frozenset[SandboxId],
        known: frozenset[int],
        unheld: frozenset[int],
    ) -> None:
        self.known = known
        self.reconciled.append((ready, live, unheld))
        for row in self._journal.rows():
            lost = row.sandbox not in ready | live and row.generation in known
            if row.step.releasing or lost or row.generation in unheld:
                await self._release(row.bdf)

    async def _release(self, vf: PciAddress) -> None:
        row = self._journal.find(vf)
        assert row is not None
        self._journal.reach(vf, row.generation, Step.RESTORING, failure="it hangs" if self.stuck else "")
        await self._free.wait()
        if not self.stuck:
            self._journal.forget(vf, row.generation)
