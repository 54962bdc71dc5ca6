"""The fake libcuda.so.1 (fake_cuda.c): compile it for tests and demos."""

import subprocess
from pathlib import Path

from lading.errors import HostError
from shares.library.build import HERE, SONAME, find_compiler

SOURCE = Path(__file__).parent / "fake_cuda.c"


def compile_fake_cuda(folder: Path) -> Path:
    """Compile the fake into the folder, which is created if needed. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / SONAME
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{HERE}", f"-Wl,-soname,{SONAME}"]
    command = [*find_compiler(), *flags, str(SOURCE), "-o", str(out), "-pthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- the compiler on our source
    if done.returncode:
        raise HostError(f"cannot compile the fake libcuda: {done.stderr.strip()}")
    return out
