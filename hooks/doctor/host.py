"""Read from a node what the checks of `lading-hooks doctor` need: each thing once, whichever checks use it.

Enters: the daemon's settings, as far as they could be read, and where the proxy's are. Leaves: readings. Files and sockets are
read in threads, the driver in a process: what hangs delays only the check that needs it. Nothing is changed.
"""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hooks.attach.netlink import HostKernel
from hooks.attach.overlay import with_attached
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import Settings, attaches, ledger_path
from hooks.doctor import cards, cluster, files, kernel, rdma, read, state
from hooks.doctor.api import read_api
from hooks.doctor.gpus import InjectionSeen, ReloadSeen
from hooks.host.attributes import read_attribute
from hooks.host.cdi import read_cdi_names
from hooks.host.memlock import memlock_warning
from hooks.host.rdma import read_rdma
from hooks.ledger.store import read_journal
from hooks.model.inventory import Inventory
from hooks.vendors.nvidia.driver import read_driver_mounts, read_driver_versions
from hooks.vendors.nvidia.inject import GpuMode
from lading import __version__
from lading.doctor.config import ConfigSeen
from lading.doctor.http import Said
from lading.doctor.kubelet import KubeletSeen, Route
from lading.doctor.neighbour import ProxyConfig
from lading.doctor.read import read_listener, read_neighbour, read_runtime, read_said, read_socket, read_units
from lading.doctor.read_kubelet import read_kubelet
from lading.doctor.reading import ElsewhereError, Readings, said_by
from lading.doctor.runtime import CgroupDrivers, RuntimeSeen, systemd_cgroups
from lading.doctor.sockets import SocketSeen
from lading.doctor.units import UnitsSeen
from lading.doctor.versions import VersionsSeen
from lading.errors import StateError
from lading.runtime import CdiSupport, decide_cdi_support
from lading.sockets import Access, parse_endpoint
from lading.threads import in_thread

