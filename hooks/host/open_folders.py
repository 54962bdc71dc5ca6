"""Make folders of the node to which containers write as any user, and remove them with all their files.

A container can leave millions of files, in folders that lading-hooks cannot open without CAP_DAC_OVERRIDE. So systemd removes
more than a few files, outside the sandbox and the event loop of lading-hooks. The folders are on a tmpfs such as /dev/shm, in
which every user of the node can make folders: a folder of another user is refused.
"""

import contextlib
import os
from itertools import islice
from pathlib import Path
from typing import Final

from hooks.host.commands import bare_env, run_command
from lading.errors import HostError

REMOVE_S: Final = 10.0
_FEW: Final = 16  # files that are removed here


def make_folder(folder: Path, mode: int) -> None:
    """Make the folder with this mode, unless it exists. Raise HostError if another user made the folder; raise OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise HostError(f"cannot use {folder}: another user made it")
    folder.chmod(mode)  # independent of the umask


async def remove_folder(folder: Path, *, systemd_run: str = "systemd-run") -> None:
    """Remove the folder if it exists. Raise HostError."""
    if _remove_few(folder):
        return
    as_root = [systemd_run, "--quiet", "--collect", "--property=Type=oneshot", "--"]
    await run_command([*as_root, "/bin/rm", "-rf", "--one-file-system", str(folder)], env=bare_env(), wait_s=REMOVE_S)


def _remove_few(folder: Path) -> bool:
    """Remove a folder with a few files. Return whether the folder is removed."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            for entry in islice(entries, _FEW):
                Path(entry.path).unlink()  # OSError for a folder
        folder.rmdir()
    return not folder.exists()
