"""Build the images of this checkout, and import them into a private containerd."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO

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


def unpack_image(images: Path, name: str, folder: Path) -> None:
    """Write the file system of an image, layer over layer, as `ctr images mount` would show it."""
    with tarfile.open(images) as archive:

        def opened(path: str) -> IO[bytes]:
            file = archive.extractfile(path)
            assert file
            return file

        (result,) = (one for one in json.load(opened("manifest.json")) if f"docker.io/library/{one['RepoTags'][0]}" == name)
        for layer in result["Layers"]:
            with tarfile.open(fileobj=opened(layer)) as files:
                # Debian 12's Python 3.11.2 has no filters, and Python 3.12 and 3.13 warn where none is set.
                files.extraction_filter = getattr(tarfile, "tar_filter", None)
                files.extractall(folder)  # noqa: S202  of an image that a test built
