"""Run `lading-shares`, the share server of a node, and the command `lading-shares status`.

Tests: tests/unit/shares/test_status.py
"""

import argparse
import asyncio
import faulthandler
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from lading import __version__
from lading.driverfiles import find_nvml, find_outdated_nvml, read_loaded_nvml, read_module_version
from lading.errors import LadingError, die
from lading.health import Condition, HealthServer, parse_address
from lading.liveness import find_own_silence, keep_fed, missing_socket, notify
from lading.log import Event, Log, open_log
from lading.settings import add_flags, parse_args
from lading.sharestatus import ask
from lading.sockets import Peer, listen, parse_endpoint
from lading.stopping import driver_exchanged, stop_asked
from shares.readings import DriverReadings
from shares.server import Shares
from shares.settings import CONFIG, POLICIES, Settings
from shares.status import Metrics, answer, render_table

OUTDATED_S: Final = 10.0  # seconds between two comparisons of the loaded NVML with the kernel module


def main(argv: Sequence[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if args[:1] == ["status"]:
            _status(args[1:])
        else:
            _serve(args)
    except LadingError as e:
        die(e)


def _serve(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-shares",
        description="The share server: gives turns of a card to the containers that share it, and counts their memory. Used by "
        "pods with the isolation `tokens`.",
        epilog="lading-shares status [-o json]   shows who has which card, and how much.",
    )
    parser.add_argument("--version", action="version", version=f"lading-shares {__version__}")
    add_flags(parser, Settings, config=CONFIG)
    settings = parse_args(Settings, parser.parse_args(argv), check)
    faulthandler.enable()
    asyncio.run(run(settings, open_log("lading-shares", settings.log_level)))


def check(settings: Settings) -> None:
    """Check the form of each address in the settings. Raise ConfigError."""
    parse_endpoint(settings.listen)
    parse_address(settings.metrics)


async def run(settings: Settings, log: Log) -> None:
    """Serve shares until a signal to stop."""
    path = parse_endpoint(settings.listen)
    readings = DriverReadings(partial(_find_library, settings))
    shares = Shares(
        Path(settings.shares_dir),
        policy=POLICIES[settings.policy],
        log=log,
        host_root=Path(settings.host_root),
        read=readings.read if settings.count_contexts else None,
    )
    metrics = Metrics(shares.usage, lambda: shares.refused)

    def rejected(peer: Peer) -> None:
        log.warning(Event.CONNECTION_REJECTED, f"peer has uid {peer.uid}", pid=peer.pid)

    def conditions() -> tuple[Condition, ...]:
        return (
            Condition.unless(missing_socket(path), name="socket"),
            Condition.unless(shares.problem, name="grants"),
        )

    async def silence() -> str:
        return await find_own_silence(path)

    with listen(path, rejected=rejected) as listener:
        health = HealthServer(
            parse_address(settings.metrics), registry=metrics.registry, silence=silence, conditions=conditions, log=log
        )
        shares.start()
        stop = stop_asked()
        find_outdated = partial(find_outdated_nvml, Path(settings.host_root), partial(_find_installed, settings))
        exchange = asyncio.create_task(driver_exchanged(find_outdated, OUTDATED_S, log))
        exchange.add_done_callback(lambda _: stop.set())
        server = await answer(listener, shares.usage)
        await health.start()
        log.info(Event.DAEMON_STARTED, version=__version__, listen=settings.listen, policy=settings.policy.value)
        notify("READY=1")
        feeding = asyncio.create_task(keep_fed(silence, log))
        try:
            await stop.wait()
            notify("STOPPING=1")
            log.info(Event.DAEMON_STOPPING)
        finally:
            feeding.cancel()
            exchange.cancel()
            server.close()
            await health.close()
            shares.close()
        log.info(Event.DAEMON_STOPPED)


def _find_library(settings: Settings) -> Path | None:
    """Return the path of the NVML to load; None: the dynamic loader finds it, or this process has loaded NVML."""
    return None if read_loaded_nvml() and not settings.nvml_library else _find_installed(settings)


def _find_installed(settings: Settings) -> Path | None:
    """Return the path of the NVML that a new process would load; None: the dynamic loader finds it."""
    if settings.nvml_library:
        return Path(settings.nvml_library)
    return find_nvml(Path(settings.driver_mount or settings.host_root), read_module_version(Path(settings.host_root)))


def _status(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-shares status", description="Show which container uses which card, and how much."
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    uses = ask(parse_endpoint(parse_args(Settings, args, check).listen))
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(uses), indent=2).decode())
    elif uses:
        print(render_table(uses))
    else:
        print("no container has a share with the isolation tokens on this node")


if __name__ == "__main__":
    main()
