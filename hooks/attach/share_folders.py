"""The folders of share grants (lading/sharegrant.py), behind the port `Preparer`: written before a container is created, and
removed when its grant has ended.

What is in them follows from the ledger, and each is named by its pod and container: they are their own journal.
"""

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from hooks.model.answer import Answer
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Sandbox
from hooks.model.grant import Grant
from hooks.ports import Preparer, Seen
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.files import replace_file
from lading.reasons import Reason
from lading.sharegrant import FILE, folder_name, render_grant
from lading.vocabulary import SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFolders(Preparer):
    shares_dir: Path

    def wants(self, answer: Answer) -> bool:
        return answer.share is not None

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        if answer.share is None:
            return Adjustment()
        path = self.shares_dir / folder_name(answer.share.pod, answer.share.container) / FILE
        content = render_grant(answer.share)
        try:
            if not path.is_file() or path.read_bytes() != content:  # else the server keeps what it has of it
                replace_file(path, content)
            path.parent.chmod(0o755)  # processes of any user of the container go through it
        except (OSError, HostError) as e:
            return Refusal(reason=Reason.LEDGER_UNAVAILABLE, message=f"cannot give a share: cannot write {path}: {e}")
        return Adjustment()

    def has(self, sandbox: Sandbox) -> bool:
        """Return False: containers may still run. `reconcile` removes folders with their grants."""
        return False

    async def undo(self, sandbox: Sandbox) -> None: ...

    async def reconcile(self, seen: Seen, under_way: frozenset[int]) -> bool:
        for folder in self._unheld(seen.grants):
            shutil.rmtree(folder, ignore_errors=True)
        return False

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        return bool(self._unheld(grants))

    def _unheld(self, grants: Collection[Grant]) -> list[Path]:
        held = {
            folder_name(grant.pod, "" if gpu.pod_wide else grant.container)
            for grant in grants
            for gpu in grant.devices.gpus
            if gpu.isolation is IsolationName.TOKENS
        }
        folders = (folder for folder in self.shares_dir.glob("*") if folder.is_dir() and not folder.is_symlink())
        return [folder for folder in folders if folder.name not in held]
