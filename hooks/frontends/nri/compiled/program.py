"""A static program of Lading as a file: where it is built, and of which version a file is. No file of others is touched."""

import platform
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError

_LARGEST: Final = 16 << 20  # of a file that is looked into for a version
_VERSION: Final = rb"([0-9A-Za-z.+-]{1,40})\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str  # of the file that is built
    what: str  # in messages
    mark: str  # stands before the version in the program
    package: Path  # that builds it

    def built(self) -> Path:
        """Return where the program of this machine's architecture is, if it was built."""
        return self.package / "built" / platform.machine() / self.name

    def find_version(self, path: Path) -> str:
        """Return the version of a file; empty if it is not this program, or not there. Raise HostError if it cannot be read."""
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                return ""
            found = re.search(re.escape(self.mark.encode()) + _VERSION, path.read_bytes())
        except FileNotFoundError:
            return ""
        except OSError as e:
            raise HostError(f"cannot read {path}: {e.strerror}") from e
        return found[1].decode() if found else ""

    def read(self, path: Path) -> bytes:
        """Return the content of the program at a path. Raise HostError if it is none."""
        if not self.find_version(path):
            hint = "make launched-guard builds it, for the wheel"
            raise HostError(f"cannot install the {self.what}: {path} is none", hint=hint)
        return path.read_bytes()

    def check_ours(self, path: Path) -> None:
        """Raise HostError if another file is there."""
        if path.is_symlink() or (path.exists() and not self.find_version(path)):
            hint = f"look at it, and move it out of {path.parent}"
            raise HostError(f"{path} is no {self.what} of Lading: it stays as it is", hint=hint)

    def remove(self, path: Path) -> bool:
        """Take the file away. Return whether it was there. Raise HostError, also if another file is there."""
        self.check_ours(path)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as e:
            raise HostError(f"cannot remove {path}: {e.strerror}") from e
        return True
