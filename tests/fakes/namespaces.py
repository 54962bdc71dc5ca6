"""Make network namespaces for a test. A descriptor of this process keeps a namespace, which ends when the descriptor is closed.

No mount and no other process keeps a namespace, so a killed test leaves none behind. Its path is /proc/<pid>/fd/<descriptor>.
"""

import ctypes
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from hooks.model.attachment import NetnsId

_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def in_fresh_thread(do: Callable[[], T]) -> T:
    """Call `do` as the daemon calls the kernel. Raise what `do` raises."""
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(do())
        except BaseException as e:  # noqa: BLE001 - goes to the caller
            failure.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def id_of_thread() -> NetnsId:
    result = Path("/proc/thread-self/ns/net").stat()
    return NetnsId(device=result.st_dev, inode=result.st_ino)


class Netns:
    def __init__(self) -> None:
        self._fd = in_fresh_thread(_make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def id(self) -> NetnsId:
        result = os.fstat(self._fd)
        return NetnsId(device=result.st_dev, inode=result.st_ino)

    def close(self) -> None:
        """Close the descriptor, which ends the namespace. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def ip(self, text: str) -> None:
        self._run("ip", text.split())

    def tc(self, text: str) -> str:
        return self._run("tc", text.split())

    def show(self, text: str) -> Any:
        return json.loads(self._run("ip", ["-json", *text.split()]) or "[]")

    def links(self) -> dict[str, Any]:
        """Return the devices by name, without the loopback device."""
        return {link["ifname"]: link for link in self.show("link show") if link["ifname"] != "lo"}

    def run(self, do: Callable[[], T]) -> T:
        """Call `do` in a new thread that is in this namespace, as if it were the host's. Return the result."""

        def work() -> T:
            _call("setns", self._fd, _CLONE_NEWNET)
            return do()

        return in_fresh_thread(work)

    def _run(self, program: str, args: list[str]) -> str:
        command = ["nsenter", f"--net={self.path}", program, *args]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{' '.join(args)}: {done.stderr}"
        return done.stdout


def _make() -> int:
    _call("unshare", _CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _call(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
