"""Build the wheel: `python deploy/wheel.py [--source DIR] [--out DIR]` prints its path. The same files give the same bytes.

It takes a checkout, with or without git. It writes one wheel: packages, units, installer, manifests, pinned requirements. It
builds in a copy, with fixed modes and dates, so that neither the umask nor files of an earlier build in the checkout change it.
Source: reproducible-builds.org (SOURCE_DATE_EPOCH).
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PARTS = (
    *(
        "central",
        "doctor",
        "hooks",
        "kubectl_lading",
        "lading",
        "protos",
        "runtimeproxy",
        "shares",
        "simulate",
        "systemd",
        "deploy",
    ),
    *("pyproject.toml", "setup.py", "requirements.txt", "README.md", "LICENSE"),
)
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")
FIRST_ZIP_DATE = 315532800  # 1980: a zip has no earlier date
SETUPTOOLS = 80  # the version in pyproject.toml


def build(source: Path, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lading-wheel-") as folder:
        tree, made = Path(folder, "source"), Path(folder, "out")
        copy(source, tree)
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(source_date(source)), "PYTHONHASHSEED": "0"}
        argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(made)]
        here = ["--no-build-isolation"] if has_setuptools() else []  # else pip gets one for the build
        # umask: the wheel also has the modes of files that setuptools writes itself
        done = subprocess.run([*argv, *here, str(tree)], env=env, check=False, umask=0o022)  # noqa: S603 -- on a copy of the checkout
        if done.returncode:
            sys.exit("error: cannot build the wheel: see pip's messages above")
        (wheel,) = made.glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def copy(source: Path, tree: Path) -> None:
    tree.mkdir()
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, tree / part, ignore=NOT_SOURCES)
        else:
            shutil.copy(source / part, tree / part)
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def source_date(source: Path) -> int:
    """Return the date of the build, in Unix seconds: SOURCE_DATE_EPOCH, else of the last commit, else 1980."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    git = shutil.which("git")
    argv = [git or "", "-C", str(source), "log", "-1", "--format=%ct"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False) if git else None  # noqa: S603 -- git, on this checkout
    return int(done.stdout) if done and done.returncode == 0 and done.stdout.strip() else FIRST_ZIP_DATE


def has_setuptools() -> bool:
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= SETUPTOOLS
    except importlib.metadata.PackageNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel, and print its path.")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1], help="the checkout (default: this one)")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the wheel goes (default: dist)")
    args = parser.parse_args()
    print(build(args.source, args.out))


if __name__ == "__main__":
    main()
