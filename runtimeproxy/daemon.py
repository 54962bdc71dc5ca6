"""Run the proxy from its start to its end: its parts, its readiness, its background work, and the drain.

The cached pods are compared with the runtime's lists at the start, and regularly, because calls may bypass the proxy. Calls of
pods without Lading's annotations are served even if the proxy is not ready. The proxy is not ready if it guards prefixes but
has no registration, because every pod with such an annotation is then refused.

A process that ends cannot be scraped any more, so calls that a stop interrupted are counted in a small file beside the socket.
The folder is on a tmpfs: a reboot begins at 0, as with any counter. If the file cannot be read or written, only the number is
lost.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lading import __version__
from lading.errors import RuntimeUnavailableError
from lading.health import Condition, HealthServer, parse_address
from lading.liveness import keep_fed, missing_socket, notify
from lading.log import Event, Log
from lading.needed import Needed, find_denied
from lading.runtime import RuntimeClient
from lading.sockets import access_problems, listen, parse_endpoint
from lading.stopping import stop_asked
from lading.tracing import open_tracing
from runtimeproxy.call.sandbox_cache import SandboxCache
from runtimeproxy.chain.chain import Chain
from runtimeproxy.chain.endpoint import Failure
from runtimeproxy.chain.hooksdir import HooksDir
from runtimeproxy.chain.registrations import Registration
from runtimeproxy.gate import Gate
from runtimeproxy.metrics import Gauges, Metrics
from runtimeproxy.server import Server
from runtimeproxy.settings import Settings

# Calls wait this many seconds for the first relist: before it, a teardown call's pod is unknown and its hooks are skipped.
FIRST_RELIST_S: Final = 1.0
# The lists are read at this interval, in seconds, to find calls that bypassed the proxy.
RELIST_S: Final = 60.0
# The lists are read at this interval, in seconds, while the runtime does not answer.
RELIST_RETRY_S: Final = 1.0
# systemd gives the proxy this many seconds to stop, besides the drain.
STOP_S: Final = 15.0
_LONGEST: Final = 20  # maximum digits of the stored number of lost calls


class Relist:
    def __init__(self, cache: SandboxCache, runtime: RuntimeClient, log: Log) -> None:
        self.tried = asyncio.Event()  # set after the first attempt, successful or not
        self.done = asyncio.Event()  # set after the first success
        self.problem = "not asked yet"
        self._cache = cache
        self._runtime = runtime
        self._log = log

    async def keep(self) -> None:
        """Update the cache from the runtime's lists, every RELIST_S seconds. Never returns."""
        while True:
            mark = self._cache.mark()
            try:
                self._cache.relist(mark, await self._runtime.list_sandboxes(), await self._runtime.list_containers())
            except RuntimeUnavailableError as e:
                self.problem = e.message
                self._log.debug(Event.RUNTIME_UNREACHABLE, str(e))
                self.tried.set()
                await asyncio.sleep(RELIST_RETRY_S)
                continue
            self.problem = ""
            if not self.done.is_set():
                self._log.info(Event.PODS_KNOWN, sandboxes=len(self._cache), containers=self._cache.containers)
                self.tried.set()
                self.done.set()
            await asyncio.sleep(RELIST_S)


