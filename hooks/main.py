"""`lading-hooks`: the hook server, and what a person asks of a node's devices without one."""

import argparse
import asyncio
import faulthandler
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from grpclib.server import Server

from hooks import render
from hooks.assignment.model import Refusal
from hooks.boot import read_boot_id
from hooks.decide import Rules, View
from hooks.grant.gpu import DriverMount, GpuInjection, GpuMode
from hooks.inventory.driver import read_cdi_names, read_driver_mounts
from hooks.inventory.model import Inventory
from hooks.inventory.read import read_inventory
from hooks.inventory.watch import InventoryWatch, watched_folders
from hooks.ledger.foreign import find_foreign
from hooks.ledger.model import Grant
from hooks.ledger.reconcile import rebuild
from hooks.ledger.store import Ledger, read_ledger, replace_ledger
from hooks.memlock import memlock_warning
from hooks.metrics import Metrics
from hooks.node import Node
from hooks.readiness import decide_ready, find_ledger_problem
from hooks.registration import render_registration
from hooks.service import HookService
from hooks.settings import CONFIG, Settings, check, read_trust, rules
from lading import __version__
from lading.errors import ConfigError, LadingError, RuntimeUnavailableError, die
from lading.health import Condition, HealthServer, parse_address
from lading.liveness import HELLO, find_own_silence, keep_fed, missing_socket
from lading.log import Event, Log, open_log, printable
from lading.notify import notify
from lading.runtime import CdiSupport, RuntimeClient, decide_cdi_support
from lading.settings import add_flags, load, parse_args
from lading.sockets import Peer, access_problems, listen, parse_endpoint

LEDGER: Final = "node.db"
CDI_NOT_ASKED: Final = "the container runtime has not said yet whether it honours CDI names"


