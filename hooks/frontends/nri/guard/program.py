"""Find, read and remove files of the compiled guard, and tell a file's version. Files of others are never changed.

The program is one file, which works as the guard or as the runtime handler by the name under which it is started.

Tests: tests/unit/hooks/frontends/nri/guard/test_launched.py
"""

import platform
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError

_LARGEST: Final = 16 << 20  # maximum bytes of a file that is searched for a version
_BUILT: Final = "ladingguard"
_VERSION: Final = rb"([0-9A-Za-z.+-]{1,40})\0"


def built_program() -> Path:
    """Return the path of the program for this machine's architecture, whether or not it was built."""
    return Path(__file__).parent / "built" / platform.machine() / _BUILT


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Represent one way to install the program."""

    what: str  # the program's name in messages
    mark: str  # text before the version in the program

    def find_version(self, path: Path) -> str:
        """Return a file's version; empty if it is missing or is not this program. Raise HostError if it cannot be read."""
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                return ""
            match = re.search(re.escape(self.mark.encode()) + _VERSION, path.read_bytes())
        except FileNotFoundError:
            return ""
        except OSError as e:
            raise HostError(f"cannot read {path}: {e.strerror}") from e
        return match[1].decode() if match else ""

    def read(self, path: Path) -> bytes:
        """Return the content of the program at a path. Raise HostError if the file is not this program."""
        if not self.find_version(path):
            hint = "make launched-guard builds it, for the wheel"
            raise HostError(f"cannot install the {self.what}: {path} is none", hint=hint)
        return path.read_bytes()

    def check_ours(self, path: Path) -> None:
        """Raise HostError if the path has a file of others."""
        if path.is_symlink() or (path.exists() and not self.find_version(path)):
            hint = f"look at it, and move it out of {path.parent}"
            raise HostError(f"{path} is no {self.what} of Lading: it stays as it is", hint=hint)

    def remove(self, path: Path) -> bool:
        """Remove the file. Return whether it was there. Raise HostError, also for a file of others."""
        self.check_ours(path)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as e:
            raise HostError(f"cannot remove {path}: {e.strerror}") from e
        return True
