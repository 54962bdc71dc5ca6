"""Keep a folder for each container with a share (port `Preparer`): fill it before the container is created.

On a host with SELinux, the folder has the label of files for containers before anything is in it, because the share server's
socket gets the folder's label. A folder is removed when its grant has ended. The isolation decides the content. The content
follows from the ledger, and the folder's name from its pod and container, so that no journal is needed.
"""

import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from hooks.host.open_folders import make_folder, remove_folder
from hooks.isolation.hami_core import LIBRARY, preloads_path
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from hooks.ports import Preparer, RuntimeLists
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.files import replace_file
from lading.reasons import Reason
from lading.selinux import Label
from lading.sharegrant import FILE, SOCKET, folder_name, render_grant
from lading.vocabulary import SandboxId


@dataclass(slots=True, kw_only=True)
class ShareFolders(Preparer):
    root: Path
    isolations: frozenset[IsolationName]
    fill: Callable[[Path, Answer], None]  # puts the container's files into the folder; raises OSError, HostError
    renewed: bool = False  # True: each created container gets an empty folder
    remove: Callable[[Path], Awaitable[None]] = remove_folder  # raises HostError
    _stuck: set[str] = field(default_factory=set)  # names of folders that could not be removed; each comparison retries

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

    async def reconcile(self, lists: RuntimeLists, under_way: frozenset[int]) -> bool:
        self._stuck.clear()
        for folder in self._unheld(lists.grants):
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
            if gpu.shared and gpu.isolation in self.isolations
        }

    def _unheld(self, grants: Collection[Grant]) -> list[Path]:
        held = self._names(grants)
        folders = (folder for folder in self.root.glob("*") if folder.is_dir() and not folder.is_symlink())
        return [folder for folder in folders if folder.name not in held]


def write_grant(folder: Path, answer: Answer, *, label: Label) -> None:
    """Write the container's grant file for the share server, whose socket is beside it. Write none if the share server keeps
    nothing of the container, or if the container's MIG instances are still to be made: the node then decides about it again."""
    if answer.share is None:
        return
    path, content = folder / FILE, render_grant(answer.share)
    with contextlib.suppress(OSError):  # replace_file makes the folder too, and reports why that fails
        folder.mkdir(mode=0o755, parents=True)
    for one in (folder, path, folder / SOCKET):
        label(one)
    if not path.is_file() or path.read_bytes() != content:  # an equal file stays: the server keeps its state of the grant
        replace_file(path, content)
    folder.chmod(0o755)  # the container's processes may run as any user


def make_hami_folder(folder: Path, _: Answer, *, label: Label) -> None:
    """Make the folder, writable for any user of the container, and the list of preloads beside it."""
    make_folder(folder.parent, 0o700)
    preloads = Path(preloads_path(str(folder.parent)))
    if not preloads.is_file():
        replace_file(preloads, f"{LIBRARY}\n".encode())
    make_folder(folder, 0o777)
    for one in (preloads, folder):
        label(one)
