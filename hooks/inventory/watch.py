"""Keep the newest inventory in memory, so that the hot path reads a value.

The poll is authoritative: sysfs on a real host sends no inotify events when a VF or a driver comes or goes. The watches on
folders (/dev, where nodes are made) only make changes visible sooner; without a watch, a change is only seen later.

Reading happens in a thread of its own, one at a time: no driver is asked twice at a time, and a card that hangs in the driver
delays neither the loop nor the end of the process. A failed read keeps the last good inventory; `age_s` is its age in seconds.
"""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import ObservedWatch

from hooks.model.inventory import Inventory
from hooks.ports import Vendor
from lading.errors import HostError
from lading.threads import in_thread

# Nodes come in bursts (a PF makes its VFs one by one): read once they are there.
SETTLE_S: Final = 0.2

# Creation and removal only: without the filter every write to /dev/null would wake us.
_EVENTS: Final[list[type[FileSystemEvent]]] = [
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    DirCreatedEvent,
    DirDeletedEvent,
]

# Prefixes of nodes in /dev that an inventory contains, besides those of vendors. Others (loop devices, volumes) are ignored.
_NAMES: Final = ("infiniband", "uverbs", "umad", "issm", "rdma_cm")
_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:")


def watched_folders(host_root: Path, vendors: Sequence[Vendor]) -> tuple[Path, ...]:
    """Return the folders where inotify can report a change; the last is for simulated nodes, because a real sysfs sends no
    events."""
    folders = ("infiniband", *(name for vendor in vendors for name in vendor.device_folders))
    return tuple(host_root / name for name in ("dev", *(f"dev/{name}" for name in folders), "sys/bus/pci/devices"))


class InventoryWatch:
    """Keep an inventory current, and call functions on the event loop. `on_change(old, new)`: an inventory differs from the
    previous inventory, which is empty at first. `on_read(began, inventory)`: a read succeeded, which began at this
    time.monotonic(). `on_failure(error)`: a read failed; this function must not raise."""

    def __init__(
        self,
        read: Callable[[], Inventory],
        *,
        folders: Sequence[Path] = (),
        names: Sequence[str] = (),
        interval_s: float = 10.0,
        on_change: Callable[[Inventory, Inventory], None],
        on_failure: Callable[[Exception], None],
        on_read: Callable[[float, Inventory], object] = lambda *_: None,
    ) -> None:
        self._read = read
        self._folders = folders
        self._names = (*_NAMES, *names)
        self._interval_s = interval_s
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_read = on_read
        self._current: Inventory | None = None
        self._read_at = 0.0
        self._read_due = asyncio.Event()
        self._asked: asyncio.Future[Inventory | Exception] | None = None  # result for all callers that wait for the next read
        self._polling: asyncio.Task[None] | None = None
        self._observer = Observer()
        self._watches: dict[Path, ObservedWatch] = {}

    @property
    def current(self) -> Inventory | None:
        """Return the last good inventory; None before the first."""
        return self._current

    @property
    def age_s(self) -> float:
        """Return the seconds since the last good read became current; infinite before the first."""
        return time.monotonic() - self._read_at if self._current is not None else float("inf")

    async def start(self, *, first_read_s: float = 10.0) -> None:
        """Start, once. Return after the first read, even if it failed, or after `first_read_s` seconds if the driver hangs."""
        self._observer.start()
        self._watch_folders()
        self._polling = asyncio.create_task(self._poll(), name="inventory")
        with contextlib.suppress(TimeoutError, HostError):
            async with asyncio.timeout(first_read_s):
                await self.refresh_now()

    async def close(self) -> None:
        """Stop the background work. Do not wait for a read that hangs; callers that wait for one are cancelled."""
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        if self._asked is not None:
            self._asked.cancel()
        self._observer.stop()
        self._observer.join()

    async def refresh_now(self) -> Inventory:
        """Return the inventory of a read that began after this call; callers that wait together share one. Raise HostError."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        self._read_due.set()
        result = await asyncio.shield(self._asked)
        if isinstance(result, Exception):
            raise HostError(f"cannot refresh the inventory: {result}") from result
        return result

    def request_scan(self) -> None:
        """Read again soon: the caller changed something that an inventory shows."""
        self._read_due.set()

    async def _poll(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._read_due.wait()
                if self._asked is None:
                    await asyncio.sleep(SETTLE_S)
            self._read_due.clear()
            asked, self._asked = self._asked, None
            try:
                result = await self._refresh()
            except asyncio.CancelledError:
                if asked is not None:
                    asked.cancel()
                raise
            if asked is not None:
                asked.set_result(result)
            self._watch_folders()

    async def _refresh(self) -> Inventory | Exception:
        try:
            began = time.monotonic()
            new = await in_thread(self._read)
            old, self._current, self._read_at = self._current or Inventory(), new, time.monotonic()
            self._on_read(began, new)
            if new != old:
                self._on_change(old, new)
        except Exception as e:  # noqa: BLE001 - whatever a driver or a file system comes up with, the poll goes on
            self._on_failure(e)
            return e
        return new

    def _watch_folders(self) -> None:
        """Watch the folders. Folders come and go with kernel modules, and their watches with them."""
        for folder in self._folders:
            there = folder.is_dir()
            if there and folder not in self._watches:
                with contextlib.suppress(OSError):  # gone again, or no inotify instance left: the poll still sees changes
                    self._watches[folder] = self._observer.schedule(
                        _ReadRequester(self._read_due, self._names), str(folder), event_filter=_EVENTS
                    )
            elif not there and folder in self._watches:
                self._observer.unschedule(self._watches.pop(folder))


class _ReadRequester(FileSystemEventHandler):
    def __init__(self, read_due: asyncio.Event, names: tuple[str, ...]) -> None:
        self._read_due = read_due
        self._names = names
        self._loop = asyncio.get_running_loop()

    def on_any_event(self, event: FileSystemEvent) -> None:
        names = [Path(os.fsdecode(path)).name for path in (event.src_path, event.dest_path)]
        if not any(name.startswith(self._names) or _FUNCTION.match(name) for name in names):
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: an event between close() and the observer's end
            self._loop.call_soon_threadsafe(self._read_due.set)
