"""Wheels of this checkout, built once, and roots to install them below."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.fakes.needs import need
from tests.install.node_installer import PYTHON, install, quick_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """This version and a later one."""
    asked = [str(PYTHON), "-c", "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() if PYTHON.exists() else ""
    need(
        version == sysconfig.get_python_version(),
        f"{PYTHON} with venv, of this Python's version (apt-get install python3-venv)",
    )
    folder = tmp_path_factory.mktemp("wheels")
    return quick_wheel(folder, "0.1.0"), quick_wheel(folder, "0.1.1")


@pytest.fixture(scope="session")
def built_versions(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """opt/lading/versions with both, as the installer makes them: that takes seconds, so the tests share them."""
    root = tmp_path_factory.mktemp("built")
    pem = root / "central-1.pub.pem"
    pem.write_text("any")
    for wheel in wheels:
        install("--root", root, "--wheel", wheel, "--config", pem, "--node-name", "n1", "--no-kubelet")
    return root / "opt/lading/versions"
