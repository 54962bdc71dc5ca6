"""Run, install or remove the guard of a node whose front end is NRI: `lading-hooks nri-guard`, `install-guard`, `remove-guard`.

`nri-guard` replaces itself by the compiled guard. The other commands install and remove the guard that the runtime launches.

Tests: tests/unit/hooks/frontends/nri/guard/test_service.py
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hooks.daemon.parts import make_vendors
from hooks.daemon.settings import FrontEndName, Settings, guard_lock, read_arguments
from hooks.frontends.nri.guard.launched import GUARD, PROGRAM, install, remove
from hooks.frontends.nri.guard.program import built_program
from lading.errors import ConfigError, HostError
from lading.sockets import parse_endpoint


def guard(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks nri-guard",
        description="Runs the guard beside lading-hooks, on a node with front_end = nri. It refuses containers of pods with "
        "Lading's annotations about which lading-hooks has not answered, as when it dies while it is asked.",
    )
    _add_program(parser)
    args, settings = read_arguments(parser, argv)
    if settings.front_end is not FrontEndName.NRI:
        raise ConfigError(f"cannot guard: front_end = {settings.front_end}", hint='front_end = "nri" in hooks.toml')
    if not GUARD.find_version(args.program):
        raise HostError(f"cannot guard: {args.program} is no guard of Lading", hint="make launched-guard builds it")
    try:
        guard_lock(settings).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.execv(args.program, [str(args.program), *_render_arguments(settings)])  # noqa: S606
    except OSError as e:
        raise HostError(f"cannot guard: {e.filename or args.program}: {e.strerror}") from e


def _render_arguments(settings: Settings) -> list[str]:
    """Return the command line of the program, without its name."""
    hidden = [f"{name}={value}" for vendor in make_vendors(settings) for name, value in vendor.hidden_env.items()]
    return [
        *("--socket", str(parse_endpoint(settings.nri_socket))),
        *("--lock", str(guard_lock(settings))),
        *("--log-level", settings.log_level),
        *("--exempt", ",".join(settings.exempt_namespaces)),
        *(word for one in hidden if settings.hide_unassigned for word in ("--hide", one)),
    ]


def install_guard(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks install-guard",
        description=f"Puts {PROGRAM} into the runtime's folder of plugins (nri_plugin_path). The runtime launches it at its "
        "next start, and has a guard from then on before the first pod starts.",
    )
    _add_program(parser)
    args, settings = read_arguments(parser, argv)
    path = install(args.program, Path(settings.nri_plugin_path))
    print(
        f"{path}: version {GUARD.find_version(path)}; containerd launches it at its next start (systemctl restart containerd)"
    )


def remove_guard(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks remove-guard",
        description=f"Takes {PROGRAM} out of the runtime's folder of plugins (nri_plugin_path). One that runs goes on until "
        "the runtime's next start, and refuses containers of pods with Lading's annotations without lading-hooks.",
    )
    _, settings = read_arguments(parser, argv)
    folder = Path(settings.nri_plugin_path)
    if remove(folder):
        print(f"{folder / PROGRAM} is removed; one that runs guards until containerd's next start")
    else:
        print(f"{folder / PROGRAM} is not there")


def _add_program(parser: argparse.ArgumentParser) -> None:
    text = "the guard [Lading's, of this machine's architecture]"
    parser.add_argument("--program", type=Path, metavar="FILE", default=built_program(), help=text)
