"""Run, install or remove the guard of a node whose front end is NRI: `lading-hooks nri-guard`, `install-guard`, `remove-guard`.

`nri-guard` runs the guard as a separate process. The other commands install and remove the guard that the runtime launches.

Tests: tests/unit/hooks/daemon/test_container_commands.py
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hooks.daemon.parts import guard_rules, make_vendors
from hooks.daemon.settings import CONFIG, FrontEndName, Settings, guard_lock
from hooks.frontends.nri.guard_plugin import GuardLock, GuardPlugin
from hooks.frontends.nri.launched.program import GUARD, PROGRAM, install, remove
from hooks.frontends.nri.link import NriLink
from lading import __version__
from lading.errors import ConfigError
from lading.log import Event, Log, open_log
from lading.settings import add_flags, load
from lading.sockets import parse_endpoint
from lading.stopping import stop_asked


def guard(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks nri-guard",
        description="Runs the guard beside lading-hooks, on a node with front_end = nri. It refuses containers of pods with "
        "Lading's annotations about which lading-hooks has not answered, as when it dies while it is asked.",
    )
    add_flags(parser, Settings, config=CONFIG)
    settings = load(Settings, parser.parse_args(argv))
    if settings.front_end is not FrontEndName.NRI:
        raise ConfigError(f"cannot guard: front_end = {settings.front_end}", hint='front_end = "nri" in hooks.toml')
    asyncio.run(_run(settings, open_log("lading-nri-guard", settings.log_level)))


async def _run(settings: Settings, log: Log) -> None:
    """Run the guard until a signal to stop."""
    with closing(GuardLock(guard_lock(settings))) as lock:
        plugin = GuardPlugin(rules=guard_rules(settings, make_vendors(settings)))
        link = NriLink(socket=parse_endpoint(settings.nri_socket), plugin=plugin, log=log, changed=lock.show)
        stop = stop_asked()
        log.info(Event.DAEMON_STARTED, version=__version__)
        task = asyncio.create_task(link.keep_connected())
        await stop.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        log.info(Event.DAEMON_STOPPED)


def install_guard(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks install-guard",
        description=f"Puts {PROGRAM} into the runtime's folder of plugins (nri_plugin_path). The runtime launches it at its "
        "next start, and has a guard from then on before the first pod starts.",
    )
    parser.add_argument("--program", type=Path, metavar="FILE", help="the guard [Lading's, of this machine's architecture]")
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    program, folder = args.program or GUARD.built(), Path(load(Settings, args).nri_plugin_path)
    path = install(program, folder)
    print(
        f"{path}: version {GUARD.find_version(path)}; containerd launches it at its next start (systemctl restart containerd)"
    )


def remove_guard(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks remove-guard",
        description=f"Takes {PROGRAM} out of the runtime's folder of plugins (nri_plugin_path). One that runs goes on until "
        "the runtime's next start, and refuses containers of pods with Lading's annotations without lading-hooks.",
    )
    add_flags(parser, Settings, config=CONFIG)
    folder = Path(load(Settings, parser.parse_args(argv)).nri_plugin_path)
    if remove(folder):
        print(f"{folder / PROGRAM} is removed; one that runs guards until containerd's next start")
    else:
        print(f"{folder / PROGRAM} is not there")
