"""Download wheels of pinned packages for another Python than the running one, with this machine's pip.

Source: pip's options --platform, --python-version and --require-hashes.
"""

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading.errors import HostError
from simnode import progress

_GLIBC: Final = range(17, 42)  # minor versions 2.N of the glibc that a manylinux wheel may need


def read_version(root: Path) -> str:
    """Return the version of the Python in a root file system: `3.14`."""
    return min(path.name.removeprefix("python") for path in (root / "usr/bin").glob("python3.*") if path.name[-1].isdigit())


def download(version: str, pinned: Sequence[Path], out: Path) -> None:
    """Download into the folder what the requirements files pin, for that Python. HostError: pip failed."""
    arch = platform.machine()
    target = [f"--platform=manylinux2014_{arch}", *(f"--platform=manylinux_2_{minor}_{arch}" for minor in _GLIBC)]
    target += [f"--python-version={version}", "--implementation=cp", "--only-binary=:all:"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(out), "--require-hashes"]
    what = f"downloading the packages for Python {version}"
    requirements = [word for file in pinned for word in ("--requirement", str(file))]
    if status := progress.run(what, [*pip, *target, *requirements], env=dict(os.environ)):
        raise HostError(f"{what} failed with status {status}; see its output above")
