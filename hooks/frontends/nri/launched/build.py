"""Compile the launched guard, a static program, for x86-64 and aarch64: `python -m hooks.frontends.nri.launched.build`.

Tests: tests/unit/hooks/frontends/nri/test_launched.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hooks.frontends.nri.compiled.build import STATIC, compile_program
from hooks.frontends.nri.guard_plugin import INDEX, NAME
from hooks.frontends.nri.launched.program import VERSION_MARK
from hooks.frontends.nri.ttrpc import MAX_RECEIVED
from lading.compiling import compile_for_nodes
from lading.http2.messages import GrpcStatus

_HERE: Final = Path(__file__).parent
_SOURCES: Final = ("frames.c", "guard.c", "protobuf.c")
_TEXTS: Final[dict[str, str | int]] = {
    "VERSION_MARK": VERSION_MARK,
    "NAME": NAME,
    "INDEX": INDEX,
    "INVALID_ARGUMENT": int(GrpcStatus.INVALID_ARGUMENT),
    "UNIMPLEMENTED": int(GrpcStatus.UNIMPLEMENTED),
    "MAX_RECEIVED": MAX_RECEIVED,
}


def build(out: Path, compiler: Sequence[str], *, flags: Sequence[str] = STATIC) -> None:
    """Compile the guard. Raise HostError with the compiler's output."""
    compile_program(out, compiler, [_HERE / source for source in _SOURCES], _TEXTS, flags=flags)


def main(argv: Sequence[str] | None = None) -> None:
    compile_for_nodes(
        argv,
        module="hooks.frontends.nri.launched.build",
        folder=_HERE / "built",
        abi="linux-musl",
        names=[NAME],
        build=build,
    )


if __name__ == "__main__":
    main()
