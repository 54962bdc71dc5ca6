"""Read the folder of registrations ten times a second, and publish them in order of file name whenever they change.

The last valid version of an invalid file stays in force; a removed file is dropped at once. Files and folders that users other
than root can write are ignored, with an error in the log. The folder is polled, not watched. inotify follows inodes, and every
part of the path can be replaced (a folder that is removed and created again, a parent, the target of a link, a mount).
"""

import asyncio
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lading.errors import ConfigError
from lading.log import Event, Log
from runtimeproxy.chain.registrations import Registration, clash, parse_registration

POLL_S: Final = 0.1
MAX_SHARE: Final = 0.05  # maximum part of the loop's time for reading, with any number of files
MAX_FILE_BYTES: Final = 64 << 10

Publish = Callable[[tuple[Registration, ...]], None]


class HooksDir:
    def __init__(self, folder: Path, publish: Publish, log: Log, *, owner_uid: int | None = None) -> None:
        """Create a reader. `owner_uid`: the user whose files are trusted besides root's; this process's user by default."""
        self._folder = folder.absolute()
        self._publish = publish
        self._log = log
        self._trusted = {0, os.geteuid() if owner_uid is None else owner_uid}
        self._good: dict[str, Registration] = {}
        self._reported: dict[str, str] = {}  # the last problem of each file, so that it is logged once
        self._published: tuple[Registration, ...] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Publish now, and again whenever the folder changes. Must run on the event loop's thread."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self.read()
        finally:
            self._timer = loop.call_later(max(POLL_S, (loop.time() - began) / MAX_SHARE), self.start)

    def close(self) -> None:
        """Stop publishing. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def read(self) -> None:
        """Read the folder now, and publish if the registrations differ from those published before."""
        names = self._names()
        if names is not None:
            self._good = self._accept(names)
        registrations = tuple(self._good.values())
        if registrations != self._published:
            self._published = registrations
            self._publish(registrations)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the current problems of the folder and of files in it, each with its name."""
        return tuple(self._reported.values())

    @property
    def complaints(self) -> Mapping[str, str]:
        """Return the problems by file name; the name is empty for a problem of the folder."""
        return dict(self._reported)

    def _names(self) -> list[str] | None:
        """Return the names of registration files, sorted. Return None if the folder cannot be trusted or read: the current
        registrations then stay."""
        try:
            folder = self._folder.stat()
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as e:
            self._complain("", f"cannot read: {e.strerror}")
            return None
        if folder.st_uid not in self._trusted or folder.st_mode & 0o022:
            self._complain(
                "", f"cannot trust: others than root can write it (chown root {self._folder}; chmod go-w {self._folder})"
            )
            return None
        self._reported.pop("", None)
        return [name for name in names if name.endswith(".json") and not name.startswith((".", "#"))]

    def _accept(self, names: list[str]) -> dict[str, Registration]:
        accepted: dict[str, Registration] = {}
        for name in names:
            before = self._good.get(name)
            try:
                registration = parse_registration(self._read_trusted(name), name)
                if twice := clash(registration, accepted.values()):
                    raise twice
            except ConfigError as e:
                kept = before is not None and clash(before, accepted.values()) is None
                if before is not None and kept:
                    accepted[name] = before
                self._complain(name, f"{e}; {'its last good version stays in force' if kept else 'ignored'}")
                continue
            accepted[name] = registration
            self._reported.pop(name, None)
            if registration != before:
                self._log.info(Event.HOOK_REGISTERED, hook=name, endpoint=registration.endpoint)
        for name in self._good.keys() - accepted.keys():
            self._log.info(Event.HOOK_REMOVED, hook=name)
        for name in self._reported.keys() - set(names) - {""}:
            del self._reported[name]
        return accepted

    def _read_trusted(self, name: str) -> bytes:
        """Return a file's content; owner and mode are those of the open descriptor. Raises ConfigError if untrusted."""
        try:
            fd = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block the proxy
            with open(fd, "rb") as file:
                status = os.fstat(fd)
                content = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
        except OSError as e:
            raise ConfigError(f"{name}: cannot read: {e.strerror}") from e
        if content is None:
            raise ConfigError(f"{name}: cannot read: not a regular file")
        if status.st_uid not in self._trusted or status.st_mode & 0o022:
            raise ConfigError(f"{name}: cannot trust: others than root can write it", hint="chown root FILE; chmod go-w FILE")
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{name}: cannot read: larger than {MAX_FILE_BYTES} bytes")
        return content

    def _complain(self, name: str, message: str) -> None:
        if self._reported.get(name) != message:
            self._reported[name] = message
            self._log.error(Event.HOOK_INVALID, f"{self._folder}{'/' if name else ': '}{message}", hook=name)
