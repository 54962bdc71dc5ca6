"""Write the folder of a sysdump, which only its owner can read: folders have mode 0700, files and the archive 0600.

Take names and contents. Write files, and beside the folder a .tar.gz that names neither user nor machine. Refuse a folder that
already exists. Names from the cluster are made safe, so that every file stays below the folder.
"""

import contextlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from lading.errors import HostError

_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_HARMLESS: Final = re.compile(r"[^A-Za-z0-9._-]")


def safe_name(text: str) -> str:
    """Return the name as one safe part of a path."""
    return _HARMLESS.sub("_", text).lstrip(".")[:200] or "_"


class Items:
    """Write objects into a file as one JSON list, one object on each line, without holding all objects in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0
        self.restart()

    def restart(self) -> None:
        """Discard what was written so far."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(b'{"items": [')
        self.count = 0

    def add(self, one: Any) -> None:
        self._file.write(b",\n" if self.count else b"\n")
        self._file.write(msgspec.json.encode(one))
        self.count += 1

    def end(self) -> None:
        self._file.write(b"\n]}\n")


class DumpFolder:
    def __init__(self, path: Path) -> None:
        """Create the folder. Raises HostError if that fails, or if the folder exists."""
        self.path = path
        self.names: list[str] = []
        try:
            path.mkdir(_FOLDER_MODE)
            path.chmod(_FOLDER_MODE)  # the mode must not depend on the umask
        except OSError as e:
            raise HostError(f"cannot make {path}: {e.strerror}", hint="name another folder with -o") from e

    def write(self, name: str, content: bytes) -> None:
        with self._written(name) as file:
            file.write(content)

    @contextlib.contextmanager
    def items(self, name: str) -> Iterator[Items]:
        with self._written(name) as file:
            items = Items(file)
            try:
                yield items
            finally:
                items.end()

    def pack(self) -> Path:
        """Pack the folder into a .tar.gz beside it. Return the archive's path."""
        archive = self.path.with_name(self.path.name + ".tar.gz")
        try:
            with self._create(archive) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
                tar.add(self.path, arcname=self.path.name, filter=_anonymous)
        except OSError as e:
            raise HostError(f"cannot write {archive}: {e.strerror}") from e
        return archive

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[BinaryIO]:
        """Open a new file in the folder. `name`: path below the folder; missing folders are created."""
        *folders, last = (safe_name(part) for part in name.split("/"))
        path = self.path.joinpath(*folders, last)
        try:
            for depth in range(len(folders)):
                folder = self.path.joinpath(*folders[: depth + 1])
                folder.mkdir(_FOLDER_MODE, exist_ok=True)
                folder.chmod(_FOLDER_MODE)
            with self._create(path) as file:
                yield file
        except OSError as e:
            raise HostError(f"cannot write {path}: {e.strerror}") from e
        self.names.append("/".join([*folders, last]))

    def _create(self, path: Path) -> BinaryIO:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
        os.fchmod(fd, _FILE_MODE)
        return io.BufferedRandom(io.FileIO(fd, "r+"))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
