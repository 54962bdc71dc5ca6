"""Exchange two paths as fast as the kernel can, while the tested code uses one of them.

renameat2(2) with RENAME_EXCHANGE is atomic: at every moment each path is one of the two files, so that no path is ever missing.
"""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_SWITCH_S: Final = 1e-5  # Python's own 5 ms would let either side finish what it does

_libc = ctypes.CDLL(None, use_errno=True)


class Swaps:
    count = 0


def exchange(one: Path, other: Path) -> None:
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[Swaps]:
    """Exchange the paths in a thread until the end of the block, and check that at least one exchange happened."""
    swaps, over = Swaps(), threading.Event()

    steps = cycle((1, 2, 1, 3, 2))  # not in step with the other thread, which runs whenever this one is in the kernel

    def swap() -> None:
        while not over.is_set():
            for _ in range(next(steps)):
                exchange(one, other)
                swaps.count += 1

    before = sys.getswitchinterval()
    thread = threading.Thread(target=swap)
    sys.setswitchinterval(_SWITCH_S)
    thread.start()
    try:
        yield swaps
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
    assert swaps.count
