"""Read critical Xids from the kernel log: such a card is broken until its driver is reloaded or clears the error.

NVML reports Xids to an open session only, and an open session blocks an upgrade of the driver. The kernel log needs no session.
Only records of the kernel itself count, because root's processes can write to the log too.

An Xid is critical if NVIDIA's catalog requires a reset of the card or a reboot. Not critical are 109 (context switch timeout)
and Xids that only end an application (13, 31, 43, 45, 68, 94, …). A program can cause these, and could make cards unhealthy.
From R565 on, the driver also reports a card's needed recovery (154), and later that the card needs none.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (immediate action); k8s-device-plugin (ignored Xids); Linux,
Documentation/ABI/testing/dev-kmsg.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

_CRITICAL: Final = frozenset({46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158})
_RECOVERY: Final = 154
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\): (\d{1,4}),? ?(.*)"
)
_ACTION: Final = re.compile(r"recovery action changed from .* to 0x([0-9a-fA-F]+) \((.{1,40})\)")
_LOADED: Final = re.compile(r"NVRM: loading NVIDIA UNIX")
_KERNEL: Final = 8  # priorities below 8 are of facility 0, the kernel
_RECORD: Final = 8192  # bytes of the kernel's longest record
_SHOWN: Final = 120  # maximum characters of a reason


class Xids:
    """Hold the reason for each broken card, by the log records so far. Keys are PCI addresses without the function."""

    def __init__(self) -> None:
        self.broken: dict[str, str] = {}

    def add(self, record: bytes) -> None:
        """Take one record: `priority,sequence,time,flags;text`, and continuation lines."""
        prefix, _, text = record.decode("utf-8", "replace").partition(";")
        priority = prefix.partition(",")[0]
        if not priority.isdecimal() or int(priority) >= _KERNEL:
            return
        line = text.partition("\n")[0]
        if _LOADED.match(line):
            self.broken.clear()
        elif match := _XID.match(line):
            self._note(match[1].lower(), int(match[2]), match[3])

    def _note(self, card: str, xid: int, text: str) -> None:
        if xid == _RECOVERY and (action := _ACTION.search(text)):
            if int(action[1], 16) == 0:
                self.broken.pop(card, None)
            else:
                self.broken.setdefault(card, f"Xid {xid}: {action[2]}")
        elif xid in _CRITICAL:
            self.broken.setdefault(card, f"Xid {xid}: {text}"[:_SHOWN])

    def of(self, bdf: str) -> str:
        return self.broken.get(bdf.partition(".")[0], "")


class KernelLog:
    """Read the kernel log on from the end of the last call. Not reentrant. The first call may read megabytes: use a thread."""

    def __init__(self, host_root: Path) -> None:
        self._path = host_root / "dev/kmsg"
        self._fd = -1
        self._xids = Xids()

    def read(self) -> Xids:
        """Return the Xids in the log so far; none if there is no log. Raise OSError."""
        if self._fd < 0:
            with contextlib.suppress(FileNotFoundError):
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._read_on()
        return self._xids

    def _read_on(self) -> None:
        while True:
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # unread records were overwritten; continue with the oldest record
            if not record:
                return
            self._xids.add(record)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
