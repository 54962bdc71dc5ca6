"""Print or remove the CDI specs of the node's current devices: `lading-hooks cdi-specs`.

The specs stay when the daemon stops, because DRA drivers and other programs may use their names meanwhile. The uninstallation
of Lading removes them.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from hooks.daemon.daemon import read_in_time
from hooks.daemon.parts import make_vendors
from hooks.daemon.settings import CONFIG, Settings, check
from hooks.host.cdi_files import remove_specs
from hooks.host.cdi_spec import render_spec
from hooks.inventory.cdi import render_all
from lading.errors import ConfigError, HostError
from lading.log import printable
from lading.settings import add_flags, load, parse_args


def cdi_specs(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks cdi-specs",
        description="Print the CDI specs that lading-hooks writes for this node (gpu_mode = cdi), made of the devices as they "
        "are now, with or without a daemon; or remove them.",
    )
    parser.add_argument("--remove", action="store_true", help="remove the files from cdi_dir; stop lading-hooks first")
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    if args.remove:
        if problems := remove_specs(Path(load(Settings, args).cdi_dir)):
            raise HostError("; ".join(problems))
        return
    settings = parse_args(Settings, args, check)
    if not settings.writes_specs:
        raise ConfigError(
            f"gpu_mode = {settings.gpu_mode}, cdi_specs = {settings.cdi_specs}: lading-hooks writes no CDI specs on this node",
            hint='gpu_mode = "cdi" and cdi_specs = "lading"',
        )
    inventory = asyncio.run(read_in_time(settings))
    specs, _ = render_all(inventory, make_vendors(settings), mad=settings.rdma_mad)
    for problem in inventory.problems:
        print(f"problem: {printable(problem)}", file=sys.stderr)
    for spec in specs:
        print(render_spec(spec).decode(), end="")
