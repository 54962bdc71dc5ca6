"""Make root file systems of Debian suites for tests, once, in the cache: `make_root("trixie", ["python3"])`.

It needs root and debootstrap(8), and takes the packages from the mirror of this machine's apt.
"""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lading.errors import HostError
from simnode import leftovers, progress
from simnode.images import default_cache


def make_root(suite: str, packages: Sequence[str]) -> Path:
    """Return the folder of a minimal system of that suite with these packages. Others may read it, and add files of their own.

    HostError: debootstrap is missing, or the mirror does not have the suite."""
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    root = default_cache() / "roots" / f"{suite}-{key}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
        if not root.is_dir():
            _make(root, suite, packages)
    return root


def _make(root: Path, suite: str, packages: Sequence[str]) -> None:
    if shutil.which("debootstrap") is None:
        raise HostError(f"cannot make a root of Debian {suite}: there is no debootstrap", hint="apt-get install debootstrap")
    part = root.with_suffix(".part")
    leftovers.remove_tree(part)  # left by a run that was killed
    text = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, str(part), *_mirror()]
    if progress.run(f"making a root of Debian {suite}", text):
        leftovers.remove_tree(part)
        raise HostError(f"cannot make a root of Debian {suite}: debootstrap failed; see its output above")
    shutil.rmtree(part / "var/cache/apt", ignore_errors=True)
    part.rename(root)


def _mirror() -> list[str]:
    """Return the address from which this machine's apt gets packages; nothing if apt does not say."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603 -- fixed words
    return done.stdout.split()[:1]
