"""Read a node for the checks of `lading-doctor`; a reading that several checks use is made once.

Take the valid part of the settings of both daemons. Return readings. Files and sockets are read in threads, the driver in a
process, so that a reading that hangs delays only the checks that use it. Nothing is changed.

Tests: tests/unit/doctor/test_units.py
"""

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from doctor import cluster, rdma, read_node
from doctor.api import read_api, read_configz
from doctor.config import ConfigReading
from doctor.crun import CrunReading, read_crun
from doctor.handler import HandlerReading, read_handler
from doctor.hooks_dir import FolderReading, LoadReading, RegistrationReading, ServerReading
from doctor.keys import KeysReading
from doctor.kubelet import read_kubelet, unit
from doctor.kubelet.kubelet import KubeletReading, Route
from doctor.mps import MpsReading, read_memory, read_mps
from doctor.nri import NriReading, read_validator
from doctor.nvidia import cards
from doctor.nvidia.gpus import InjectionReading, LoaderCacheReading, ReloadReading
from doctor.read import ANSWER_S, read_listener, read_reply, read_runtime, read_socket, show_units
from doctor.read_node import read_own_specs
from doctor.ready import DaemonReply, VersionsReading
from doctor.runtime import CgroupDrivers, RuntimeReading, is_selinux_used, systemd_cgroups
from doctor.selinux import SelinuxReading, read_selinux
from doctor.sockets import SocketReading
from doctor.units import PROPERTIES
from hooks.attach.netlink import HostKernel
from hooks.attach.overlay import with_attached
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import (
    FrontEndName,
    MpsMemory,
    Settings,
    attaches,
    has_share_library,
    ldcache_program,
    ledger_path,
    mps_folders,
    share_libraries,
    taints_node,
)
from hooks.host.attributes import read_attribute
from hooks.host.cdi_files import read_cdi_names
from hooks.host.memlock import memlock_warning
from hooks.host.rdma import read_rdma
from hooks.ledger.store import read_journal
from hooks.model.inventory import Inventory
from hooks.mps.control import ANSWER_S as MPS_ANSWER_S
from lading import __version__
from lading.checks.run import ElsewhereError, Readings, read_shared
from lading.devices.isolation import IsolationName
from lading.driverfiles import find_driver, read_driver_versions
from lading.errors import HostError, StateError
from lading.log import Event, Level, Log
from lading.runtime import CdiSupport, decide_cdi_support
from lading.sockets import Access, parse_endpoint, wanted_access
from lading.threads import in_thread
from runtimeproxy.chain.hooksdir import HooksDir
from runtimeproxy.chain.registrations import Registration, parse_registration
from runtimeproxy.settings import Settings as ProxySettings

HOOKS: Final = "lading-hooks"
PROXY: Final = "lading-runtimeproxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiReading:
    needed: bool  # whether gpu_mode = cdi
    support: CdiSupport
    folder: str = ""  # folder of the CDI specs that lading-hooks writes; empty: it writes none


