"""List what the wheel has beside its packages, in share/lading: everything that a node or a cluster is set up with.

A wheel alone is then enough to install from: units, the installer, pinned requirements, manifests. setuptools takes a list of
files for each folder, so the folders are walked here; all else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup

SHARED = ("systemd", "deploy")
# Only a checkout needs the tools that make wheel, images, chart and release.
LEFT_OUT = ("deploy/image", "deploy/chart", "deploy/wheel.py", "deploy/release.py", "deploy/sbom.py", "__pycache__")


def data_files() -> list[tuple[str, list[str]]]:
    folders: dict[str, list[str]] = {"share/lading": ["requirements.txt"]}
    for path in sorted(path for top in SHARED for path in Path(top).rglob("*") if path.is_file()):
        if not any(part in path.as_posix() for part in LEFT_OUT):
            folders.setdefault(f"share/lading/{path.parent.as_posix()}", []).append(path.as_posix())
    return sorted(folders.items())


setup(data_files=data_files())
