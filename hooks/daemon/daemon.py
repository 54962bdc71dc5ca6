"""Run the hook server's daemon: build all parts, start them, watch them and stop them in order."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hooks.attach.attacher import Attacher
from hooks.attach.cni import DeviceInfoFiles, keep_device_info
from hooks.attach.kernel import Kernel
from hooks.attach.netlink import HostKernel
from hooks.daemon.metrics import Metrics
from hooks.daemon.needed import list_needed
from hooks.daemon.parts import Door, Host, make_front_ends, make_preparers, make_rules, make_vendors
from hooks.daemon.readiness import decide_ready
from hooks.daemon.retention import keep_forgetting
from hooks.daemon.settings import (
    AttachBy,
    FrontEndName,
    Settings,
    has_share_library,
    ledger_path,
    read_rails,
    read_trust,
    ready_mark,
    taints_node,
)
from hooks.forms.annotations import prefixes
from hooks.frontends.nri.messages import Runtime as NriRuntime
from hooks.frontends.nri.messages import cdi_problem
from hooks.frontends.nri.place import PluginPlace
from hooks.host.attributes import read_boot_id
from hooks.host.cdi_files import remove_specs
from hooks.host.lists import read_lists
from hooks.host.memlock import memlock_warning
from hooks.host.netns import netns_path
from hooks.inventory.cdi import name_devices, publish
from hooks.inventory.read import read_inventory
from hooks.inventory.watch import InventoryWatch, watched_folders
from hooks.ledger.file import find_ledger_problem
from hooks.ledger.store import Ledger
from hooks.model.inventory import Gpu, Inventory
from hooks.node.bypass import BareStopper
from hooks.node.hand_over import run_hand_over
from hooks.node.node import Node
from hooks.node.node_log import NodeLog
from hooks.node.share_watch import ShareWatch
from hooks.ports import FrontEnd, Vendor
from hooks.report.reporter import Reporter, connect
from hooks.report.taint import Tainter
from lading import __version__
from lading.errors import HostError, RuntimeUnavailableError
from lading.health import Condition, HealthServer, parse_address
from lading.liveness import HELLO, find_own_silence, keep_fed, missing_socket, notify
from lading.log import Event, Log
from lading.needed import find_denied
from lading.runtime import RuntimeClient, decide_cdi_support
from lading.sharestatus import ask
from lading.slowness import describe_slowness, measure_slowness
from lading.sockets import Peer, access_problems, listen, parse_endpoint
from lading.stopping import driver_exchanged, stop_asked
from lading.threads import in_thread
from lading.tracing import open_tracing
from lading.vocabulary import GpuUuid, SandboxId

ANSWER_S: Final = 15.0  # seconds to wait for the driver; a cold driver takes about 2 s on a board of eight cards
Writers = tuple[Reporter | None, Tainter | None]  # parts that write to the API server
CDI_RETRY_S: Final = 1.0  # seconds between two queries while the runtime does not answer, or does not honour CDI names


async def run(settings: Settings, log: Log, *, kernel: Kernel | None = None) -> None:
    """Run until a signal to stop. `kernel` is the host's by default; a simulated node gives another kernel."""
    host_root = Path(settings.host_root)
    runtime_path, listen_path = parse_endpoint(settings.runtime_endpoint), parse_endpoint(settings.listen)
    find_silence = partial(find_own_silence, listen_path, hello=HELLO)

    def rejected(peer: Peer) -> None:
        log.warning(Event.CONNECTION_REJECTED, f"peer has uid {peer.uid}", pid=peer.pid)

    loop = asyncio.get_running_loop()
    tracing = open_tracing("lading-hooks", settings.otlp_endpoint, log, node=settings.node_name)
    async with tracing, RuntimeClient(runtime_path) as runtime:
        with (
            PluginPlace(parse_endpoint(settings.nri_socket), needed=settings.front_end is FrontEndName.NRI) as place,
            Ledger.open(ledger_path(settings)) as ledger,
            listen(listen_path, rejected=rejected) as listener,
        ):
            cdi = RuntimeCdi(
                by_nri=settings.front_end is FrontEndName.NRI, folder=Path(settings.cdi_dir) if settings.writes_specs else None
            )
            trust = read_trust(settings)
            vendors = make_vendors(settings)
            ruled = lru_cache(maxsize=1)(lambda refusal: make_rules(settings, trust, vendors, cdi_refusal=refusal))
            boot_id = read_boot_id(host_root)
            netns: dict[SandboxId, str] = {}
            host = Host(
                settings=settings,
                vendors=vendors,
                ledger=ledger,
                runtime=runtime,
                attacher=make_attacher(settings, kernel or HostKernel(host_root), runtime, ledger, boot_id, log, netns),
                log=log,
                moved=lambda *move: metrics.moved(*move),  # noqa: PLW0108  metrics are made later: they read the node
                netns=netns,
                asked=lambda *call: metrics.asked(*call),  # noqa: PLW0108  likewise
                take_place=place.take,
            )
            node = Node(
                ledger=ledger,
                lists=partial(read_lists, runtime, prefixes=prefixes(), configured={}),
                host_root=host_root,
                boot_id=boot_id,
                log=log,
                preparers=make_preparers(host),
                rules=lambda: ruled(cdi.refusal),
                reconcile_interval_s=settings.reconcile_interval,
                soon=loop.call_soon,
                restore=partial(restore, vendors) if any(vendor.restores for vendor in vendors) else None,
                command=_hand_over_command(settings),
            )
            node.watch = InventoryWatch(
                partial(read_published, settings, vendors),
                folders=watched_folders(host_root, vendors),
                names=[name for vendor in vendors for name in vendor.device_names],
                interval_s=settings.inventory_interval,
                on_change=node.inventory_changed,
                on_failure=node.inventory_failed,
                on_read=node.inventory_read,
            )
            await node.watch.start()
            reporter = _reporter(settings, node, log)
            metrics = Metrics(node, reporter)
            _connect_metrics(host, node, metrics)
            front_ends = make_front_ends(node, host, Door(listener=listener, tracing=tracing))
            tainter = _tainter(settings, node, front_ends, log)
            background = [asyncio.create_task(work) for work in _background(host, node, vendors, cdi, (reporter, tainter))]
            health = HealthServer(
                parse_address(settings.metrics),
                registry=metrics.registry,
                silence=find_silence,
                conditions=lambda: _conditions(settings, node, vendors, (reporter, tainter), front_ends, cdi),
                log=log,
            )
            stop = stop_asked()  # before the first request can arrive, so that a signal interrupts none
            for front_end in front_ends:
                await front_end.start()
            await health.start()
            for problem in access_problems(listen_path):
                log.warning(Event.SOCKET_ACCESS, problem)
            log.info(Event.DAEMON_STARTED, version=__version__, listen=settings.listen, node=settings.node_name)
            if not (settings.rdma_ipc_lock or settings.rdma_memlock):
                _warn_of_memlock(log, host_root, runtime_path, node.inventory)
            notify("READY=1")
            feeding = asyncio.create_task(keep_fed(find_silence, log))
            try:
                await asked_or_failed(stop, background)
                notify("STOPPING=1")
                log.info(Event.DAEMON_STOPPING)
            finally:
                feeding.cancel()
                await health.close()
                for front_end in front_ends:
                    await front_end.close()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await node.watch.close()
                log.info(Event.DAEMON_STOPPED)


