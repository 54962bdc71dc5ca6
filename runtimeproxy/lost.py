"""Count the calls that the proxy ended unfinished when it stopped, in a small file beside its socket that survives restarts.

A process that ends cannot be scraped any more, so a counter in memory would never show them. The folder is on a tmpfs: a reboot
begins at 0, as with any counter. If the file cannot be read or written, only the number is lost.
"""

import contextlib
from pathlib import Path
from typing import Final

_LONGEST: Final = 20  # maximum digits of the stored number


def lost_file(listen: Path) -> Path:
    return listen.with_name(listen.name + ".lost-calls")


def read_lost(path: Path) -> int:
    try:
        text = path.read_bytes()[:_LONGEST].decode("ascii", "replace").strip()
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdecimal() else 0


def write_lost(path: Path, calls: int) -> None:
    with contextlib.suppress(OSError):
        path.write_text(f"{calls}\n")
