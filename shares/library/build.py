"""Compile the containers' libraries for x86-64 and aarch64, glibc 2.17 and newer: `python -m shares.library.build`.

Tests: tests/shares/test_names.py
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading.compiling import WARNINGS, compile_for_nodes, run_compiler
from lading.sharegrant import IN_CONTAINER, REAL_LIBRARIES
from lading.sharegrant import SOCKET as SOCKET_NAME

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
SOCKET: Final = Path(IN_CONTAINER, SOCKET_NAME)  # the share server's socket, as a container sees it
HERE: Final = Path(__file__).parent
SOURCES: Final = {
    CUDA: (
        *("account.c", "compute.c", "connect.c", "contexts.c", "driver.c", "graphs.c", "link.c", "memory.c", "queue.c"),
        *("resolve.c", "table.c", "virtual.c"),
    ),
    NVML: ("connect.c", "nvml.c"),
}
_FLAGS: Final = (
    *(*WARNINGS, "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-s", "-pthread", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,now"),
)


def build(out: Path, compiler: Sequence[str], *, real: Path | None = None, socket: Path = SOCKET) -> None:
    """Compile the library that `out` names, CUDA or NVML. `real`: path of the driver's library inside a container.

    Raise HostError with the compiler's output.
    """
    soname = out.name
    real = real or Path(REAL_LIBRARIES, soname)
    with tempfile.TemporaryDirectory(prefix="lading-library-") as name:
        # The loader takes a SONAME with a slash as a path. A stub with such a SONAME makes it load the driver's library by
        # path.
        stub = Path(name) / "real.so"
        run_compiler([*compiler, "-shared", "-fPIC", f"-Wl,-soname,{real}", "-x", "c", "/dev/null", "-o", str(stub)])
        # Paths in a container are defined once, in lading/sharegrant.py.
        defines = [f'-DREAL_LIBRARY="{real}"', f'-DSOCKET_PATH="{socket}"']
        sources = [str(HERE / source) for source in SOURCES[soname]]
        built = Path(name) / soname
        linked = [f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", str(stub), "-ldl", "-o", str(built)]
        run_compiler([*compiler, *_FLAGS, f"-ffile-prefix-map={HERE}=.", *defines, *sources, *linked])
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, out)
        out.chmod(0o755)


def main(argv: Sequence[str] | None = None) -> None:
    compile_for_nodes(
        argv, module="shares.library.build", folder=HERE / "built", abi="linux-gnu.2.17", names=SOURCES, build=build
    )


if __name__ == "__main__":
    main()