async def run(settings: Settings, log: Log) -> None:
    runtime_path, listen_path = parse_endpoint(settings.runtime_endpoint), parse_endpoint(settings.listen)
    metrics = Metrics()

    defer = asyncio.get_running_loop().call_soon  # a call must not wait for its metrics and log records, so they are deferred

    def answered(hook: str, seconds: float, failure: Failure | None) -> None:
        defer(metrics.hook_answered, hook, seconds, failure.reason if failure else None)

    tracing = open_tracing("lading-runtimeproxy", settings.otlp_endpoint, log)
    async with tracing, RuntimeClient(runtime_path) as runtime:
        chain = Chain(log, answered=answered)
        gate = Gate(chain, runtime, log, guarded_prefixes=settings.guarded_prefixes, tracing=tracing, defer=defer)
        server = Server(settings, runtime=runtime_path, gate=gate, metrics=metrics, log=log)
        relist = Relist(gate.cache, runtime, log)
        with listen(listen_path, like=runtime_path, rejected=server.rejected) as listener:

            def use(registrations: tuple[Registration, ...]) -> None:
                gate.use(registrations)
                server.hold()
                metrics.forget_hooks(r.name for r in registrations)

            hooks_dir = HooksDir(Path(settings.hooks_dir), use, log)
            hooks_dir.start()
            lost_before = read_lost(lost_file(listen_path))
            metrics.show(lambda: _gauges(server, relist, chain, log, lost_before))
            health = HealthServer(
                parse_address(settings.metrics),
                registry=metrics.registry,
                silence=server.find_silence,
                conditions=lambda: _conditions(settings, server, relist, hooks_dir, chain),
                log=log,
            )
            background = [
                asyncio.create_task(relist.keep()),
                asyncio.create_task(chain.keep_probing()),
                asyncio.create_task(_log_access(relist, listen_path, runtime_path, log)),
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


def _gauges(server: Server, relist: Relist, chain: Chain, log: Log, lost_before: int) -> Gauges:
    return Gauges(
        connections=server.connections,
        open_calls=server.open_calls,
        connections_opened=server.connections_opened,
        connections_rejected=server.rejections,
        runtime_up=server.runtime_reachable and not relist.problem,
        hooks_up={name: not silence for name, silence in chain.silences().items()},
        lost_calls=lost_before,
        log_dropped=log.dropped,
    )


def _conditions(settings: Settings, server: Server, relist: Relist, hooks_dir: HooksDir, chain: Chain) -> tuple[Condition, ...]:
    unreachable = "" if server.runtime_reachable else f"{settings.runtime_endpoint} could not be reached at the last attempt"
    return decide_ready(
        runtime=relist.problem or unreachable,
        socket=missing_socket(parse_endpoint(settings.listen)),
        stopping=server.stopping,
        hooks_dir=settings.hooks_dir,
        hooks_dir_problems=hooks_dir.problems,
        hook_silences=chain.silences(),
        guarded_prefixes=settings.guarded_prefixes,
        denied=tuple(find_denied(_needed(settings))),
    )


def _needed(settings: Settings) -> tuple[Needed, ...]:
    endpoint = parse_endpoint(settings.runtime_endpoint)
    return (
        Needed(path=endpoint, what="runtime_endpoint", mode=os.W_OK, optional=True),
        Needed(path=Path(settings.hooks_dir), what="hooks_dir", mode=os.R_OK | os.X_OK),
    )


async def _log_access(relist: Relist, listen_path: Path, runtime_path: Path, log: Log) -> None:
    """Log how owner and mode of a socket that systemd created differ from those of the runtime's own socket."""
    await relist.done.wait()
    for problem in access_problems(listen_path, like=runtime_path):
        log.warning(Event.SOCKET_ACCESS, f"{problem}, as {runtime_path} has it")


def decide_ready(
    *,
    runtime: str,
    socket: str,
    stopping: bool,
    hooks_dir: str,
    hooks_dir_problems: Sequence[str],
    hook_silences: Mapping[str, str],
    guarded_prefixes: Sequence[str],
    denied: Sequence[str] = (),
) -> tuple[Condition, ...]:
    """Return the conditions. `runtime`, `socket` and each value of `hook_silences` (by registration) describe a problem, or
    are empty. `denied` has the files that cannot be opened."""
    unhooked = f"no registration: pods with {', '.join(guarded_prefixes)} are refused" if guarded_prefixes else ""
    folder = "; ".join(hooks_dir_problems) or ("" if hook_silences else unhooked)
    return (
        Condition.unless(runtime, name="runtime"),
        Condition.unless("stopping" if stopping else socket, name="socket"),
        Condition.unless(folder and f"{hooks_dir}: {folder}", name="hooks-dir"),
        Condition.unless("; ".join(denied), name="files", required=False),
        *(Condition.unless(silence, name=f"hook {name}") for name, silence in hook_silences.items()),
    )


def lost_file(listen: Path) -> Path:
    return listen.with_name(listen.name + ".lost-calls")


def read_lost(path: Path) -> int:
    try:
        text = path.read_bytes()[:_LONGEST].decode("ascii", "replace").strip()
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdecimal() else 0


def write_lost(path: Path, calls: int) -> None:
    with contextlib.suppress(OSError):
        path.write_text(f"{calls}\n")
