"""Run `lading-doctor`: run the chosen checks of a node, show the findings, and set the exit status.

Exit status 0: no check failed; with `--strict`, no warning either. 1: a check failed, or gave a warning with `--strict`.
2: wrong arguments.
"""

import argparse
import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from doctor.checks import CHECKS, NodeCheck
from doctor.config import ConfigReading
from doctor.host import HOOKS, PROXY, Host
from doctor.read import read_config
from hooks.daemon.settings import CONFIG as HOOKS_CONFIG
from hooks.daemon.settings import FrontEndName, Settings
from hooks.daemon.settings import check as check_hooks
from lading import __version__
from lading.checks.model import Check, Finding, Verdict, worst
from lading.checks.run import run_checks
from lading.checks.show import as_json, render_groups
from lading.errors import ConfigError, LadingError, die
from lading.log import printable
from lading.slowness import measure_slowness
from runtimeproxy.main import check as check_proxy
from runtimeproxy.settings import CONFIG as PROXY_CONFIG
from runtimeproxy.settings import Settings as ProxySettings

C = TypeVar("C", bound=Check[Any])

PROGRAM: Final = "lading-doctor"
# The deadline must be longer than NVML's first call: some 2 s on a board of eight cards without persistence mode.
DEADLINE_S: Final = 10.0
LONGEST_S: Final = 600.0
# Folders of units (systemd.unit(5)).
_UNIT_FOLDERS: Final = tuple(f"{parent}/systemd/system" for parent in ("lib", "usr/lib", "usr/local/lib", "run", "etc"))
# Commands in findings need the flags of this command, so that they read the same node and configuration.
_REPEATED: Final = re.compile(r"\blading-(?:doctor|hooks (?:registration|ledger|audit|release|render))\b")


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    try:
        _run(args)
    except LadingError as e:
        die(e)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Check this node: what lading-runtimeproxy and lading-hooks depend on, as far as they are installed. Shows "
        "what is wrong, why it matters and how to fix it. Changes nothing; reads what it may, and lists what it skipped.",
        epilog="Exit status 0: nothing failed; 1: something did, or with --strict there are warnings; 2: wrong arguments. "
        "docs/doctor.md explains each check.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="only these checks, separated by commas")
    parser.add_argument("--list", action="store_true", help="list the checks, run none")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for warnings too")
    parser.add_argument(
        "--deadline", type=_seconds, metavar="SECONDS", help=f"for each check [{DEADLINE_S:g}, longer on a slow node]"
    )
    for flag, daemon, path in (("--hooks-config", HOOKS, HOOKS_CONFIG), ("--proxy-config", PROXY, PROXY_CONFIG)):
        parser.add_argument(flag, type=Path, metavar="FILE", help=f"the configuration of {daemon} [{path}]")
    parser.add_argument("--host-root", type=Path, metavar="DIR", help="the node's files are below it [host_root of the hooks]")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {LONGEST_S:g} seconds")
    return seconds


def _run(args: argparse.Namespace) -> None:
    """Run the chosen checks, print the findings, and end the process with the exit status."""
    slowness = measure_slowness()
    console = Console()
    chosen = select(CHECKS, args.only)
    if args.list:
        _print(console, *_render_list(chosen))
        raise SystemExit(0)
    result = asyncio.run(_check(chosen, args, slowness))
    findings = tuple(msgspec.structs.replace(finding, mend=repeat_flags(finding.mend, args)) for finding in result)
    if args.output == "json":
        print(json.dumps({"program": PROGRAM, "version": __version__, **as_json(findings)}, indent=2))
    else:
        _print(console, *render_groups(findings))
        if os.geteuid() != 0:
            console.print("\nnot root: what could not be read is skipped", style="dim", highlight=False)
    raise SystemExit(exit_status(findings, strict=args.strict))


def exit_status(findings: Sequence[Finding], *, strict: bool) -> int:
    return int(worst(findings) in {Verdict.FAILED, *([Verdict.WARNING] if strict else [])})


def _render_list(checks: Sequence[NodeCheck]) -> Iterator[Text]:
    width = max(len(check.name) for check in checks)
    for name, what in dict.fromkeys((check.name, check.what) for check in checks):
        yield Text.assemble((f"{name:<{width}}", "bold"), f"  {what}")


def _print(console: Console, *lines: Text) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


async def _check(checks: Sequence[NodeCheck], args: argparse.Namespace, slowness: float) -> tuple[Finding, ...]:
    hooks, of_hooks = read_config(Settings, args.hooks_config, HOOKS_CONFIG, check_hooks, daemon=HOOKS)
    proxy, of_proxy = read_config(ProxySettings, args.proxy_config, PROXY_CONFIG, check_proxy, daemon=PROXY)
    root = args.host_root or Path(hooks.host_root)
    both = {HOOKS: of_hooks, PROXY: of_proxy}
    named = {HOOKS: args.hooks_config, PROXY: args.proxy_config}
    configs = {daemon: reading for daemon, reading in both.items() if named[daemon] or is_installed(reading, root)} or both
    if hooks.front_end is FrontEndName.NRI and HOOKS in configs:
        configs = {HOOKS: of_hooks}  # a node has one front end: skip remains of the proxy
    host = Host(hooks=hooks, proxy=proxy, configs=configs, root=root, slowness=slowness)
    chosen = [check for check in checks if check.of in {"", *configs} and check.front_end in {"", hooks.front_end}]
    return await run_checks(chosen, host, deadline_s=args.deadline or DEADLINE_S * slowness, slowness=slowness)


def is_installed(reading: ConfigReading, root: Path) -> bool:
    """Return whether the node has this daemon: its configuration file exists, even if unreadable, or its unit does."""
    units = (root / folder / f"{reading.daemon}.service" for folder in _UNIT_FOLDERS)
    return reading.access is not None or reading.is_denied or any(map(Path.is_file, units))


def select(checks: Sequence[C], only: Sequence[str]) -> tuple[C, ...]:
    """Return the checks that `only` names; all checks if it names none. Raises ConfigError for an unknown name."""
    wanted = {name.strip() for names in only for name in names.split(",")} - {""}
    names = dict.fromkeys(check.name for check in checks)
    for name in sorted(wanted - set(names)):
        raise ConfigError(f"cannot check {printable(name)!r}: no such check", hint=f"known: {', '.join(names)}")
    return tuple(check for check in checks if check.name in wanted or not wanted)


def repeat_flags(mend: str, args: argparse.Namespace) -> str:
    """Return the commands in `mend`, with the user's flags for this node and its configuration added."""
    of_hooks = {"--config": args.hooks_config, "--host-root": args.host_root}
    of_doctor = {"--hooks-config": args.hooks_config, "--proxy-config": args.proxy_config, "--host-root": args.host_root}

    def repeat(command: re.Match[str]) -> str:
        flags = of_doctor if command[0] == PROGRAM else of_hooks
        return shlex.join([*command[0].split(), *(str(w) for pair in flags.items() if pair[1] for w in pair)])

    return _REPEATED.sub(repeat, mend)


if __name__ == "__main__":
    main(sys.argv[1:])
