"""Install the launched guard in the runtime's folder of plugins, and remove it.

An executable in that folder without a plugin's name (such as `99-ladingguard`) keeps containerd's CRI from starting. So a new
file is written into a subfolder, which containerd does not scan, and then renamed into place.
Source: containerd/nri, pkg/adaptation (discoverPlugins, ParsePluginName).
"""

import contextlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooks.frontends.nri.guard.program import Program
from lading.errors import HostError
from lading.files import replace_file

NAME: Final = "ladingguard"  # name of the built file, and of the plugin
INDEX: Final = "99"
PROGRAM: Final = f"{INDEX}-{NAME}"
IGNORED: Final = "lading-ignored"  # name of the process while the runtime ignores the guard; 15 characters at most (prctl(2))
VERSION_MARK: Final = "lading-launched-guard "
GUARD: Final = Program(what="guard", mark=VERSION_MARK)
_PLUGIN: Final = re.compile(r"[0-9]{2}-.*", re.DOTALL)


def find_strays(folder: Path) -> tuple[str, ...]:
    """Return the executables in a folder of plugins whose names keep containerd from starting. Raise HostError."""
    try:
        return tuple(sorted(one.name for one in folder.iterdir() if _is_executable(one) and not _PLUGIN.fullmatch(one.name)))
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise HostError(f"cannot read {folder}: {e.strerror}") from e


def _is_executable(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:  # the file was deleted meanwhile; containerd ignores it too
        return False
    return not stat.S_ISDIR(mode) and bool(mode & 0o111)


def install(program: Path, folder: Path) -> Path:
    """Put the program into the runtime's folder of plugins, which is created if needed, and return its path. Raise HostError if
    a file of others has its name, or if the folder has a file that keeps containerd from starting."""
    if strays := find_strays(folder):
        raise HostError(
            f"cannot install the guard: {folder / strays[0]} is executable and not named as a plugin (two digits, a dash and a "
            "name), and with such a file containerd does not start",
            hint=f"move it out of {folder}, or take its executable bits away",
        )
    GUARD.check_ours(folder / PROGRAM)
    content = GUARD.read(program)
    with _aside(folder) as aside:
        replace_file(aside / PROGRAM, content, mode=0o755)
        try:
            (aside / PROGRAM).replace(folder / PROGRAM)
        except OSError as e:
            raise HostError(f"cannot install {folder / PROGRAM}: {e.strerror}") from e
    return folder / PROGRAM


def remove(folder: Path) -> bool:
    """Remove the guard. Return whether it was there. Raise HostError."""
    return GUARD.remove(folder / PROGRAM)


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Make a temporary folder inside the plugins' folder, so that renames stay within one file system. containerd does not scan
    subfolders."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        aside = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=folder))
    except OSError as e:
        raise HostError(f"cannot write into {folder}: {e.strerror}") from e
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
