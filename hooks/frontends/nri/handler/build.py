"""Compile the runtime handler, a static program, for x86-64 and aarch64: `python -m hooks.frontends.nri.handler.build`.

Tests: tests/unit/hooks/frontends/nri/test_handler.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hooks.frontends.nri.compiled.build import STATIC, compile_program
from hooks.frontends.nri.handler.program import PROGRAM, VERSION_MARK
from lading.compiling import compile_for_nodes

_HERE: Final = Path(__file__).parent
_SOURCES: Final = ("call.c", "config.c", "handler.c")
_TEXTS: Final = {"VERSION_MARK": VERSION_MARK}


def build(out: Path, compiler: Sequence[str], *, flags: Sequence[str] = STATIC) -> None:
    """Compile the handler. Raise HostError with the compiler's output."""
    compile_program(out, compiler, [_HERE / source for source in _SOURCES], _TEXTS, flags=flags)


def main(argv: Sequence[str] | None = None) -> None:
    compile_for_nodes(
        argv,
        module="hooks.frontends.nri.handler.build",
        folder=_HERE / "built",
        abi="linux-musl",
        names=[PROGRAM],
        build=build,
    )


if __name__ == "__main__":
    main()
