"""List every implementation of a port, one line for each, and make each from the configuration.

Tests: tests/unit/hooks/daemon/test_settings.py
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from hooks.attach.attacher import Attacher
from hooks.attach.memory_limits import LIMIT_S, MemoryLimits
from hooks.attach.preparer import Operation, VfPreparer
from hooks.attach.share_folders import ShareFolders, make_hami_folder, write_grant
from hooks.daemon.settings import (
    FrontEndName,
    MpsMemory,
    Settings,
    attaches,
    guard_lock,
    ldcache_program,
    max_age_s,
    mps_folders,
    netdev_policy,
    share_libraries,
)
from hooks.frontends.cri_hook.ledger_service import LedgerService
from hooks.frontends.cri_hook.service import ClosedService, HookServer, HookService
from hooks.frontends.nri.front_end import LadingPlugin, NriFrontEnd
from hooks.frontends.nri.guard.lock import find_guard
from hooks.frontends.nri.link import NriLink
from hooks.grant.cards import UnassignedPolicy
from hooks.grant.decide import Rules
from hooks.grant.dirty import CleanRule
from hooks.grant.pod import PodPolicy
from hooks.grant.rdma import RdmaInjection
from hooks.host.lists import has_ended
from hooks.host.open_folders import REMOVE_S
from hooks.isolation.hami_core import HamiCore
from hooks.isolation.library import ShareLibrary
from hooks.isolation.mps import Mps
from hooks.isolation.tokens import Tokens
from hooks.isolation.unenforced import Unenforced
from hooks.ledger.store import Ledger
from hooks.mig.instances import DIVIDE_S, MigInstances
from hooks.model.assignment import Trust
from hooks.mps.control import Control
from hooks.mps.daemons import PREPARE_S, MpsDaemons
from hooks.node.node import READING_S, Node
from hooks.ports import FrontEnd, Isolation, Preparer, Vendor
from hooks.vendors.nvidia.vendor import Nvidia
from lading.devices.isolation import IsolationName
from lading.log import Log
from lading.runtime import RuntimeClient
from lading.selinux import Label, make_label
from lading.sockets import Listener, parse_endpoint
from lading.tracing import Tracing
from lading.vocabulary import SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Hold the parts from which preparers and front ends are made."""

    settings: Settings
    vendors: Sequence[Vendor]
    ledger: Ledger
    runtime: RuntimeClient
    attacher: Attacher
    log: Log
    moved: Callable[[Operation, float, bool], object] = lambda *_: None
    netns: MutableMapping[SandboxId, str] = field(default_factory=dict)  # network namespaces, from a front end to the attacher
    asked: Callable[[str, float], object] = lambda *_: None  # called with the method and seconds of each answered NRI call
    take_place: Callable[[], str] = lambda: ""  # NRI: returns an error if another process is Lading's plugin; else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Hold the socket of the hook API, and the tracing of its answers."""

    listener: Listener
    tracing: Tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparerKind:
    """Hold a preparer's constructor, and the maximum seconds that a container waits for it; 0 where these settings need no
    wait."""

    make: Callable[[Host], Preparer]
    wait_s: Callable[[Settings], float]


def _nvidia(settings: Settings) -> Nvidia:
    return Nvidia.of(
        settings,
        host_root=Path(settings.host_root),
        has_shares=IsolationName.TOKENS in settings.isolations,
        ldcache=ldcache_program(settings),
    )


def _nvidia_of(host: Host) -> Nvidia:
    return next(vendor for vendor in host.vendors if isinstance(vendor, Nvidia))


def _library(settings: Settings) -> ShareLibrary:
    return ShareLibrary(libraries=str(share_libraries(settings)), shares_dir=settings.shares_dir)


def _vfs(host: Host) -> Preparer:
    policy = netdev_policy(host.settings)
    return VfPreparer(journal=host.ledger.journal, attacher=host.attacher, policy=policy, moved=host.moved)


def _memory_limits(host: Host) -> Preparer:
    limit = _nvidia_of(host).limit_memory
    return MemoryLimits(host_root=Path(host.settings.host_root), limit=limit, grants=host.ledger.grants)


def _label(settings: Settings) -> Label:
    host_root = Path(settings.host_root)
    return make_label(host_root, settings.view(host_root))


def _mps(settings: Settings) -> Isolation:
    library = _library(settings) if settings.mps_memory is MpsMemory.CONTAINER else None
    return Mps(folders=mps_folders(settings), library=library)


def _mps_daemons(host: Host) -> Preparer:
    settings, folders = host.settings, mps_folders(host.settings)
    return MpsDaemons(
        folders=folders,
        control=lambda uuid: Control(uuid=uuid, folders=folders, command=settings.mps_control, label=_label(host.settings)),
        set_exclusive=_nvidia_of(host).set_exclusive,
        grants=host.ledger.grants,
        log=host.log,
    )


def _mig_instances(host: Host) -> Preparer:
    vendors = {vendor.name: vendor for vendor in host.vendors}
    host_root = Path(host.settings.host_root)
    return MigInstances(
        divide=lambda gpu, granted: vendors[gpu.vendor].divide(host_root, gpu, granted), grants=host.ledger.grants, log=host.log
    )


