"""Install or remove the program of the runtime handler `lading`: `lading-hooks install-handler` and `remove-handler`.

containerd starts this program in place of runc for each operation on containers of the handler's pods.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from hooks.daemon.settings import Settings, read_arguments
from hooks.frontends.nri.guard.handler import HANDLER, PROGRAM, RUNC, install
from hooks.frontends.nri.guard.program import built_program
from hooks.host.lists import find_pods_of_handler
from lading.amounts import first_few
from lading.errors import HostError
from lading.runtime import RuntimeClient
from lading.sockets import parse_endpoint

_NAMED = 5  # maximum number of pods that a refusal names


def handler_program(settings: Settings) -> Path:
    """Return the program's path on this node, which is BinaryName in containerd's configuration."""
    return Path(settings.state_dir) / "bin" / PROGRAM


def install_handler(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks install-handler",
        description=f"Puts {PROGRAM} into the folder bin of state_dir. Its runtime handler takes effect where containerd's "
        "configuration names it.",
    )
    parser.add_argument("--program", type=Path, metavar="FILE", help="the program [Lading's, of this machine's architecture]")
    args, settings = read_arguments(parser, argv)
    path = install(args.program or built_program(), handler_program(settings).parent)
    print(f"{path}: version {RUNC.find_version(path)}; containerd uses it where its configuration names it")


def remove_handler(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks remove-handler",
        description=f"Takes {PROGRAM} out of the folder bin of state_dir. Refused while pods of its runtime handler run: "
        "without it the runtime could not end them.",
    )
    _, settings = read_arguments(parser, argv)
    path = handler_program(settings)
    print(f"{path} is {'removed' if remove_program(settings) else 'not there'}")


def remove_program(settings: Settings) -> bool:
    """Remove the program. Return whether it was there. Raise HostError while pods of its handler run, and
    RuntimeUnavailableError if the runtime cannot list the pods."""
    path = handler_program(settings)
    RUNC.check_ours(path)
    if path.exists() and (pods := asyncio.run(_running(settings))):
        named = first_few(pods, _NAMED, rest=", and {} more")
        raise HostError(
            f"cannot remove {path}: these pods run by the runtime handler {HANDLER}: {named}",
            hint="delete these pods first; the runtime needs it to end them",
        )
    return RUNC.remove(path)


async def _running(settings: Settings) -> tuple[str, ...]:
    async with RuntimeClient(parse_endpoint(settings.runtime_endpoint)) as runtime:
        return await find_pods_of_handler(runtime, HANDLER)
