"""Pack into dist/gpu-kit.tar.gz what the tests on a card need and a machine with a card may lack: `python -m tests.gpu.kit`.

The kit has what a compiler makes (Lading's libraries in front of the driver's, gpu-work, the images), a static busybox, and
containerd with runc, if they are on this machine. `tests.gpu` and `bench.gpu` unpack the kit of that path. It is for this
checkout on machines of the same architecture with glibc 2.17 or newer. CONTRIBUTING.md says how Python's packages travel.
"""

import importlib.util
import platform
import shutil
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lading.compiling import find_compiler, run_compiler
from lading.errors import LadingError, die
from shares.library.build import SOURCES, build
from simnode.containerd import Binaries, find_containerd, search_path
from simnode.images import build_images, default_cache, find_busybox, read_gpu_work
from tests.shares.card import DRIVER_LINK, SOCKET

OUT: Final = Path("dist/gpu-kit.tar.gz")
_CONTAINERD: Final = ("containerd", "ctr", "containerd-shim-runc-v2")


def find_newest() -> Binaries | None:
    """Return a containerd that honours CDI names, if there is one, else any; None if there is none."""
    return find_containerd("2.") or find_containerd("1.7.") or find_containerd()


def find_portable_compiler() -> list[str]:
    """Return a compiler whose programs run with an old glibc: ziglang, or without it the machine's own."""
    if importlib.util.find_spec("ziglang") is None:
        print("there is no ziglang (pip install -r requirements-library.txt): the kit needs a glibc as new as this machine's")
        return find_compiler()
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-gnu.2.17"]


def fill(folder: Path) -> None:
    """Make the kit's files in a folder. Raise LadingError if something cannot be compiled."""
    compiler = find_portable_compiler()
    for soname in SOURCES:
        build(folder / "library" / soname, compiler, real=DRIVER_LINK / soname, socket=SOCKET)
        build(folder / "libraries" / soname, compiler)
    source = folder / "gpu-work.c"
    source.write_text(read_gpu_work())
    run_compiler([*compiler, "-O2", "-s", str(source), "-o", str(folder / "gpu-work"), "-ldl"])
    images, programs = folder / "cache/lading/images", folder / "bin"
    images.mkdir(parents=True)
    programs.mkdir()
    for tar in build_images(default_cache()):
        shutil.copy(tar, images)
    shutil.copy(find_busybox(default_cache()), programs / "busybox")
    containerd, runc = find_newest(), shutil.which("runc", path=search_path())
    if containerd is None or runc is None:
        print("the kit is without containerd and runc: python -m simnode.install 2. gets them")
        return
    for program in (Path(runc), *(containerd.folder / name for name in _CONTAINERD)):
        shutil.copy(program, programs)


def unpack(folder: Path) -> Path | None:
    """Unpack the kit into the folder, if there is one. Return the folder, or None."""
    if not OUT.exists():
        return None
    shutil.unpack_archive(OUT, folder)
    return folder


def main() -> None:
    OUT.parent.mkdir(exist_ok=True)
    try:
        with TemporaryDirectory(prefix="lading-") as folder:
            fill(Path(folder))
            with tarfile.open(OUT, "w:gz", compresslevel=6) as packed:
                packed.add(folder, arcname=".")
    except LadingError as e:
        die(e)
    print(f"{OUT}: {OUT.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
