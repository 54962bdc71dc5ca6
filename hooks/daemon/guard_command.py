"""`lading-hooks nri-guard`: the guard of a node whose front end is NRI, as a process of its own."""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import closing

from hooks.daemon.parts import guard_rules
from hooks.daemon.settings import CONFIG, FrontEndName, Settings, guard_lock
from hooks.frontends.nri.guard_plugin import GuardLock, GuardPlugin
from hooks.frontends.nri.link import Link
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
    """Guard until a signal."""
    with closing(GuardLock(guard_lock(settings))) as lock:
        plugin = GuardPlugin(rules=guard_rules(settings))
        link = Link(socket=parse_endpoint(settings.nri_socket), plugin=plugin, log=log, changed=lock.show)
        stop = stop_asked()
        log.info(Event.DAEMON_STARTED, version=__version__)
        task = asyncio.create_task(link.keep_connected())
        await stop.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        log.info(Event.DAEMON_STOPPED)
