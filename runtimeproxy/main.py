"""Run `lading-runtimeproxy`: parse its command line, start it, and stop it on a signal.

Tests: tests/unit/runtimeproxy/test_settings.py
"""

import argparse
import asyncio
import contextlib
import faulthandler
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading import __version__
from lading.errors import ConfigError, LadingError, die
from lading.health import Condition, HealthServer, parse_address
from lading.liveness import keep_fed, missing_socket
from lading.log import Event, Log, open_log
from lading.needed import Needed, find_denied
from lading.notify import notify
from lading.runtime import RuntimeClient
from lading.settings import add_flags, parse_args
from lading.sockets import access_problems, listen, parse_endpoint
from lading.stopping import stop_asked
from lading.tracing import open_tracing
from runtimeproxy.call.relist import Relist
from runtimeproxy.chain.chain import Chain
from runtimeproxy.chain.endpoint import Failure
from runtimeproxy.chain.hooksdir import HooksDir
from runtimeproxy.chain.hookwatch import HookWatch
from runtimeproxy.chain.registrations import Registration
from runtimeproxy.gate import Gate
from runtimeproxy.lost import lost_file, read_lost, write_lost
from runtimeproxy.metrics import Gauges, Metrics
from runtimeproxy.readiness import decide_ready
from runtimeproxy.server import Server
from runtimeproxy.settings import CONFIG, Settings

# Calls wait this many seconds for the first relist: before it, a teardown call's pod is unknown and its hooks are skipped.
FIRST_RELIST_S: Final = 1.0
# The event loop waits this many seconds for the GIL while a thread reads a large message; a call needs the GIL several times.
SWITCH_S: Final = 0.0005
# systemd gives the proxy this many seconds to stop, besides the drain.
STOP_S: Final = 15.0
# Each connection needs two file descriptors, besides the process's own.
DESCRIPTORS: Final = 8192


def main(argv: Sequence[str] | None = None) -> None:
    try:
        _serve(sys.argv[1:] if argv is None else argv)
    except LadingError as e:
        die(e)


