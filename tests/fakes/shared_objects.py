"""Make shared libraries with a SONAME by the C compiler, as tiny files that the dynamic loader and ldconfig accept."""

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


@cache
def make_shared_object(soname: str = "", *, processor: int | None = None) -> bytes:
    """Return a shared library with this SONAME, or without one. `processor`: the e_machine of another processor (elf.h)."""
    with TemporaryDirectory(prefix="lading-elf-") as folder:
        library = Path(folder) / "library.so"
        named = [f"-Wl,-soname,{soname}"] if soname else []
        command = ["cc", "-shared", "-nostdlib", "-Wl,--build-id=none", *named, "-x", "c", "/dev/null", "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True)
        content = library.read_bytes()
    return content if processor is None else content[:18] + processor.to_bytes(2, "little") + content[20:]
