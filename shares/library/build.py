"""`python -m shares.library.build`: compile the libraries for x86-64 and aarch64, glibc 2.17 and newer, with ziglang of PyPI.

The same sources give the same bytes. Without ziglang, and for tests, the machine's compiler builds it for this machine alone.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading.errors import HostError, LadingError, die
from lading.sharegrant import REAL_LIBRARIES

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
SOCKET: Final = Path("/run/lading/gpu/s.sock")  # in a container
HERE: Final = Path(__file__).parent
SOURCES: Final = {
    CUDA: ("compute.c", "connect.c", "link.c", "memory.c", "resolve.c"),
    NVML: ("connect.c", "nvml.c"),
}
TARGETS: Final = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}
_FLAGS: Final = (
    *("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
    *("-s", "-pthread", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,now"),
)


def build(out: Path, compiler: Sequence[str], *, real: Path | None = None, socket: Path = SOCKET) -> None:
    """Compile the library that `out` names, CUDA or NVML. `real`: the driver's, as it is found where the library is used.

    Raises HostError with what the compiler said.
    """
    soname = out.name
    real = real or Path(REAL_LIBRARIES, soname)
    with tempfile.TemporaryDirectory(prefix="lading-library-") as name:
        # The loader takes a name with a slash as a path: so the real library is found by its path alone, whatever its SONAME.
        stub = Path(name) / "real.so"
        _run([*compiler, "-shared", "-fPIC", f"-Wl,-soname,{real}", "-x", "c", "/dev/null", "-o", str(stub)])
        defines = [f'-DREAL_LIBRARY="{real}"', f'-DSOCKET_PATH="{socket}"']
        sources = [str(HERE / source) for source in SOURCES[soname]]
        built = Path(name) / soname
        linked = [f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", str(stub), "-ldl", "-o", str(built)]
        _run([*compiler, *_FLAGS, f"-ffile-prefix-map={HERE}=.", *defines, *sources, *linked])
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, out)
        out.chmod(0o755)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- a compiler on our sources
    if done.returncode:
        raise HostError(f"cannot compile {command[-1]}: {done.stderr.strip()}")


def find_compiler() -> list[str]:
    """Return this machine's compiler. Raises HostError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise HostError("cannot compile the library: there is no C compiler", hint="run: python -m simnode.install")
    return [compiler]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="shares.library.build", description="Compile the libraries for both architectures.")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=HERE / "built", help="one folder for each architecture is made here"
    )
    folder = parser.parse_args(argv).folder
    try:
        if importlib.util.find_spec("ziglang") is None:
            raise HostError("cannot compile the library: there is no ziglang", hint="pip install -r requirements-library.txt")
        for architecture, target in TARGETS.items():
            print(f"compiling for {architecture}; the first time it takes minutes", file=sys.stderr)
            for soname in SOURCES:
                build(folder / architecture / soname, [sys.executable, "-m", "ziglang", "cc", "-target", target])
    except LadingError as e:
        die(e)


if __name__ == "__main__":
    main()
