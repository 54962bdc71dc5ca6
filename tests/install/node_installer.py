"""`deploy/install-node.sh` as the tests run it: on wheels that need no index, below a throwaway root.

A quick wheel is this checkout with another version number, no pinned requirements, and a .pth that leads to the packages of the
Python that runs the tests: all else of it is the real one, built by deploy/wheel.py.
"""

import hashlib
import shutil
import stat
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.wheel import build, copy
from tests.docs import ROOT

SCRIPT: Final = ROOT / "deploy/install-node.sh"
PYTHON: Final = Path("/usr/bin/python3")
ENDPOINT: Final = "--container-runtime-endpoint=unix:///run/lading/cri.sock"
_PTH: Final = 'setup(data_files=[*data_files(), ("lib/python{version}/site-packages", ["deploy/test.pth"])])'


def quick_wheel(folder: Path, version: str, *, requirements: str = "", breaks: str = "") -> Path:
    """`breaks`: a line that lading-hooks comes to when it serves."""
    tree = folder / f"source-{version}"
    copy(ROOT, tree)
    (tree / "requirements.txt").write_text(requirements)
    (tree / "deploy/test.pth").write_text(sysconfig.get_path("purelib") + "\n")
    setup = (tree / "setup.py").read_text()
    last_line = "setup(data_files=data_files())"
    assert last_line in setup
    (tree / "setup.py").write_text(setup.replace(last_line, _PTH.format(version=sysconfig.get_python_version())))
    replace(tree / "lading/__init__.py", '__version__ = "0.1.0"', f'__version__ = "{version}"')
    if breaks:
        replace(tree / "hooks/daemon/daemon.py", "async def run(", f"{breaks}\n\n\nasync def run(")
    made = build(tree, folder)
    shutil.rmtree(tree)
    return made


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


def name_of(wheel: Path) -> str:
    """Return the installer's name for the version in this wheel."""
    return f"{wheel.name.split('-')[1]}-{hashlib.sha256(wheel.read_bytes()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    status: int
    out: str
    err: str


def install(*argv: str | Path, status: int = 0) -> Ended:
    done = subprocess.run([SCRIPT, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return Ended(status=done.returncode, out=done.stdout, err=done.stderr)


Seen = dict[str, tuple[int, str, int]]


def snapshot(root: Path, *, but: str = "") -> Seen:
    """Every file and link below it: mode, content, and when it was changed."""
    out: Seen = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if (but and name.startswith(but)) or (path.is_dir() and not path.is_symlink()):
            continue
        result = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text()
        out[name] = (stat.S_IMODE(result.st_mode), content, result.st_mtime_ns)
    return out
