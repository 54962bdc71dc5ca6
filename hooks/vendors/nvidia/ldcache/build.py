"""Compile the hook `lading-ldcache`, a static program, for x86-64 and aarch64: `python -m hooks.vendors.nvidia.ldcache.build`.

Tests: tests/unit/hooks/vendors/nvidia/test_ldcache.py
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hooks.host.ldcache import NAME
from lading.compiling import NATIVE, STATIC, WARNINGS, compile_for_nodes, run_compiler
from lading.files import replace_file

_HERE: Final = Path(__file__).parent


def build(out: Path, compiler: Sequence[str], *, flags: Sequence[str] = STATIC) -> None:
    """Compile the program. Raise HostError with the compiler's output."""
    with tempfile.TemporaryDirectory(prefix="lading-ldcache-") as name:
        built = Path(name, "built")
        sources = [*sorted(_HERE.glob("*.c")), NATIVE / "json.c"]
        mapped = [f"-ffile-prefix-map={folder}=." for folder in (_HERE, NATIVE)]
        run_compiler(
            [*compiler, *WARNINGS, *flags, *mapped, "-D_GNU_SOURCE", f"-I{NATIVE}", *map(str, sources), "-o", str(built)]
        )
        replace_file(out, built.read_bytes(), mode=0o755)


def main(argv: Sequence[str] | None = None) -> None:
    module = "hooks.vendors.nvidia.ldcache.build"
    compile_for_nodes(argv, module=module, folder=_HERE / "built", abi="linux-musl", names=[NAME], build=build)


if __name__ == "__main__":
    main()
