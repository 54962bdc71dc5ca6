"""The command line of both doctors: which checks to run, how to show them, and the exit status.

Exit status 0: nothing failed; with `--strict`, no warning either. 1: something did. 2: wrong arguments.
"""

import argparse
import asyncio
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from rich.console import Console

from lading import __version__
from lading.doctor.look import look
from lading.doctor.model import Check, Finding
from lading.doctor.show import exit_status, print_json, print_list, print_text
from lading.errors import ConfigError
from lading.log import printable

H = TypeVar("H")

# NVML's first call takes some 2 s on a board of eight cards without persistence mode.
DEADLINE_S: Final = 10.0
LONGEST_S: Final = 600.0
_COMMANDS: Final = ("doctor", "registration", "ledger", "audit", "release", "render")  # that take a daemon's settings
EPILOG: Final = (
    "Exit status 0: nothing failed; 1: something did, or with --strict there are warnings; 2: wrong arguments. "
    "docs/doctor.md explains each check."
)


def add_doctor_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="only these checks, separated by commas")
    parser.add_argument("--list", action="store_true", help="list the checks, run none")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for warnings too")
    parser.add_argument(
        "--deadline", type=_seconds, default=DEADLINE_S, metavar="SECONDS", help=f"for each check [{DEADLINE_S:g}]"
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {LONGEST_S:g} seconds")
    return seconds


def repeat_flags(mend: str, argv: Sequence[str], *, program: str, neighbour: str) -> str:
    """Return the commands with the flags that select this doctor's node and configuration.

    `neighbour` is the flag that only the doctor has: the other daemon's configuration.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_doctor_flags(own)
    _, of_doctor = own.parse_known_args(list(argv))
    own.add_argument(neighbour)
    _, of_all = own.parse_known_args(list(argv))

    def repeat(command: re.Match[str]) -> str:
        flags = of_doctor if command[1] == "doctor" else of_all
        return " ".join([command[0], *([shlex.join(flags)] if flags else [])])

    return re.sub(rf"\b{program} ({'|'.join(_COMMANDS)})\b", repeat, mend)


def run_doctor(
    checks: Sequence[Check[H]],
    open_host: Callable[[], H],
    args: argparse.Namespace,
    *,
    program: str,
    repeated: Callable[[str], str] = str,
) -> None:
    """End the process, with the exit status. `open_host` is called on the loop; `repeated` completes the commands."""
    console = Console()
    if args.list:
        print_list(checks, console)
        raise SystemExit(0)
    chosen = select(checks, args.only)
    found = asyncio.run(_look(chosen, open_host, args.deadline))
    findings = tuple(replace(finding, mend=repeated(finding.mend)) for finding in found)
    if args.output == "json":
        print_json(findings, program=program, version=__version__)
    else:
        print_text(findings, console)
        if os.geteuid() != 0:
            console.print("\nnot root: what could not be read is skipped", style="dim", highlight=False)
    raise SystemExit(exit_status(findings, strict=args.strict))


async def _look(checks: Sequence[Check[H]], open_host: Callable[[], H], deadline_s: float) -> tuple[Finding, ...]:
    return await look(checks, open_host(), deadline_s=deadline_s)


def select(checks: Sequence[Check[H]], only: Sequence[str]) -> tuple[Check[H], ...]:
    """Return the named checks, or all where none is named. Raises ConfigError for an unknown name."""
    wanted = {name.strip() for names in only for name in names.split(",")} - {""}
    for name in sorted(wanted - {check.name for check in checks}):
        known = ", ".join(check.name for check in checks)
        raise ConfigError(f"cannot check {printable(name)!r}: no such check", hint=f"known: {known}")
    return tuple(check for check in checks if check.name in wanted or not wanted)
