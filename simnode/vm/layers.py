"""Build what a guest is made of, once, in the cache: folders named by the hash of their sources, and roots in overlays.

Source: overlayfs of the kernel's documentation, chroot(8). It needs root.
"""

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lading.errors import HostError
from simnode import leftovers, progress

_ENV: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}


def cached(cache: Path, name: str, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Return a folder that `build` filled, of a name with the hash of its sources."""
    folder, part = cache / f"{name}-{hash_files(sources)}", cache / "part"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            leftovers.remove_tree(part)  # left by a run that was killed, of whatever name
            part.mkdir()
            build(part)
            part.rename(folder)
    return folder


def remove_older(folder: Path) -> None:
    """Remove what `cached` built earlier under the name of this folder. A folder that is locked, by flock(2), stays."""
    name = folder.name.rpartition("-")[0]
    for other in (path for path in folder.parent.iterdir() if path.name.rpartition("-")[0] == name and path != folder):
        descriptor = os.open(other, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftovers.remove_tree(other)
        except BlockingIOError:
            pass  # a guest runs from it
        finally:
            os.close(descriptor)


def hash_files(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for file in sorted(path for path in [source, *source.rglob("*")] if path.is_file()):
            digest.update(str(file.relative_to(source.parent)).encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@contextmanager
def layer(root: Path, out: Path) -> Iterator[Path]:
    """Yield the root file system with a layer of its own for changes, which is removed at the end."""
    layer = out / "layer"
    upper, work, tree = (layer / name for name in ("upper", "work", "tree"))
    for folder in (upper, work, tree):
        folder.mkdir(parents=True)
    try:
        options = f"lowerdir={root},upperdir={upper},workdir={work}"
        run("", ["mount", "-t", "overlay", "-o", options, "overlay", str(tree)])
        run("", ["mount", "-t", "proc", "proc", str(tree / "proc")])
        yield tree
    finally:
        leftovers.remove_tree(layer)


def chroot(tree: Path, what: str, *argv: str) -> None:
    run(what, ["chroot", str(tree), *argv], env=_ENV)


def run(what: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Run a command, with progress if `what` names its work."""
    if what:
        status = progress.run(what, argv, env=env)
    else:
        status = subprocess.run(argv, check=False, env=env).returncode  # noqa: S603 -- fixed programs
    if status:
        raise HostError(f"cannot build the guest: {argv[0]} failed with status {status}; see its output above")
