"""Resolve symbolic links below a folder as if it was `/`: the root of a host or of a driver container, mounted elsewhere.

A link with an absolute target, as those of NixOS and of Debian's alternatives, is followed below the folder. No path leads out
of the folder: `..` at its top stays there. The answer is valid at this moment only.

Source: path_resolution(7), chroot(2).
"""

import errno
import os
from pathlib import Path
from typing import Final

_MAX_LINKS: Final = 40  # MAXSYMLINKS of the kernel (include/linux/namei.h)


def resolve_below(root: Path, path: str, *, start: Path | None = None) -> Path | None:
    """Return the real path of a file or folder; None if it is missing or a link to it is broken, circular or unreadable.

    `path` starts at `start`, by default at the root. `start` is a real path below the root.
    """
    base = os.fspath(root)
    at, links = os.fspath(start or root), 0
    parts = path.split("/")[::-1]
    if path.startswith("/"):
        at = base
    while parts:
        part = parts.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            at = at if at == base else os.path.dirname(at)  # noqa: PTH120  a Path costs more than the call
            continue
        here = f"{at.rstrip('/')}/{part}"
        try:
            target = os.readlink(here)  # noqa: PTH115  likewise
        except OSError as e:
            if e.errno != errno.EINVAL:  # EINVAL: the file is there, and is no link
                return None
            at = here
            continue
        links += 1
        if links > _MAX_LINKS:
            return None
        if target.startswith("/"):
            at = base
        parts += target.split("/")[::-1]
    return Path(at)