class RuntimeCdi:
    """Keep the reason why the runtime does not honour CDI names, by its last answer; empty if it honours them."""

    def __init__(self, *, by_nri: bool, folder: Path | None) -> None:
        """Set how CDI names reach the runtime: `by_nri`, or by CRI. `folder`: folder of Lading's specs; None if others write
        the specs."""
        self._by_nri, self._folder = by_nri, folder
        self.refusal = "the container runtime has not said yet whether it honours CDI names"

    async def keep_asking(self, runtime: RuntimeClient, interval_s: float, log: Log) -> None:
        """Query the runtime repeatedly, because it may be upgraded or configured differently while the daemon runs. Never
        returns."""
        while True:
            before = self.refusal
            try:
                version = await runtime.version()
                support = decide_cdi_support(version, await runtime.status_verbose())
                nri_problem = self._nri_problem(version.runtime_name, version.runtime_version)
                self.refusal = support.problem or self._find_elsewhere(support.spec_dirs) or nri_problem
            except RuntimeUnavailableError as e:
                self.refusal = str(e)
            if self.refusal not in {"", before}:
                log.warning(Event.CDI_UNAVAILABLE, f"containers with GPUs are refused: {self.refusal}")
            await asyncio.sleep(CDI_RETRY_S if self.refusal else interval_s)

    def _find_elsewhere(self, spec_dirs: Sequence[str]) -> str:
        if self._folder is None or any(Path(folder).resolve() == self._folder.resolve() for folder in spec_dirs):
            return ""
        return f"the runtime's cdi_spec_dirs are {', '.join(spec_dirs)}, and not {self._folder} (cdi_dir in hooks.toml)"

    def _nri_problem(self, name: str, version: str) -> str:
        runtime = NriRuntime(name=name, version=version)
        return cdi_problem(runtime) if self._by_nri and not runtime.honours_cdi else ""


