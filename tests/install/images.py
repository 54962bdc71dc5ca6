"""Build the images of this checkout, and import them into a private containerd."""

import subprocess
import sys
from pathlib import Path

from simnode.containerd import PrivateContainerd
from tests.docs import ROOT


def build_images(wheel: Path, out: Path, *, umask: int = 0o022) -> Path:
    argv: list[str | Path] = [sys.executable, ROOT / "deploy/image/build.py", "--wheel", wheel, "--out", out]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, umask=umask)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def import_images(containerd: PrivateContainerd, images: Path) -> list[str]:
    """Import them by the command that docs/install.md has for nodes. Return the beginning of ctr's command lines."""
    ctr = [str(containerd.binaries.folder / "ctr"), "--address", str(containerd.socket), "--namespace", "k8s.io"]
    argv = [*ctr, "images", "import", "--snapshotter", containerd.snapshotter, str(images)]
    subprocess.run(argv, check=True, capture_output=True)
    return ctr
