"""A second preparer: each sandbox with a card has a scratch folder, from before its first container until its stop. The folders
are their own journal."""

from pathlib import Path

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Mount, Sandbox
from hooks.ports import Preparer, RuntimeLists


class Scratch(Preparer):
    def __init__(self, root: Path) -> None:
        self._root = root

    def wants(self, answer: Answer) -> bool:
        return answer.grant is not None and bool(answer.grant.devices.gpus)

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        folder = self._root / sandbox.id
        folder.mkdir(parents=True, exist_ok=True)
        return Adjustment(mounts=(Mount("/scratch", str(folder), readonly=False),))

    def has(self, sandbox: Sandbox) -> bool:
        return (self._root / sandbox.id).exists()

    async def undo(self, sandbox: Sandbox) -> None:
        (self._root / sandbox.id).rmdir()

    async def reconcile(self, lists: RuntimeLists, under_way: frozenset[int]) -> bool:
        for folder in self._root.glob("*"):
            if folder.name not in lists.ready | lists.live:
                folder.rmdir()
        return False
