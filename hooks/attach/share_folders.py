"""The folders of containers with shares, behind the port `Preparer`: filled before a container is created, and removed when
its grant has ended. An isolation that needs one says what is in it.

What is in them follows from the ledger, and each is named by its pod and container: they are their own journal.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from hooks.host.open_folders import make_folder, remove_folder
from hooks.isolation.hami_core import LIBRARY, preloads_path
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


@dataclass(slots=True, kw_only=True)
class ShareFolders(Preparer):
    root: Path
    isolation: IsolationName
    fill: Callable[[Path, Answer], None]  # makes the folder what this container needs; OSError, HostError
    renewed: bool = False  # each container that is created gets an empty folder
    remove: Callable[[Path], Awaitable[None]] = remove_folder  # HostError
    _stuck: set[str] = field(default_factory=set)  # folders that could not be removed; each comparison tries again

    def wants(self, answer: Answer) -> bool:
        return answer.grant is not None and bool(self._names([answer.grant]))

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        for folder in (self.root / name for name in self._names([answer.grant] if answer.grant else [])):
            try:
                if self.renewed:
                    await self.remove(folder)
                self.fill(folder, answer)
            except (OSError, HostError) as e:
                message = f"cannot give a share: cannot fill {folder}: {e}"
                return Refusal(reason=Reason.LEDGER_UNAVAILABLE, message=message)
        return Adjustment()

    async def reconcile(self, seen: Seen, under_way: frozenset[int]) -> bool:
        self._stuck.clear()
        for folder in self._unheld(seen.grants):
            try:
                await self.remove(folder)
            except HostError:
                self._stuck.add(folder.name)
        return False

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        return any(folder.name not in self._stuck for folder in self._unheld(grants))

    def _names(self, grants: Collection[Grant]) -> set[str]:
        return {
            folder_name(grant.pod, "" if gpu.pod_wide else grant.container)
            for grant in grants
            for gpu in grant.devices.gpus
            if gpu.shared and gpu.isolation is self.isolation
        }

    def _unheld(self, grants: Collection[Grant]) -> list[Path]:
        held = self._names(grants)
        folders = (folder for folder in self.root.glob("*") if folder.is_dir() and not folder.is_symlink())
        return [folder for folder in folders if folder.name not in held]


def write_grant(folder: Path, answer: Answer) -> None:
    """Write the grant for the share server, whose socket is beside it. Of a container that is decided about again, because
    MIG instances have to be made for it, there is none yet."""
    if answer.share is None:
        return
    path, content = folder / FILE, render_grant(answer.share)
    if not path.is_file() or path.read_bytes() != content:  # else the server keeps what it has of it
        replace_file(path, content)
    folder.chmod(0o755)  # processes of any user of the container go through it


def make_hami_folder(folder: Path, _: Answer) -> None:
    """Make the folder, for the container to write to as any user, and the list of preloads beside it."""
    make_folder(folder.parent, 0o700)
    preloads = Path(preloads_path(str(folder.parent)))
    if not preloads.is_file():
        replace_file(preloads, f"{LIBRARY}\n".encode())
    make_folder(folder, 0o777)