DAEMON: Final = "lading-hooks"
PROXY: Final = "lading-runtimeproxy"
UNITS: Final = (f"{DAEMON}.socket", f"{DAEMON}.service")
_NRI: Final = Path("/var/run/nri/nri.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSeen:
    needed: bool  # gpu_mode = cdi
    support: CdiSupport


@dataclass(frozen=True, slots=True, kw_only=True)
class NriSeen:
    runtime: RuntimeSeen
    served: bool


class Host(Readings):
    """One node, according to this configuration."""

    def __init__(self, settings: Settings, *, config: ConfigSeen, proxy_config: Path) -> None:
        super().__init__()
        self.root = Path(settings.host_root)
        self.settings = settings
        self._config = config
        self._proxy_config = proxy_config

    # ---- read once

    async def runtime(self) -> RuntimeSeen:
        return await self.once("runtime", lambda: read_runtime(parse_endpoint(self.settings.runtime_endpoint)))

    async def kubelet(self) -> KubeletSeen:
        return await self.once("kubelet", lambda: in_thread(lambda: read_kubelet(self.root)))

    async def nvidia(self) -> cards.CardsSeen:
        library, driver_root = self.settings.nvml_library, self.settings.driver_root
        return await self.once(
            "nvidia", lambda: in_thread(lambda: cards.read_cards(self.root, library=library, driver_root=driver_root))
        )

    async def proxy(self) -> ProxyConfig:
        return await self.once("proxy", lambda: in_thread(lambda: read_neighbour(self._proxy_config, ProxyConfig)))

    async def said(self) -> Said:
        return await self.once("said", lambda: read_said(DAEMON, self.settings.metrics))

    async def functions(self) -> Inventory:
        return await self.once("functions", lambda: in_thread(self._read_rdma))

    def _read_rdma(self) -> Inventory:
        """Read the inventory with the VFs that are in pods as they were: they cannot be seen from here."""
        pfs, _, problems = read_rdma(self.root)
        try:
            rows = read_journal(ledger_path(self.settings))
        except StateError:
            rows = ()  # `ledger` says why
        return with_attached(Inventory(pfs=pfs, problems=problems), rows)

    # ---- one check each

    async def config_file(self) -> ConfigSeen:
        return self._config

    async def keys(self) -> files.KeysSeen:
        if self._config.is_denied:
            raise ElsewhereError("config")
        return await in_thread(
            lambda: read.read_key_files(self.settings.keys, self.settings.assignments, config=self._config.path)
        )

    async def socket(self) -> SocketSeen:
        path = parse_endpoint(self.settings.listen)
        return await read_socket(path, daemon=DAEMON, wanted=Access(0, 0, 0o600))

    async def registration(self) -> files.RegistrationSeen:
        folder = Path((await self.proxy()).hooks_dir)
        found = await in_thread(lambda: read.read_registrations(folder))
        endpoint = str(parse_endpoint(self.settings.listen))
        expected = render_registration(self.settings)
        return files.RegistrationSeen(folder=folder, files=found, endpoint=endpoint, expected=expected)

    async def ledger(self) -> state.LedgerSeen:
        return await in_thread(lambda: read.read_schema(ledger_path(self.settings)))

    async def disk(self) -> state.DiskSeen:
        return await in_thread(lambda: read.read_disk(Path(self.settings.state_dir)))

    async def route(self) -> Route:
        proxy = await self.proxy()
        return Route(kubelet=await self.kubelet(), proxy=proxy.listen, runtime=proxy.runtime_endpoint)

    async def cgroup_drivers(self) -> CgroupDrivers:
        return CgroupDrivers(
            kubelet=await said_by("kubelet-endpoint", self.kubelet()), runtime=await said_by("runtime", self.runtime())
        )

    async def plugins(self) -> cluster.PluginsSeen:
        return await in_thread(lambda: read.read_plugins(self.root, coexist=self.settings.coexist))

    async def name(self) -> cluster.NameSeen:
        hostname = await in_thread(lambda: read_attribute(self.root / "proc/sys/kernel/hostname")) or socket.gethostname()
        kubelet = await said_by("kubelet-endpoint", self.kubelet())
        return cluster.NameSeen(configured=self.settings.node_name, kubelets=kubelet.command.node_name(hostname))

    async def api(self) -> cluster.ApiSeen:
        settings = self.settings
        return await read_api(settings.node_name, report=settings.report, kubeconfig=settings.kubeconfig)

    async def cdi(self) -> CdiSeen:
        runtime = await said_by("runtime", self.runtime())
        support = decide_cdi_support(runtime.version, runtime.status)
        return CdiSeen(needed=self.settings.gpu_mode is GpuMode.CDI, support=support)

    async def nri(self) -> NriSeen:
        runtime = await said_by("runtime", self.runtime())
        path = self.root / str(_NRI).removeprefix("/")
        return NriSeen(runtime=runtime, served=await in_thread(lambda: path.exists() and read_listener(path) is not None))

    async def injection(self) -> InjectionSeen:
        settings, seen = self.settings, await said_by("driver", self.nvidia())
        root = Path(settings.driver_root)
        wanted = settings.driver_root and seen.version
        mounts = await in_thread(lambda: read_driver_mounts(root, seen.version)) if wanted else ()
        versions = await in_thread(lambda: read_driver_versions(root)) if wanted else ()
        names = await in_thread(lambda: read_cdi_names(map(Path, settings.cdi_spec_dirs)))
        return InjectionSeen(
            mode=settings.gpu_mode,
            cards=seen,
            driver_root=settings.driver_root,
            libraries=sum(".so." in mount.container_path for mount in mounts),
            versions=versions,
            spec_dirs=settings.cdi_spec_dirs,
            cdi_names=names,
        )

    async def reload(self) -> ReloadSeen:
        runtime = await said_by("runtime", self.runtime())
        return ReloadSeen(mode=self.settings.gpu_mode, systemd=systemd_cgroups(runtime.status))

    async def modules(self) -> rdma.ModulesSeen:
        pfs = (await said_by("vfs", self.functions())).pfs
        gpus = bool((await said_by("driver", self.nvidia())).on_bus)
        return await in_thread(lambda: read.read_modules(self.root, pfs, gpus=gpus))

    async def rdma_mode(self) -> rdma.RdmaModeSeen:
        mode = await in_thread(HostKernel(self.root).rdma_mode) if self.root == Path("/") else None
        return rdma.RdmaModeSeen(pfs=(await said_by("vfs", self.functions())).pfs, mode=mode, attaches=attaches(self.settings))

    async def vfs(self) -> rdma.VfsSeen:
        inventory = await self.functions()
        return rdma.VfsSeen(pfs=inventory.pfs, problems=inventory.problems)

    async def memlock(self) -> rdma.MemlockSeen:
        endpoint = parse_endpoint(self.settings.runtime_endpoint)
        problem = await said_by("runtime", in_thread(lambda: _memlock(endpoint)))
        return rdma.MemlockSeen(
            vfs=bool((await said_by("vfs", self.functions())).vfs), ipc_lock=self.settings.rdma_ipc_lock, problem=problem
        )

    async def cgroups(self) -> kernel.CgroupsSeen:
        return await in_thread(lambda: read.read_cgroups(self.root))

    async def selinux(self) -> kernel.SelinuxSeen:
        return await in_thread(lambda: read.read_selinux(self.root))

    async def clock(self) -> kernel.ClockSeen:
        return await in_thread(read.read_clock)

    async def versions(self) -> VersionsSeen:
        proxy = await read_said(PROXY, (await self.proxy()).metrics)
        running = {DAEMON: (await said_by("ready", self.said())).version, PROXY: proxy.version}
        return VersionsSeen(program=DAEMON, installed=__version__, running=running)

    async def units(self) -> UnitsSeen:
        return await in_thread(lambda: read_units(self.root, UNITS))


def _memlock(endpoint: Path) -> str:
    """Check memlock in this process's own /proc: the kernel reports the runtime by its pid in this pid namespace."""
    if read_listener(endpoint) is None:
        raise ElsewhereError("runtime")
    return memlock_warning(Path("/"), endpoint)
