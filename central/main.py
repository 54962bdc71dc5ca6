"""Run `lading-central` from the command line.

Tests: tests/unit/central/daemon/test_settings.py
"""

import argparse
import asyncio
import faulthandler
import os
import sys
from collections.abc import Sequence

from central.daemon.daemon import run
from central.daemon.keys import new_key
from central.daemon.settings import CONFIG, Settings, check
from lading import __version__
from lading.errors import LadingError, die
from lading.log import open_log
from lading.settings import add_flags, parse_args
from lading.vocabulary import CENTRAL


def main(argv: Sequence[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if args and args[0] == "simulate":
            # `simulate` imports central, so central runs it as a program instead of importing it. -P keeps the current folder
            # out of the module path.
            os.execv(sys.executable, [sys.executable, "-P", "-m", "simulate", *args[1:]])  # noqa: S606
        elif args and args[0] == "new-key":
            new_key(args[1:])
        elif args and args[0] == "new-certificates":
            # Import the module only here, because the daemon does not need it.
            from central.daemon.certificates import new_certificates  # noqa: PLC0415

            new_certificates(args[1:])
        elif args and args[0] == "scheduler-config":
            from central.daemon.scheduler_config import print_scheduler_config  # noqa: PLC0415  the daemon reads no YAML

            print_scheduler_config(args[1:])
        else:
            serve(args)
    except LadingError as e:
        die(e)


def serve(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=CENTRAL,
        description="The scheduler extender: assigns GPUs and RDMA VFs to pods, and binds them.",
        epilog="other commands: lading-central simulate --nodes nodes.csv --pods pods.csv | new-key --id ID | "
        "new-certificates | scheduler-config FILE (see --help).  "
        "kubectl -n lading-system logs -l app.kubernetes.io/name=lading-central --tail=-1 | grep event=pod.woken   shows which "
        "pods were requeued when devices became free",
    )
    parser.add_argument("--version", action="version", version=f"lading-central {__version__}")
    add_flags(parser, Settings, config=CONFIG)
    settings = parse_args(Settings, parser.parse_args(argv), check)
    faulthandler.enable()
    asyncio.run(run(settings, open_log(CENTRAL, settings.log_level)))


if __name__ == "__main__":
    main()