def read_configured(settings: Settings, vendors: Sequence[Vendor]) -> Inventory:
    """Read the node's inventory, with the CDI names that the configured injection needs. No file is changed: the specs that the
    daemon would write count as written."""
    inventory = _read(settings, vendors)
    return name_devices(inventory, vendors, mad=settings.rdma_mad) if settings.writes_specs else inventory


def read_published(settings: Settings, vendors: Sequence[Vendor]) -> Inventory:
    """Read the inventory, and write its CDI specs. If this configuration writes none, remove the specs of an earlier one. A
    simulated node removes none from the default folder, because its runtime has another folder."""
    inventory, folder = _read(settings, vendors), Path(settings.cdi_dir)
    if settings.writes_specs:
        return publish(inventory, vendors, folder, mad=settings.rdma_mad)
    if settings.cdi_dir == Settings().cdi_dir and Path(settings.host_root) != Path("/"):
        return inventory
    return replace(inventory, problems=(*inventory.problems, *remove_specs(folder)))


def _read(settings: Settings, vendors: Sequence[Vendor]) -> Inventory:
    of_others = settings.by_cdi and not settings.writes_specs
    return read_inventory(
        Path(settings.host_root),
        vendors=vendors,
        cdi_spec_dirs=[Path(folder) for folder in settings.cdi_spec_dirs] if of_others else [],
        shares_per_gpu=settings.shares_per_gpu,
        isolations=settings.isolations,
        rails=read_rails(settings),
    )


def _connect_metrics(host: Host, node: Node, metrics: Metrics) -> None:
    """Connect the node's events to the metrics. With NRI, also stop containers that run without their devices, and count
    them."""
    loop = asyncio.get_running_loop()
    node.released = metrics.released
    node.answered = lambda answer, seconds: loop.call_soon(metrics.answered, answer, seconds)
    if host.settings.front_end is FrontEndName.NRI:
        stop, stopped = host.runtime.stop_container, metrics.bypassed_stopped
        node.bypass_found = BareStopper(compare_soon=node.compare_soon, stop=stop, log=host.log, stopped=stopped).handle


def _hand_over_command(settings: Settings) -> Callable[[Gpu], Awaitable[None]] | None:
    if not settings.hand_over_command:
        return None
    as_service = Path("/run/systemd/system").is_dir()
    command, deadline_s = settings.hand_over_command, settings.hand_over_deadline
    return partial(run_hand_over, command=command, deadline_s=deadline_s, as_service=as_service)


def restore(vendors: Sequence[Vendor], cards: Collection[GpuUuid]) -> Sequence[str]:
    """Restore the settings that the last holders of these cards may have changed. Return a message for each failed step."""
    return [problem for vendor in vendors if vendor.restores for problem in vendor.restore(cards)]


async def read_in_time(settings: Settings) -> Inventory:
    """Read the inventory for a command whose user waits. Raise HostError if the driver does not answer within `ANSWER_S`, times
    the measured slowness of the node."""
    slowness = measure_slowness()
    answer_s = ANSWER_S * slowness
    try:
        async with asyncio.timeout(answer_s):
            return await in_thread(lambda: read_configured(settings, make_vendors(settings)))
    except TimeoutError as e:
        hint = "lading-doctor; dmesg | grep -i xid"
        reason = f"the driver gave no answer within {answer_s:.3g} s{describe_slowness(slowness)}"
        raise HostError(f"cannot read the GPUs: {reason}", hint=hint) from e


def make_attacher(
    settings: Settings,
    kernel: Kernel,
    runtime: RuntimeClient,
    ledger: Ledger,
    boot_id: str,
    log: Log,
    netns: Mapping[SandboxId, str] = MappingProxyType({}),
) -> Attacher:
    """Return the attacher, also on a node that attaches no VFs (any more). It may have to give VFs back, and a container that
    is adopted later may have a VF. `netns`: network namespaces of sandboxes that the runtime may not show yet."""

    async def netns_of(sandbox: SandboxId) -> str | None:
        if (path := netns.get(sandbox)) is not None:
            return path
        status = await runtime.sandbox_status(sandbox, verbose=True)
        return None if status is None else netns_path(status)

    return Attacher(
        journal=ledger.journal,
        kernel=kernel,
        netns_of=netns_of,
        stopped=ledger.is_stopped,
        boot_id=boot_id,
        log=log,
        deadline_s=settings.attach_deadline,
    )


