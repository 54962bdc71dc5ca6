"""Lock the place of Lading's plugin at a runtime, so that only one process of the node is this plugin.

A runtime calls all plugins that connect. Two Lading plugins would both add `lading.dev/grant` to a container; the runtime then
refuses every container of the node, even of pods without devices. The lock is on the folder of the runtime's socket, which two
processes share whatever their state directories and containers are. The kernel frees the lock when the process ends.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from lading.errors import HostError


@dataclass(slots=True)
class PluginPlace:
    """Hold the lock at one runtime for the duration of a `with` block; `take` may be called any number of times."""

    socket: Path
    needed: bool = True  # false on a node with another front end
    _fd: int = -1

    def __enter__(self) -> "PluginPlace":
        """Take the lock, unless the runtime's folder does not exist yet. Raise HostError if another process has the lock."""
        if problem := self.take():
            raise HostError(problem, hint="stop one of them; a node has one lading-hooks, whatever its state_dir is")
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def take(self) -> str:
        """Take the lock if this process lacks it. Return an error if another process has it; empty also without a runtime."""
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
    """Return ", process <pid>" for the process that has the lock; empty if the kernel does not list it.

    A line of /proc/locks: `1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF`.
    """
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            text = line.split()
            if len(text) > 5 and text[1] == "FLOCK" and text[5].rpartition(":")[2] == inode:
                return f", process {text[4]}"
    return ""
