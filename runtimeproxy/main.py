"""`lading-runtimeproxy`: command line, start, signals, stop."""

import argparse
import asyncio
import contextlib
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading import __version__
from lading.errors import ConfigError, LadingError, RuntimeUnavailableError, die
from lading.log import Event, Log, open_log
from lading.notify import notify
from lading.runtime import RuntimeClient
from lading.settings import add_flags, parse_args
from lading.sockets import listen, parse_endpoint
from runtimeproxy.chain import Chain
from runtimeproxy.gate import Gate
from runtimeproxy.hooksdir import HooksDir
from runtimeproxy.registrations import Registration
from runtimeproxy.server import Server
from runtimeproxy.settings import CONFIG, Settings

# What the proxy knows of pods is compared with the runtime's lists this often: calls that went past us are learnt then.
RELIST_S: Final = 60.0
# A teardown call in between would find its pod unknown, and go on without its hooks.
FIRST_RELIST_S: Final = 1.0
# While the runtime does not answer.
RELIST_RETRY_S: Final = 1.0
# Two descriptors a connection, and those of the process itself.
DESCRIPTORS: Final = 8192


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-runtimeproxy",
        description="The CRI proxy: point kubelet's --container-runtime-endpoint at its socket. It forwards every call to the "
        "container runtime as it came, and asks hook servers about the few that make containers.",
        epilog="journalctl -t lading-runtimeproxy LADING_EVENT=call.refused   shows what was refused and why",
    )
    parser.add_argument("--version", action="version", version=f"lading-runtimeproxy {__version__}")
    add_flags(parser, Settings, config=CONFIG)
    try:
        settings = parse_args(Settings, parser.parse_args(argv), check)
        log = open_log("lading-runtimeproxy", settings.log_level)
        asyncio.run(run(settings, log))
    except ConfigError as e:
        die(e, status=2)
    except LadingError as e:
        die(e)


def check(settings: Settings) -> None:
    """What of the settings one value at a time can not say."""
    listen_path, runtime = parse_endpoint(settings.listen), parse_endpoint(settings.runtime_endpoint)
    if listen_path == runtime:
        raise ConfigError(
            f"listen and runtime_endpoint are both {runtime}", hint="the proxy stands before the runtime's socket"
        )
    for prefix in settings.guarded_prefixes:
        if not prefix or not prefix.isascii():
            raise ConfigError(
                f"guarded_prefixes: {prefix!r} is not the beginning of an annotation key", hint='like "lading.dev/"'
            )


async def run(settings: Settings, log: Log) -> None:
    _raise_descriptor_limit()
    runtime_path = parse_endpoint(settings.runtime_endpoint)
    async with RuntimeClient(runtime_path) as runtime:
        chain = Chain(log)
        gate = Gate(chain, runtime, log, guarded_prefixes=settings.guarded_prefixes)
        server = Server(settings, runtime=runtime_path, gate=gate, log=log)
        with listen(parse_endpoint(settings.listen), like=runtime_path, rejected=server.rejected) as listener:

            def use(registrations: tuple[Registration, ...]) -> None:
                gate.use(registrations)
                server.hold()

            hooks_dir = HooksDir(Path(settings.hooks_dir), use, log)
            hooks_dir.start()
            relisted = asyncio.Event()
            relisting = asyncio.create_task(_relist(gate, runtime, log, relisted))
            with contextlib.suppress(TimeoutError):  # a runtime that is not there, or hangs, must not keep the socket shut
                await asyncio.wait_for(relisted.wait(), FIRST_RELIST_S)
            server.start(listener)
            log.info(Event.DAEMON_STARTED, version=__version__, listen=settings.listen, runtime=str(runtime_path))
            notify("READY=1")
            try:
                await _signalled()
                notify("STOPPING=1")
                log.info(Event.DAEMON_STOPPING, drain_timeout=settings.drain_timeout, connections=server.connections)
                lost = await server.drain()
                log.info(Event.DAEMON_STOPPED, lost_calls=lost)
            finally:
                relisting.cancel()
                hooks_dir.close()
                await chain.close()


async def _relist(gate: Gate, runtime: RuntimeClient, log: Log, relisted: asyncio.Event) -> None:
    """Learns from the runtime which guarded pods there are: at the start, and now and then for what went past the proxy."""
    while True:
        mark = gate.known.mark()
        try:
            gate.known.relist(mark, await runtime.list_sandboxes(), await runtime.list_containers())
        except RuntimeUnavailableError as e:
            log.debug(Event.RUNTIME_UNREACHABLE, str(e))
            await asyncio.sleep(RELIST_RETRY_S)
            continue
        if not relisted.is_set():
            log.info(Event.PODS_KNOWN, sandboxes=len(gate.known), containers=gate.known.containers)
            relisted.set()
        await asyncio.sleep(RELIST_S)


async def _signalled() -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came.set)
    await came.wait()


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1:])