def _cri_hook(node: Node, host: Host, door: Door) -> FrontEnd:
    """Serve the hook API's socket: an operator's requests always, the proxy's only if the proxy is the node's front end."""
    by_hand = LedgerService(node, host.attacher, host.log)
    is_way_in = host.settings.front_end is FrontEndName.CRI_HOOK
    service = HookService(node, tracing=door.tracing) if is_way_in else ClosedService()
    return HookServer(service, host.log, by_hand, listener=door.listener)


def _nri(node: Node, host: Host, _: Door) -> FrontEnd | None:
    settings = host.settings
    if settings.front_end is not FrontEndName.NRI:
        return None
    plugin = LadingPlugin(node=node, netns=host.netns, log=host.log, has_ended=partial(has_ended, host.runtime))
    link = NriLink(
        socket=parse_endpoint(settings.nri_socket),
        plugin=plugin,
        log=host.log,
        answered=host.asked,
        take_place=host.take_place,
    )
    return NriFrontEnd(link=link, plugin=plugin, find_guard=partial(find_guard, guard_lock(settings)))


def _has(settings: Settings, isolation: IsolationName) -> bool:
    return isolation in settings.isolations


VENDORS: Final[Sequence[Callable[[Settings], Vendor]]] = (_nvidia,)
ISOLATIONS: Final[Sequence[Callable[[Settings], Isolation]]] = (
    lambda of: Unenforced(),
    lambda of: Tokens(library=_library(of), by_driver=of.limits_by_driver),
    _mps,
    lambda of: HamiCore(library=of.hami_library, folder=of.hami_dir),
)
PREPARERS: Final = (
    PreparerKind(make=_mig_instances, wait_s=lambda of: DIVIDE_S + READING_S if of.mig_cards else 0.0),
    PreparerKind(
        make=_memory_limits, wait_s=lambda of: LIMIT_S if _has(of, IsolationName.TOKENS) and of.limits_by_driver else 0.0
    ),
    PreparerKind(
        make=lambda host: ShareFolders(
            root=Path(host.settings.shares_dir),
            isolations=frozenset({IsolationName.TOKENS, IsolationName.MPS}),  # grants of MPS where the answer has one
            fill=partial(write_grant, label=_label(host.settings)),
        ),
        wait_s=lambda of: 0.0,
    ),
    PreparerKind(
        make=lambda host: ShareFolders(
            root=Path(host.settings.hami_dir),
            isolations=frozenset({IsolationName.HAMI_CORE}),
            fill=partial(make_hami_folder, label=_label(host.settings)),
            renewed=True,
        ),
        wait_s=lambda of: REMOVE_S if _has(of, IsolationName.HAMI_CORE) else 0.0,
    ),
    PreparerKind(make=_mps_daemons, wait_s=lambda of: PREPARE_S if _has(of, IsolationName.MPS) else 0.0),
    PreparerKind(make=_vfs, wait_s=lambda of: of.attach_deadline if attaches(of) else 0.0),
)
FRONT_ENDS: Final[Sequence[Callable[[Node, Host, Door], FrontEnd | None]]] = (_cri_hook, _nri)


def make_vendors(settings: Settings) -> tuple[Vendor, ...]:
    return tuple(make(settings) for make in VENDORS)


def make_preparers(host: Host) -> tuple[Preparer, ...]:
    return tuple(kind.make(host) for kind in PREPARERS)


def sum_waits_s(settings: Settings) -> float:
    """Return the maximum seconds that a container waits for all preparers of this node."""
    return sum(kind.wait_s(settings) for kind in PREPARERS)


def make_front_ends(node: Node, host: Host, door: Door) -> tuple[FrontEnd, ...]:
    return tuple(filter(None, (make(node, host, door) for make in FRONT_ENDS)))


def make_rules(settings: Settings, trust: Trust, vendors: Sequence[Vendor], *, cdi_refusal: str) -> Rules:
    """Return the rules for decisions. `cdi_refusal`: the reason why the runtime does not honour CDI names; empty if it does."""
    return Rules(
        node_name=settings.node_name,
        trust=trust,
        pod=PodPolicy(
            unsupported_handlers=settings.unsupported_handlers,
            allow_privileged=settings.allow_privileged,
            coexist=settings.coexist,
        ),
        unassigned=UnassignedPolicy(
            hide=settings.hide_unassigned,
            exempt_namespaces=frozenset(settings.exempt_namespaces),
            coexist=settings.coexist,
        ),
        vendors=vendors,
        isolations=tuple(make(settings) for make in ISOLATIONS),
        cdi_refusal=cdi_refusal,
        rdma=RdmaInjection(
            resource=settings.rdma_resource,
            mad=settings.rdma_mad,
            memlock=settings.rdma_memlock,
            ipc_lock=settings.rdma_ipc_lock,
        ),
        netdev=netdev_policy(settings),
        unhealthy=settings.unhealthy,
        clean=CleanRule(
            checks=frozenset(settings.clean_checks),
            tolerance_mib=settings.dirty_tolerance,
            tolerated=frozenset(settings.tolerated_processes),
        ),
        max_age_s=max_age_s(settings.inventory_interval),
    )
