"""`lading-hooks`: the hook server, and what a person asks of a node's devices without one."""

import argparse
import asyncio
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
from hooks.ledger.reconcile import rebuild
from hooks.ledger.store import Ledger, holding_of, read_ledger, replace_ledger
from hooks.memlock import memlock_warning
from hooks.node import Node
from hooks.registration import render_registration
from hooks.service import HookService
from hooks.settings import CONFIG, Settings, check, read_trust, rules
from lading import __version__
from lading.errors import ConfigError, LadingError, RuntimeUnavailableError, die
from lading.log import Event, Log, open_log
from lading.notify import notify
from lading.runtime import CdiSupport, RuntimeClient, decide_cdi_support
from lading.settings import add_flags, load, parse_args
from lading.sockets import Peer, listen, parse_endpoint

LEDGER: Final = "node.db"


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
    asyncio.run(run(settings, open_log("lading-hooks", settings.log_level)))


async def run(settings: Settings, log: Log) -> None:
    host_root = Path(settings.host_root)
    runtime_path = parse_endpoint(settings.runtime_endpoint)

    def rejected(peer: Peer) -> None:
        log.warning(Event.CONNECTION_REJECTED, f"peer has uid {peer.uid}", pid=peer.pid)

    async with RuntimeClient(runtime_path) as runtime:
        with (
            Ledger.open(Path(settings.state_dir) / LEDGER) as ledger,
            listen(parse_endpoint(settings.listen), rejected=rejected) as listener,
        ):
            injection = Injection(settings)
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
            server = Server([HookService(node)])
            await server.start(sock=listener)
            log.info(Event.DAEMON_STARTED, version=__version__, listen=settings.listen, node=settings.node_name)
            if not settings.rdma_ipc_lock:
                _warn_of_memlock(log, host_root, runtime_path, node.watch.current)
            notify("READY=1")
            try:
                await _signalled()
                notify("STOPPING=1")
                log.info(Event.DAEMON_STOPPING)
            finally:
                server.close()
                await server.wait_closed()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await node.watch.close()
                log.info(Event.DAEMON_STOPPED)


class Injection:
    """How GPUs are injected on this node at this moment; driver files and CDI specs are read anew with each inventory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runtime_cdi = CdiSupport(problem="the container runtime has not said yet whether it honours CDI names")
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


def _warn_of_memlock(log: Log, host_root: Path, runtime_path: Path, inventory: Inventory | None) -> None:
    if inventory and inventory.vfs and (warning := memlock_warning(host_root, runtime_path)):
        log.warning(Event.MEMLOCK_SMALL, warning)


def _library(settings: Settings) -> Path | None:
    return Path(settings.nvml_library) if settings.nvml_library else None


async def _signalled() -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came.set)
    await came.wait()


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
    rendered = render.render_pod(pod, *_node_now(settings))
    if args.output == "json":
        print(json.dumps(render.as_json(rendered), indent=2))
    else:
        print(render.as_text(rendered), end="")
    if any(isinstance(one.result, Refusal) for one in rendered):
        raise SystemExit(3)


def _node_now(settings: Settings) -> tuple[Rules, View]:
    """The node as it is, read without a daemon: the ledger is only looked at."""
    inventory = read_inventory(Path(settings.host_root), nvml_library=_library(settings))
    injection = Injection(settings)
    grants = read_ledger(Path(settings.state_dir) / LEDGER)
    held = tuple(holding_of(grant) for grant in grants)
    return rules(settings, read_trust(settings), injection.of(inventory)), View(inventory=inventory, held=held)


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
