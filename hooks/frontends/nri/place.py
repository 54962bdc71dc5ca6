"""The place of Lading's plugin at a runtime, which only one process of the node may take.

A runtime asks all plugins that connect. Two of Lading would both give the container `lading.dev/grant`, and the runtime then
refuses every container of the node, also of pods without devices. The folder of the runtime's socket is what both processes
have in common, whatever their state directories and containers are: its lock is the place. The kernel frees the lock when the
process ends.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from lading.errors import HostError


@dataclass(slots=True)
class PluginPlace:
    """The place at one runtime. `with` begins and ends it; `take` may be called again and again."""

    socket: Path
    needed: bool = True  # false on a node with another front end
    _fd: int = -1

    def __enter__(self) -> "PluginPlace":
        """Take the place, or leave it if the runtime's folder does not exist yet. Raise HostError if another process has it."""
        if problem := self.take():
            raise HostError(problem, hint="stop one of them; a node has one lading-hooks, whatever its state_dir is")
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def take(self) -> str:
        """Take the place, unless this process has it. Return why it is not to be had; empty also where no runtime is."""
        if self._fd >= 0 or not self.needed:
            return ""
        try:
            fd = os.open(self.socket.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        except OSError as e:
            return f"cannot open {self.socket.parent}: {e.strerror}"
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"cannot be the plugin of {self.socket}: another lading-hooks is{_name_owner(fd)}"
            os.close(fd)
            return problem
        self._fd = fd
        return ""


def _name_owner(fd: int) -> str:
    """Return which process has the lock, where the kernel shows it.

    A line of /proc/locks: `1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF`.
    """
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return f", process {words[4]}"
    return ""