def _serve(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-runtimeproxy",
        description="The CRI proxy: set kubelet's --container-runtime-endpoint to its socket. It forwards calls unchanged to "
        "the container runtime, and asks hook servers about the few calls that create containers.",
        epilog="lading-doctor   checks this node.  "
        "journalctl -t lading-runtimeproxy LADING_EVENT=call.refused   shows what was refused and why",
    )
    parser.add_argument("--version", action="version", version=f"lading-runtimeproxy {__version__}")
    add_flags(parser, Settings, config=CONFIG)
    settings = parse_args(Settings, parser.parse_args(argv), check)
    log = open_log("lading-runtimeproxy", settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    faulthandler.enable()  # shows where the loop hung when systemd's watchdog ends the process
    asyncio.run(run(settings, log))


def check(settings: Settings) -> None:
    """Check the rules that the types of the settings cannot express. Raises ConfigError."""
    listen_path, runtime = parse_endpoint(settings.listen), parse_endpoint(settings.runtime_endpoint)
    if listen_path == runtime:
        raise ConfigError(f"listen and runtime_endpoint are both {runtime}", hint="the proxy needs a socket of its own")
    parse_address(settings.metrics)
    for prefix in settings.guarded_prefixes:
        if not prefix or not prefix.isascii():
            raise ConfigError(
                f"guarded_prefixes: {prefix!r} is not the beginning of an annotation key", hint='for example "lading.dev/"'
            )


async def run(settings: Settings, log: Log) -> None:
    _raise_descriptor_limit()
    runtime_path, listen_path = parse_endpoint(settings.runtime_endpoint), parse_endpoint(settings.listen)
    metrics, hook_watch = Metrics(), HookWatch()

    soon = asyncio.get_running_loop().call_soon  # a call must not wait for its metrics and log records, so they are deferred

    def answered(hook: str, seconds: float, failure: Failure | None) -> None:
        soon(metrics.hook_answered, hook, seconds, failure.reason if failure else None)
        soon(hook_watch.answered, hook, failure)

    tracing = open_tracing("lading-runtimeproxy", settings.otlp_endpoint, log)
    async with tracing, RuntimeClient(runtime_path) as runtime:
        chain = Chain(log, answered=answered)
        gate = Gate(chain, runtime, log, guarded_prefixes=settings.guarded_prefixes, tracing=tracing, soon=soon)
        server = Server(settings, runtime=runtime_path, gate=gate, metrics=metrics, log=log)
        relist = Relist(gate.cache, runtime, log)
        with listen(listen_path, like=runtime_path, rejected=server.rejected) as listener:

            def use(registrations: tuple[Registration, ...]) -> None:
                gate.use(registrations)
                server.hold()
                hook_watch.use(registrations)
                metrics.forget_hooks(r.name for r in registrations)

            hooks_dir = HooksDir(Path(settings.hooks_dir), use, log)
            hooks_dir.start()
            lost_before = read_lost(lost_file(listen_path))
            metrics.show(lambda: _gauges(server, relist, hook_watch, log, lost_before))
            health = HealthServer(
                parse_address(settings.metrics),
                registry=metrics.registry,
                silence=server.find_silence,
                conditions=lambda: _conditions(settings, server, relist, hooks_dir, hook_watch),
                log=log,
            )
            background = [
                asyncio.create_task(relist.keep()),
                asyncio.create_task(hook_watch.keep_looking()),
                asyncio.create_task(_say_access(relist, listen_path, runtime_path, log)),
            ]
            with contextlib.suppress(TimeoutError):  # a runtime that is missing or hangs must not keep the socket closed
                await asyncio.wait_for(relist.tried.wait(), FIRST_RELIST_S)
            stop = stop_asked()  # SIGTERM is handled before the first call, so that every call gets the drain time
            server.start(listener)
            await health.start()
            log.info(Event.DAEMON_STARTED, version=__version__, listen=settings.listen, runtime=str(runtime_path))
            notify("READY=1")
            background.append(asyncio.create_task(keep_fed(server.find_silence, log)))
            try:
                await stop.wait()
                notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int((settings.drain_timeout + STOP_S) * 1e6)}")
                log.info(Event.DAEMON_STOPPING, drain_timeout=settings.drain_timeout, connections=server.connections)
                lost = await server.drain()
                if lost:
                    write_lost(lost_file(listen_path), lost_before + lost)
                log.info(Event.DAEMON_STOPPED, lost_calls=lost)
            finally:
                for task in background:
                    task.cancel()
                await health.close()
                hooks_dir.close()
                await chain.close()


def _gauges(server: Server, relist: Relist, hook_watch: HookWatch, log: Log, lost_before: int) -> Gauges:
    return Gauges(
        connections=server.connections,
        open_calls=server.open_calls,
        connections_opened=server.connections_opened,
        connections_rejected=server.rejections,
        runtime_up=server.runtime_there and not relist.problem,
        hooks_up={name: not silence for name, silence in hook_watch.silences().items()},
        lost_calls=lost_before,
        log_dropped=log.dropped,
    )


def _conditions(
    settings: Settings, server: Server, relist: Relist, hooks_dir: HooksDir, hook_watch: HookWatch
) -> tuple[Condition, ...]:
    gone = "" if server.runtime_there else f"{settings.runtime_endpoint} could not be reached at the last attempt"
    return decide_ready(
        runtime=relist.problem or gone,
        socket=missing_socket(parse_endpoint(settings.listen)),
        stopping=server.stopping,
        hooks_dir=settings.hooks_dir,
        hooks_dir_problems=hooks_dir.problems,
        hook_silences=hook_watch.silences(),
        guarded_prefixes=settings.guarded_prefixes,
        denied=tuple(find_denied(_needed(settings))),
    )


def _needed(settings: Settings) -> tuple[Needed, ...]:
    endpoint = parse_endpoint(settings.runtime_endpoint)
    return (
        Needed(path=endpoint, what="runtime_endpoint", mode=os.W_OK, optional=True),
        Needed(path=Path(settings.hooks_dir), what="hooks_dir", mode=os.R_OK | os.X_OK),
    )


async def _say_access(relist: Relist, listen_path: Path, runtime_path: Path, log: Log) -> None:
    """Log how owner and mode of a socket that systemd created differ from those of the runtime's own socket."""
    await relist.done.wait()
    for problem in access_problems(listen_path, like=runtime_path):
        log.warning(Event.SOCKET_ACCESS, f"{problem}, as {runtime_path} has it")


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1:])
