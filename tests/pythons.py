"""Run tests that need no runtime on newer Pythons: `python -m tests.pythons ARGUMENT_OF_PYTEST…`.

Each Python is that of a Debian suite. The tests run in a root file system of the suite, which is made once, in the cache. The
unstable suite has the newest Python that Debian offers; on a day on which it cannot be installed, or a pinned package has no
wheel for its Python, its tests are left out. This machine's pip downloads the wheels, so that the root needs no network. A test
may skip itself here: the root has no containerd, systemd or browser.
Source: debootstrap(8), unshare(1).
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading.errors import HostError, die
from simnode.debian import make_root
from simnode.wheels import download, read_version

UNSTABLE: Final = "sid"
SUITES: Final = ("trixie", UNSTABLE)
PACKAGES: Final = ("python3", "python3-venv", "gcc", "libc6-dev", "iproute2", "git", "openssl")
CHECKOUT: Final = Path(__file__).parents[1]
PINNED: Final = ("requirements.txt", "requirements-dev.txt")
_ENTER: Final = """
set -e
root=$1; shift
mount --bind "$root" "$root"  # tests make mount namespaces, which needs a root that is a mount point
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -p "$root/lading" && mount --bind "$1" "$root/lading"; shift
exec chroot "$root" env -C /lading "$@"
"""


def main() -> None:
    """Run the tests on the Python of each suite. Exit with 1 if one of them fails."""
    failed = []
    for suite in SUITES:
        try:
            passed = test(suite, sys.argv[1:])
        except HostError as e:
            if suite != UNSTABLE:
                die(e)
            print(f"no tests on the Python of Debian {suite}: {e}", flush=True)
        else:
            failed += [] if passed else [suite]
    if failed:
        sys.exit(f"error: tests fail on the Python of Debian {' and '.join(failed)}; see above")


def test(suite: str, arguments: Sequence[str]) -> bool:
    """Return whether the tests pass on this suite's Python. HostError: it cannot be installed."""
    root = make_root(suite, PACKAGES)
    version = read_version(root)
    python = install_wheels(root, version)
    print(f"tests on Python {version} of Debian {suite}", flush=True)
    return enter(root, python, "-m", "pytest", "-q", "-n", "auto", *arguments) == 0


def install_wheels(root: Path, version: str) -> str:
    """Return the path, in the root, of a Python with this checkout and the pinned packages, installed if the pins are new."""
    pins = hashlib.sha256(b"".join((CHECKOUT / name).read_bytes() for name in PINNED)).hexdigest()[:12]
    venv = f"/opt/lading-{version}-{pins}"
    complete, wheels = root / venv[1:] / "complete", root / "opt/wheels"
    if not complete.exists():
        shutil.rmtree(wheels, ignore_errors=True)
        download(version, [CHECKOUT / name for name in PINNED], wheels)
        pinned = [word for name in PINNED for word in ("--requirement", name)]
        offline = [f"{venv}/bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/opt/wheels"]
        steps = [
            ["/usr/bin/python3", "-m", "venv", "--clear", venv],
            [*offline, "--require-hashes", *pinned],
            [*offline, "--no-deps", "--no-build-isolation", "--editable", "."],
        ]
        for step in steps:
            if enter(root, *step):
                raise HostError(f"cannot install the packages for Python {version}: failed: {' '.join(step)}")
        shutil.rmtree(wheels)
        complete.touch()
    return f"{venv}/bin/python"


def enter(root: Path, *argv: str) -> int:
    """Return the exit status of a program that runs in the root, with this checkout as /lading."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "enter", str(root), str(CHECKOUT)]
    return subprocess.run([*unshare, *argv], check=False, env=env).returncode


if __name__ == "__main__":
    main()
