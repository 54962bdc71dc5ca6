"""Compile C for nodes: with this machine's compiler for this machine alone, or with ziglang of PyPI for both architectures.

The same sources give the same bytes. A module with sources has a `build` function and runs `compile_for_nodes` as its command.

Tests: tests/unit/hooks/frontends/nri/guard/test_answers.py
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from lading.errors import HostError, LadingError, die

ARCHITECTURES: Final = ("x86_64", "aarch64")
WARNINGS: Final = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
STATIC: Final = ("-O2", "-static", "-s", "-Wl,--build-id=none")
NATIVE: Final = Path(__file__).parent / "native"  # C that several programs are made of
_ZIG: Final = "ziglang"


def run_compiler(command: Sequence[str]) -> None:
    """Run a compiler. Raises HostError with the compiler's messages."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- a compiler on our sources
    if done.returncode:
        raise HostError(f"cannot compile {command[-1]}: {done.stderr.strip()}")


def find_compiler() -> list[str]:
    """Return this machine's compiler. Raises HostError if there is none."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise HostError("cannot compile: there is no C compiler", hint="run: python -m simnode.install")
    return [compiler]


def compile_for_nodes(
    argv: Sequence[str] | None,
    *,
    module: str,
    folder: Path,
    abi: str,
    names: Collection[str],
    build: Callable[[Path, Sequence[str]], None],
) -> None:
    """Run the command `python -m <module> [folder]`: build each name for each architecture. `abi`: ziglang's name of the ABI,
    such as linux-musl. `build` gets the file to make and the compiler."""
    parser = argparse.ArgumentParser(prog=module, description=f"Compile {', '.join(names)} for both architectures.")
    parser.add_argument("folder", type=Path, nargs="?", default=folder, help="one folder for each architecture is made here")
    folder = parser.parse_args(argv).folder
    try:
        if importlib.util.find_spec(_ZIG) is None:
            raise HostError(f"cannot compile: there is no {_ZIG}", hint="pip install -r requirements-library.txt")
        for architecture in ARCHITECTURES:
            print(f"compiling for {architecture}; the first time it takes minutes", file=sys.stderr)
            for name in names:
                compiler = [sys.executable, "-m", _ZIG, "cc", "-target", f"{architecture}-{abi}"]
                build(folder / architecture / name, compiler)
    except LadingError as e:
        die(e)