class Host(Readings):
    """Read one node, according to the configurations of its daemons. `configs` has the installed daemons only."""

    def __init__(
        self, *, hooks: Settings, proxy: ProxySettings, configs: Mapping[str, ConfigReading], root: Path, slowness: float = 1.0
    ) -> None:
        """Set the configurations. Time limits for answers are `slowness` times as long as on a quiet node."""
        super().__init__()
        self.hooks = hooks
        self.proxy = proxy
        self.root = root
        self._configs = configs
        self._slowness = slowness
        self._answer_s = ANSWER_S * slowness

    @property
    def by_nri(self) -> bool:
        return self.hooks.front_end is FrontEndName.NRI

    # ---- read once

    async def runtime(self, daemon: str = HOOKS) -> RuntimeReading:
        endpoint = parse_endpoint(self._settings(daemon).runtime_endpoint)
        return await self.once(f"runtime {endpoint}", lambda: read_runtime(endpoint, self._answer_s))

    def _settings(self, daemon: str) -> Settings | ProxySettings:
        return self.hooks if daemon == HOOKS else self.proxy

    async def kubelet(self) -> KubeletReading:
        return await self.once("kubelet", self._read_kubelet)

    async def _read_kubelet(self) -> KubeletReading:
        """Read kubelet, and ask its /configz only if it runs under the name of this node."""
        try:
            shown = await in_thread(lambda: show_units(self.root, unit.PROPERTIES, read_kubelet.UNITS, self._answer_s))
        except HostError:
            shown = None  # the check `units` reports the cause
        reading = await in_thread(lambda: read_kubelet.read_kubelet(self.root, shown))
        settings = self.hooks
        if (
            reading.running is None
            or not settings.report
            or reading.running.node_name(await self._hostname()) != settings.node_name
        ):
            return reading
        configz = await read_configz(settings.node_name, kubeconfig=settings.kubeconfig, answer_s=self._answer_s)
        return replace(reading, running=replace(reading.running, configz=configz))

    async def _hostname(self) -> str:
        return await in_thread(lambda: read_attribute(self.root / "proc/sys/kernel/hostname")) or socket.gethostname()

    async def nvidia(self) -> cards.CardsReading:
        driver_root, library = self.hooks.driver_root, str(self.hooks.find_library(self.root) or "")
        return await self.once(
            "nvidia",
            lambda: in_thread(
                lambda: cards.read_cards(self.root, library=library, driver_root=driver_root, slowness=self._slowness)
            ),
        )

    async def reply_of(self, daemon: str) -> DaemonReply:
        return await self.once(f"reply {daemon}", lambda: read_reply(daemon, self._settings(daemon).metrics, self._answer_s))

    async def folder(self) -> FolderReading:
        folder, prefixes = Path(self.proxy.hooks_dir), self.proxy.guarded_prefixes
        return await self.once("folder", lambda: in_thread(lambda: read_folder(folder, prefixes)))

    async def functions(self) -> Inventory:
        return await self.once("functions", lambda: in_thread(self._read_rdma))

    def _read_rdma(self) -> Inventory:
        """Read the RDMA inventory. For VFs in pods, which the host does not see, use their state in the journal."""
        pfs, _, problems = read_rdma(self.root)
        try:
            rows = read_journal(ledger_path(self.hooks))
        except StateError:
            rows = ()  # the check `ledger` reports the cause
        return with_attached(Inventory(pfs=pfs, problems=problems), rows)

    # ---- one check each

    async def config(self, daemon: str) -> ConfigReading:
        return self._configs[daemon]

    async def keys(self) -> KeysReading:
        if self._configs[HOOKS].is_denied:
            raise ElsewhereError("config")
        return await in_thread(
            lambda: read_node.read_key_files(self.hooks.keys, self.hooks.assignments, config=self._configs[HOOKS].path)
        )

    async def socket(self, daemon: str) -> SocketReading:
        like = parse_endpoint(self.proxy.runtime_endpoint)
        wanted = Access(0, 0, 0o600) if daemon == HOOKS else await in_thread(lambda: wanted_access(mode=0o660, like=like))
        path = parse_endpoint(self._settings(daemon).listen)
        return await read_socket(path, daemon=daemon, wanted=wanted, answer_s=self._answer_s)

    async def registration(self) -> RegistrationReading:
        rendered = json.dumps(render_registration(self.hooks)).encode()
        folder = await read_shared("hooks-dir", self.folder())
        return RegistrationReading(folder=folder, expected=parse_registration(rendered, "50-lading.json"))

    async def route(self) -> Route:
        runtime = self.hooks.runtime_endpoint if self.by_nri else self.proxy.runtime_endpoint
        return Route(kubelet=await self.kubelet(), proxy=self.proxy.listen, runtime=runtime, direct=self.by_nri)

    async def cgroup_drivers(self) -> CgroupDrivers:
        return CgroupDrivers(
            kubelet=await read_shared("kubelet-endpoint", self.kubelet()), runtime=await read_shared("runtime", self.runtime())
        )

    async def name(self) -> cluster.NameReading:
        hostname = await self._hostname()
        kubelet = await read_shared("kubelet-endpoint", self.kubelet())
        return cluster.NameReading(configured=self.hooks.node_name, kubelets=kubelet.command.node_name(hostname))

    async def api(self) -> cluster.ApiReading:
        settings = self.hooks
        return await read_api(
            settings.node_name, report=settings.report, taints=taints_node(settings), kubeconfig=settings.kubeconfig
        )

    async def cdi(self) -> CdiReading:
        runtime = await read_shared("runtime", self.runtime())
        support = decide_cdi_support(runtime.version, runtime.status)
        folder = self.hooks.cdi_dir if self.hooks.writes_specs else ""
        return CdiReading(needed=self.hooks.by_cdi, support=support, folder=folder)

    async def crun(self) -> CrunReading:
        settings, runtime = self.hooks, await read_shared("runtime", self.runtime())
        view, version = settings.view(self.root), (await read_shared("driver", self.nvidia())).version

        def read() -> CrunReading:
            found = find_driver(view, version, settings.driver_libraries) if version else None
            folders = [folder.path for folder in found.folders[:1]] if found else []
            if IsolationName.TOKENS in settings.isolations:
                folders.append(share_libraries(settings))
            if settings.hami_library:
                folders.append(Path(settings.hami_library).parent)
            return read_crun(runtime, folders)

        return await in_thread(read)

    async def nri(self) -> NriReading:
        runtime = await read_shared("runtime", self.runtime())
        path = parse_endpoint(self.hooks.nri_socket)
        if not self.by_nri:
            path = self.root / str(path).removeprefix("/")
        served = await in_thread(lambda: path.exists() and read_listener(path, self._answer_s) is not None)
        validates = await in_thread(lambda: read_validator(self.root))
        return NriReading(runtime=runtime, by_nri=self.by_nri, socket=self.hooks.nri_socket, served=served, validates=validates)

    async def handler(self) -> HandlerReading:
        runtime = await read_shared("runtime", self.runtime())
        return await in_thread(lambda: read_handler(runtime, installed=__version__))

    async def injection(self) -> InjectionReading:
        settings, reading = self.hooks, await read_shared("driver", self.nvidia())
        view, libraries = settings.view(self.root), settings.driver_libraries
        found = await in_thread(lambda: find_driver(view, reading.version, libraries)) if reading.version else None
        versions = await in_thread(lambda: read_driver_versions(view, libraries))
        own = await in_thread(lambda: read_own_specs(settings)) if settings.writes_specs else None
        folders = settings.cdi_spec_dirs if own is None else (settings.cdi_dir,)
        names = await in_thread(lambda: read_cdi_names(map(Path, folders)))
        return InjectionReading(
            mode=settings.gpu_mode,
            cards=reading,
            driver_root=settings.driver_root,
            libraries=len(found.list_files(f"lib*.so.{reading.version}")) if found else 0,
            folder=found.folders[0].name if found else "",
            source=found.folders[0].source if found else "",
            versions=versions,
            spec_dirs=settings.cdi_spec_dirs,
            cdi_names=names,
            own=own,
        )

    async def loader_cache(self) -> LoaderCacheReading:
        settings = self.hooks
        program = ldcache_program(settings)
        return LoaderCacheReading(
            gives_files=settings.mounts_driver or settings.writes_specs,
            by_hook=settings.writes_specs or self.by_nri,
            program=str(program or ""),
            usable=program is not None and await in_thread(lambda: os.access(program, os.X_OK)),
        )

    async def mps(self) -> MpsReading:
        offered = IsolationName.MPS in self.hooks.isolations
        answer_s = MPS_ANSWER_S * self._slowness
        reading = await read_mps(
            mps_folders(self.hooks), self.hooks.mps_control, offered=offered, root=self.root, answer_s=answer_s
        )
        if self.hooks.mps_memory is not MpsMemory.CONTAINER:
            return reading
        nvml = (await read_shared("driver", self.nvidia())).nvml
        return replace(reading, memory=await read_memory(parse_endpoint(self.hooks.shares_socket), nvml.gpus if nvml else ()))

    async def reload(self) -> ReloadReading:
        runtime = await read_shared("runtime", self.runtime())
        return ReloadReading(mode=self.hooks.gpu_mode, systemd=systemd_cgroups(runtime.status))

    async def modules(self) -> rdma.ModulesReading:
        pfs = (await read_shared("vfs", self.functions())).pfs
        gpus = bool((await read_shared("driver", self.nvidia())).on_bus)
        return await in_thread(lambda: read_node.read_modules(self.root, pfs, gpus=gpus))

    async def rdma_mode(self) -> rdma.RdmaModeReading:
        mode = await in_thread(HostKernel(self.root).rdma_mode) if self.root == Path("/") else None
        return rdma.RdmaModeReading(
            pfs=(await read_shared("vfs", self.functions())).pfs, mode=mode, attaches=attaches(self.hooks)
        )

    async def vfs(self) -> rdma.VfsReading:
        inventory = await self.functions()
        return rdma.VfsReading(pfs=inventory.pfs, problems=inventory.problems)

    async def memlock(self) -> rdma.MemlockReading:
        endpoint = parse_endpoint(self.hooks.runtime_endpoint)
        problem = await read_shared("runtime", in_thread(lambda: _memlock(endpoint, self._answer_s)))
        return rdma.MemlockReading(
            vfs=bool((await read_shared("vfs", self.functions())).vfs),
            ipc_lock=self.hooks.rdma_ipc_lock,
            memlock=self.hooks.rdma_memlock,
            problem=problem,
        )

    async def selinux(self) -> SelinuxReading:
        settings = self.hooks
        shares = IsolationName.TOKENS in settings.isolations
        runtime = await read_shared("runtime", self.runtime())
        return await in_thread(
            lambda: read_selinux(
                self.root,
                settings.view(self.root),
                confines=is_selinux_used(runtime.status),
                libraries=share_libraries(settings),
                shares=Path(settings.shares_dir),
                server=parse_endpoint(settings.shares_socket) if shares else None,
                answer_s=self._answer_s,
            )
        )

    async def versions(self) -> VersionsReading:
        daemons = (HOOKS,) if self.by_nri else (HOOKS, PROXY)
        running = {daemon: (await read_shared("ready", self.reply_of(daemon))).version for daemon in daemons}
        return VersionsReading(installed=__version__, running=running)

    async def units(self) -> str | None:
        units = [f"{daemon}.{kind}" for daemon in self._configs for kind in ("socket", "service")]
        if has_share_library(self.hooks):
            units.append("lading-shares.service")
        if self.by_nri:
            units.append("lading-nri-guard.service")
        return await in_thread(lambda: show_units(self.root, PROPERTIES, units, self._answer_s))

    async def servers(self) -> tuple[ServerReading, ...]:
        registrations = (await read_shared("hooks-dir", self.folder())).registrations
        wanted = Access(0, 0, 0o600)
        reads = [read_socket(Path(r.endpoint), daemon=r.name, wanted=wanted, answer_s=self._answer_s) for r in registrations]
        sockets = await asyncio.gather(*reads)
        return tuple(ServerReading(registration=r, socket=s) for r, s in zip(registrations, sockets, strict=True))

    async def load(self) -> LoadReading:
        reply = await read_shared("ready", self.reply_of(PROXY))
        return LoadReading(reply=reply, most=self.proxy.max_connections, socket=parse_endpoint(self.proxy.listen))


def _memlock(endpoint: Path, answer_s: float) -> str:
    """Return a warning about the runtime's memlock limit, or an empty text. Read this process's own /proc, because the kernel
    reports the runtime's pid in this pid namespace."""
    if read_listener(endpoint, answer_s) is None:
        raise ElsewhereError("runtime")
    return memlock_warning(Path("/"), endpoint)


class _Nowhere:
    """Drop log messages: `FolderReading.complaints` has the same information."""

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        pass


def read_folder(folder: Path, guarded_prefixes: tuple[str, ...]) -> FolderReading:
    """Read the folder of registrations as the proxy does, but without earlier valid versions of an invalid file. Blocks."""
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(f"no permission to read {folder}")
    registrations: list[Registration] = []
    reader = HooksDir(folder, registrations.extend, Log(_Nowhere()), owner_uid=0)
    reader.read()
    return FolderReading(
        folder=folder, registrations=tuple(registrations), complaints=reader.complaints, guarded_prefixes=guarded_prefixes
    )
