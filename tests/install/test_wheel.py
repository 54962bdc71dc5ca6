"""The wheel: the same files give the same bytes, and from it alone, into an environment of its own, everything is there.

Its packages are installed with the hashes that it carries: this is the one test here that asks a package index.
"""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from deploy.wheel import build, copy
from kubectl_lading.install.manifests import render
from lading import __version__
from tests.docs import ROOT
from tests.install.node_installer import PYTHON, install

COMMANDS = ("lading-runtimeproxy", "lading-hooks", "lading-shares", "lading-doctor", "lading-central", "kubectl-lading")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.long
def test_the_same_files_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    source, other = tmp_path / "source", tmp_path / "other"
    copy(ROOT, source)
    shutil.copytree(source, other)
    (other / "build").mkdir()
    for path in other.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_600_000_000, 1_600_000_000))
    before = os.umask(0o077)
    try:
        made = [build(source, tmp_path / "1"), build(other, tmp_path / "2")]
    finally:
        os.umask(before)
    first, second = (path.read_bytes() for path in made)
    assert first == second


def test_it_carries_every_module_and_what_a_node_and_a_cluster_are_set_up_with(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    shared = f"lading-{__version__}.data/data/share/lading"
    packages = ("doctor", "runtimeproxy", "hooks", "shares", "central", "kubectl_lading", "simulate", "lading", "protos")
    assert set(files_of(*packages)) <= names
    left_out = ("deploy/image/", "deploy/chart/", "deploy/wheel.py", "deploy/release.py", "deploy/sbom.py")
    carried = {f"{shared}/{name}" for name in files_of("systemd", "deploy") if not name.startswith(left_out)}
    assert carried | {f"{shared}/requirements.txt"} == {name for name in names if name.startswith(shared)}


@pytest.mark.long
def test_the_installer_builds_it_from_a_checkout(tmp_path: Path) -> None:
    """A dry run builds the wheel too; its pip brings the tools for that."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    text = install("--root", tmp_path, "--source", ROOT, "--manual", "--node-name", "n1", "--no-kubelet", "--dry-run").out
    assert re.search(rf"/opt/lading/versions/{__version__}-[0-9a-f]{{8}}$", text, re.MULTILINE)


def files_of(*tops: str) -> list[str]:
    paths = (path.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if "__pycache__" not in path.parts]


@pytest.mark.long
def test_a_fresh_environment_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([PYTHON, "-m", "venv", venv], check=True)
    pip: list[str | Path] = [venv / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    subprocess.run([*pip, "--require-hashes", "-r", venv / "share/lading/requirements.txt"], check=True)
    subprocess.run([venv / "bin/python", "-m", "pip", "check"], check=True)  # everything that the wheel asks for is pinned
    for command in COMMANDS:
        done = subprocess.run([venv / "bin" / command, "--version"], capture_output=True, text=True, check=True)
        assert __version__ in done.stdout
        subprocess.run([venv / "bin" / command, "--help"], capture_output=True, check=True)
    count = "from kubectl_lading.install.manifests import find_deploy, render; print(find_deploy(), len(render(find_deploy())))"
    done = subprocess.run([venv / "bin/python", "-I", "-c", count], capture_output=True, text=True, check=True)
    result, _, objects = done.stdout.partition(" ")
    assert Path(result) == venv / "share/lading/deploy"
    assert int(objects) == len(render(ROOT / "deploy"))