def _background(
    host: Host, node: Node, vendors: Sequence[Vendor], cdi: RuntimeCdi, writers: Writers
) -> Iterator[Coroutine[None, None, None]]:
    """Yield the daemon's background work. If some of it ends, so does the daemon."""
    settings, log = host.settings, host.log
    yield node.keep_reconciled()
    yield keep_forgetting(host.ledger.history, days=settings.audit_days, node_log=NodeLog(log), clock=node.clock)
    if settings.attach is AttachBy.CNI:
        files = DeviceInfoFiles(Path(settings.host_root), settings.rdma_resource)
        yield keep_device_info(files, lambda: node.inventory, interval_s=settings.inventory_interval, log=log)
    yield driver_exchanged(partial(find_outdated, vendors), settings.inventory_interval, log)
    if settings.by_cdi:
        yield cdi.keep_asking(host.runtime, settings.inventory_interval, log)
    reporter, tainter = writers
    if reporter is not None:
        yield reporter.keep_reporting()
    if tainter is not None:
        yield tainter.keep_tainted()
    if has_share_library(settings):
        ask_shares = partial(ask, parse_endpoint(settings.shares_socket))
        watch = ShareWatch(node=node, vendors=vendors, ask=ask_shares, tolerance_mib=settings.share_tolerance, log=log)
        yield watch.keep_scanning()


def find_outdated(vendors: Sequence[Vendor]) -> str:
    """Return why this process cannot use a vendor's driver any more, although a new process could; else an empty text."""
    return "; ".join(filter(None, (vendor.outdated() for vendor in vendors)))


def _reporter(settings: Settings, node: Node, log: Log) -> Reporter | None:
    if not settings.report:
        return None
    return Reporter(
        node,
        node_name=settings.node_name,
        connect=partial(connect, settings.kubeconfig),
        log=log,
        use_interval_s=settings.report_use_interval,
    )


def _tainter(settings: Settings, node: Node, front_ends: Sequence[FrontEnd], log: Log) -> Tainter | None:
    if not taints_node(settings):
        return None

    def find_problem() -> str:
        """Return the reason why no container could be created on this node, so that no pod should be placed here."""
        problems = [problem for one in front_ends for problem in one.conditions().values() if problem]
        return "; ".join(problems) if problems or node.reconciled else "the runtime's lists have not been compared yet"

    return Tainter(
        find_problem,
        node_name=settings.node_name,
        mark=ready_mark(settings),
        connect=partial(connect, settings.kubeconfig),
        log=log,
    )


def _conditions(
    settings: Settings,
    node: Node,
    vendors: Sequence[Vendor],
    writers: Writers,
    front_ends: Sequence[FrontEnd],
    cdi: RuntimeCdi,
) -> tuple[Condition, ...]:
    reporter, tainter = writers
    return decide_ready(
        inventory_age_s=node.watch.age_s if node.watch else float("inf"),
        inventory_interval_s=settings.inventory_interval,
        reconcile_age_s=node.reconcile_age_s,
        reconcile_interval_s=settings.reconcile_interval,
        ledger=find_ledger_problem(node.ledger.path, node.ledger.last_write),
        socket=missing_socket(parse_endpoint(settings.listen)),
        bypassed=node.bypassed,
        driver_files="; ".join(filter(None, (vendor.problem(node.inventory or Inventory()) for vendor in vendors))),
        cdi=cdi.refusal if settings.by_cdi else None,
        unhealthy=node.unhealthy,
        denied=tuple(find_denied(list_needed(settings, vendors))),
        report_stale_s=reporter.stale_s if reporter else None,
        report_failure=reporter.failure if reporter else "",
        taint_failure=tainter.failure if tainter else None,
        front_ends={name: problem for one in front_ends for name, problem in one.conditions().items()},
    )


def _warn_of_memlock(log: Log, host_root: Path, runtime_path: Path, inventory: Inventory | None) -> None:
    if inventory and inventory.vfs and (warning := memlock_warning(host_root, runtime_path)):
        log.warning(Event.MEMLOCK_SMALL, warning)


async def asked_or_failed(stop: asyncio.Event, background: Sequence[asyncio.Task[None]]) -> None:
    """Wait for a signal, or for the end of background work: its error is raised, and an end without an error stops the daemon,
    so that it is started anew."""
    signalled = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([signalled, *background], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    for task in done:
        task.result()
