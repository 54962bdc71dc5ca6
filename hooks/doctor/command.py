"""`lading-hooks doctor`: the command line."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from hooks.daemon.settings import CONFIG, Settings, check
from hooks.doctor.checks import CHECKS
from hooks.doctor.host import DAEMON, Host
from lading.doctor.command import EPILOG, add_doctor_flags, repeat_flags, run_doctor
from lading.doctor.read import read_config
from lading.settings import add_flags

PROXY_CONFIG: Final = Path("/etc/lading/runtimeproxy.toml")


def doctor(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks doctor",
        description="Is this node all right? Looks at what lading-hooks depends on, says what is wrong, why it matters and "
        "what mends it. Changes nothing; reads what it may, and says what it skipped.",
        epilog=EPILOG,
    )
    add_doctor_flags(parser)
    parser.add_argument(
        "--proxy-config", type=Path, default=PROXY_CONFIG, metavar="FILE", help=f"of lading-runtimeproxy [{PROXY_CONFIG}]"
    )
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    settings, config = read_config(Settings, args, check, daemon=DAEMON)
    run_doctor(
        CHECKS,
        lambda: Host(settings, config=config, proxy_config=args.proxy_config),
        args,
        program=DAEMON,
        repeated=partial(repeat_flags, argv=argv, program=DAEMON, neighbour="--proxy-config"),
    )