def main(argv: Sequence[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    command = _COMMANDS.get(args[0]) if args else None
    try:
        if command:
            command(args[1:])
        else:
            serve(args)
    except ConfigError as e:
        die(e, status=2)
    except LadingError as e:
        die(e)


def serve(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks",
        description="The hook server: knows this node's GPUs and RDMA VFs and who holds them, and tells the CRI proxy what a "
        "container gets.",
        epilog="other commands: lading-hooks render -f pod.yaml | registration | rebuild-ledger (each has --help).  "
        "journalctl -t lading-hooks LADING_EVENT=grant.refused   shows what was refused and why",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lading-hooks {__version__}")
    add_flags(parser, Settings, config=CONFIG)
    settings = parse_args(Settings, parser.parse_args(argv), check)
    faulthandler.enable()  # where the loop hung, when systemd's watchdog ends us
    asyncio.run(run(settings, open_log("lading-hooks", settings.log_level)))


async def run(settings: Settings, log: Log) -> None:
    host_root = Path(settings.host_root)
    runtime_path, listen_path = parse_endpoint(settings.runtime_endpoint), parse_endpoint(settings.listen)
    find_silence = partial(find_own_silence, listen_path, hello=HELLO)

    def rejected(peer: Peer) -> None:
        log.warning(Event.CONNECTION_REJECTED, f"peer has uid {peer.uid}", pid=peer.pid)

    async with RuntimeClient(runtime_path) as runtime:
        with (
            Ledger.open(Path(settings.state_dir) / LEDGER) as ledger,
            listen(listen_path, rejected=rejected) as listener,
        ):
            injection = Injection(settings, runtime_cdi=CdiSupport(problem=CDI_NOT_ASKED))
            trust = read_trust(settings)
            node = Node(
                ledger=ledger,
                runtime=runtime,
                host_root=host_root,
                boot_id=read_boot_id(host_root),
                log=log,
                rules=lambda inventory: rules(settings, trust, injection.of(inventory)),
                reconcile_interval_s=settings.reconcile_interval,
            )
            node.watch = InventoryWatch(
                partial(read_inventory, host_root, nvml_library=_library(settings)),
                folders=watched_folders(host_root),
                interval_s=settings.inventory_interval,
                on_change=node.inventory_changed,
                on_failure=node.inventory_failed,
            )
            await node.watch.start()
            background = [asyncio.create_task(node.keep_reconciled())]
            if settings.gpu_mode is GpuMode.CDI:
                background.append(asyncio.create_task(injection.keep_cdi_support(runtime, settings.inventory_interval)))
            metrics = Metrics(node)
            health = HealthServer(
                parse_address(settings.metrics),
                registry=metrics.registry,
                silence=find_silence,
                conditions=lambda: _conditions(settings, node),
                log=log,
            )
            server = Server([HookService(node, answered=metrics.answered)])
            stop = _stop_asked()  # before the first question can come, so that none is cut off
            await server.start(sock=listener)
            await health.start()
            for problem in access_problems(listen_path):
                log.warning(Event.SOCKET_ACCESS, problem)
            log.info(Event.DAEMON_STARTED, version=__version__, listen=settings.listen, node=settings.node_name)
            if not settings.rdma_ipc_lock:
                _warn_of_memlock(log, host_root, runtime_path, node.watch.current)
            notify("READY=1")
            feeding = asyncio.create_task(keep_fed(find_silence, log))
            try:
                await _asked_or_failed(stop, background)
                notify("STOPPING=1")
                log.info(Event.DAEMON_STOPPING)
            finally:
                feeding.cancel()
                await health.close()
                server.close()
                await server.wait_closed()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await node.watch.close()
                log.info(Event.DAEMON_STOPPED)


class Injection:
    """How GPUs are injected on this node at this moment; driver files and CDI specs are read anew with each inventory."""

    def __init__(self, settings: Settings, *, runtime_cdi: CdiSupport) -> None:
        self._settings = settings
        self._runtime_cdi = runtime_cdi
        self._of: tuple[Inventory | None, GpuInjection] = (None, GpuInjection(mode=settings.gpu_mode))

    def of(self, inventory: Inventory) -> GpuInjection:
        if self._of[0] is not inventory:
            self._of = (inventory, self._read(inventory))
        return self._of[1]

    def _read(self, inventory: Inventory) -> GpuInjection:
        settings = self._settings
        mounts: tuple[DriverMount, ...] = ()
        names: frozenset[str] = frozenset()
        if settings.gpu_mode is GpuMode.DEVICES and settings.driver_root and inventory.driver:
            mounts = read_driver_mounts(Path(settings.driver_root), inventory.driver.version)
        if settings.gpu_mode is GpuMode.CDI:
            names = read_cdi_names(Path(folder) for folder in settings.cdi_spec_dirs)
        return GpuInjection(
            mode=settings.gpu_mode, driver_mounts=mounts, cdi_names=names, cdi_refusal=self._runtime_cdi.problem
        )

    async def keep_cdi_support(self, runtime: RuntimeClient, interval_s: float) -> None:
        """The runtime may be upgraded, or reconfigured, under a running daemon. Never returns."""
        while True:
            try:
                support = decide_cdi_support(await runtime.version(), await runtime.status_verbose())
            except RuntimeUnavailableError as e:
                support = CdiSupport(problem=str(e))
            if support != self._runtime_cdi:
                self._runtime_cdi, self._of = support, (None, self._of[1])
            await asyncio.sleep(interval_s if support.supported else 1.0)


def _conditions(settings: Settings, node: Node) -> tuple[Condition, ...]:
    return decide_ready(
        inventory_age_s=node.watch.age_s if node.watch else float("inf"),
        inventory_interval_s=settings.inventory_interval,
        reconcile_age_s=node.reconcile_age_s,
        reconcile_interval_s=settings.reconcile_interval,
        ledger=find_ledger_problem(node.ledger.path, node.ledger.last_write),
        socket=missing_socket(parse_endpoint(settings.listen)),
        bypassed=node.bypassed,
    )


def _warn_of_memlock(log: Log, host_root: Path, runtime_path: Path, inventory: Inventory | None) -> None:
    if inventory and inventory.vfs and (warning := memlock_warning(host_root, runtime_path)):
        log.warning(Event.MEMLOCK_SMALL, warning)


def _library(settings: Settings) -> Path | None:
    return Path(settings.nvml_library) if settings.nvml_library else None


def _stop_asked() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked


async def _asked_or_failed(stop: asyncio.Event, background: Sequence[asyncio.Task[None]]) -> None:
    """Background work never ends by itself. If it does, its error ends the daemon; one without it is worse."""
    signalled = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([signalled, *background], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    for task in done:
        task.result()


# ---- what a person asks


def _render(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks render",
        description="What this node would inject for a pod, container by container, or why not. "
        "Exit status 3 if anything is refused.",
    )
    parser.add_argument("-f", "--file", required=True, help="manifest of one Pod; - for standard input")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    settings = parse_args(Settings, args, check)
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot read {args.file}: {e}") from e
    pod = render.read_pod(text, args.file)
    for warning in render.warnings(pod):
        print(f"warning: {printable(warning)}", file=sys.stderr)
    rendered = render.render_pod(pod, *_node_now(settings))
    if args.output == "json":
        print(json.dumps(render.as_json(rendered), indent=2))
    else:
        print(render.as_text(rendered), end="")
    if any(isinstance(one.result, Refusal) for one in rendered):
        raise SystemExit(3)


def _node_now(settings: Settings) -> tuple[Rules, View, tuple[Grant, ...]]:
    """The node as it is, read without a daemon or a runtime: the ledger is only looked at."""
    host_root = Path(settings.host_root)
    inventory = read_inventory(host_root, nvml_library=_library(settings))
    grants = read_ledger(Path(settings.state_dir) / LEDGER)
    view = View(inventory=inventory, foreign=find_foreign(host_root, inventory, grants))
    injection = Injection(settings, runtime_cdi=CdiSupport())
    return rules(settings, read_trust(settings), injection.of(inventory)), view, grants


def _registration(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks registration",
        description="The registration of this hook server, for the CRI proxy's hooks folder: "
        "lading-hooks registration > /etc/lading/hooks.d/50-lading.json",
    )
    add_flags(parser, Settings, config=CONFIG)
    settings = load(Settings, parser.parse_args(argv))
    print(json.dumps(render_registration(settings), indent=2))


def _rebuild_ledger(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks rebuild-ledger",
        description="Writes a new ledger from what the runtime's containers say they were granted. The old one is set aside. "
        "Stop lading-hooks first.",
    )
    add_flags(parser, Settings, config=CONFIG)
    settings = load(Settings, parser.parse_args(argv))
    asyncio.run(_rebuild(settings))


async def _rebuild(settings: Settings) -> None:
    path = Path(settings.state_dir) / LEDGER
    async with RuntimeClient(parse_endpoint(settings.runtime_endpoint)) as runtime:
        actions = rebuild(
            await runtime.list_sandboxes(),
            await runtime.list_containers(),
            now=int(time.time()),
            boot_id=read_boot_id(Path(settings.host_root)),
        )
    for problem in actions.problems:
        print(f"problem: {problem.message}", file=sys.stderr)
    if not actions.reconciled:
        die("cannot rebuild the ledger from an incomplete list", hint="is the runtime up?")
    aside = replace_ledger(path, actions.adopt)
    print(f"{path}: {len(actions.adopt)} grants" + (f"; the old ledger is {aside}" if aside else ""))


_COMMANDS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    "render": _render,
    "registration": _registration,
    "rebuild-ledger": _rebuild_ledger,
}

if __name__ == "__main__":
    main()
