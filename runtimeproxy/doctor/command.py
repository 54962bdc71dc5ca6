"""`lading-runtimeproxy doctor`: the command line."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from lading.doctor.command import EPILOG, add_doctor_flags, repeat_flags, run_doctor
from lading.doctor.read import read_config
from lading.settings import add_flags
from runtimeproxy.doctor.checks import CHECKS
from runtimeproxy.doctor.host import DAEMON, Host
from runtimeproxy.settings import CONFIG, Settings

HOOKS_CONFIG: Final = Path("/etc/lading/hooks.toml")


def doctor(argv: Sequence[str], check: Callable[[Settings], None]) -> None:
    """Run the doctor. `check` is the daemon's own, for what only several settings together can show."""
    parser = argparse.ArgumentParser(
        prog="lading-runtimeproxy doctor",
        description="Check kubelet's way to its runtime: what lading-runtimeproxy depends on. Shows what is "
        "wrong, why it matters and how to fix it. Changes nothing; reads what it may, and lists what it skipped.",
        epilog=EPILOG,
    )
    add_doctor_flags(parser)
    parser.add_argument(
        "--hooks-config", type=Path, default=HOOKS_CONFIG, metavar="FILE", help=f"the file of lading-hooks [{HOOKS_CONFIG}]"
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="kubelet's files and processes are below this folder [/]",
    )
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    settings, config = read_config(Settings, args, check, daemon=DAEMON)

    def open_host() -> Host:
        return Host(settings, root=args.host_root, config=config, hooks_config=args.hooks_config)

    repeated = partial(repeat_flags, argv=argv, program=DAEMON, neighbour="--hooks-config")
    run_doctor(CHECKS, open_host, args, program=DAEMON, repeated=repeated)
