"""List the checks of `lading-doctor`, each with the same texts as its row in docs/doctor.md.

Tests: tests/unit/doctor/test_page.py
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from doctor import cluster, kernel, rdma, read_node, state
from doctor.config import decide_config
from doctor.crun import decide_crun
from doctor.handler import decide_handler
from doctor.hooks_dir import decide_connections, decide_folder, decide_registration, decide_servers
from doctor.host import HOOKS, PROXY, CdiReading, Host
from doctor.keys import decide_keys
from doctor.kubelet.kubelet import decide_endpoint
from doctor.mps import decide_mps
from doctor.nri import decide_nri, decide_plugins, read_plugins
from doctor.nvidia import gpus
from doctor.ready import decide_ready, decide_versions
from doctor.runtime import decide_cgroup_driver, decide_runtime
from doctor.selinux import decide_selinux
from doctor.sockets import decide_socket
from doctor.units import decide_units
from hooks.daemon.settings import FrontEndName, ledger_path
from lading import __version__
from lading.checks.model import Check, Finding, failed, ok
from lading.threads import in_thread

T = TypeVar("T")


def decide_cdi(reading: CdiReading) -> Iterator[Finding]:
    dirs = reading.support.spec_dirs
    if (
        reading.support.supported
        and reading.folder
        and not any(Path(reading.folder).resolve() == Path(one).resolve() for one in dirs)
    ):
        what = f"lading-hooks writes CDI specs into {reading.folder}, and the runtime reads {', '.join(dirs)}"
        yield failed(what, mend=f'cdi_dir = "{dirs[-1]}" in hooks.toml; systemctl restart lading-hooks')
    elif reading.support.supported:
        better = "" if reading.needed else '; gpu_mode = "cdi" is safer during a driver upgrade than "devices"'
        yield ok(f"CDI devices are honoured, specs are in {', '.join(reading.support.spec_dirs)}{better}")
    elif reading.needed:
        mend = "enable_cdi = true in containerd's configuration (containerd 1.7.2 or newer), systemctl restart containerd"
        yield failed(f"gpu_mode = cdi, and {reading.support.problem}", mend=f'{mend}; or gpu_mode = "devices"')
    else:
        yield ok(f"not needed: {reading.support.problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck(Check[Host]):
    of: str = HOOKS  # daemon that must be installed for this check; empty: none
    front_end: str = ""  # front end that the node must have for this check; empty: any


def _blocking(read: Callable[[Host], T]) -> Callable[[Host], Awaitable[T]]:
    """Return a reading that runs `read` in a thread."""
    return lambda host: in_thread(lambda: read(host))


def _of_each(
    check: Callable[..., NodeCheck],
    *,
    read: Callable[..., Awaitable[T]],
    decide: Callable[[T], Iterable[Finding]],
    **texts: str,
) -> Iterator[NodeCheck]:
    """Yield one check for each daemon, so that a failure to read one daemon does not hide the result of the other."""
    for daemon in (HOOKS, PROXY):
        yield check(read=partial(read, daemon=daemon), decide=decide, of=daemon, **texts)


# A row of CHECKS is made by its group.
_ours: Final = partial(NodeCheck, group="Lading on this node")
_kubelet: Final = partial(NodeCheck, group="kubelet")
_runtime: Final = partial(NodeCheck, group="container runtime")
_hooks: Final = partial(NodeCheck, group="hook servers")
_gpus: Final = partial(NodeCheck, group="GPUs")
_rdma: Final = partial(NodeCheck, group="RDMA")
_node: Final = partial(NodeCheck, group="node")
_cluster: Final = partial(NodeCheck, group="cluster")

CHECKS: Final[tuple[NodeCheck, ...]] = (
    *_of_each(
        _ours,
        name="config",
        what="the configuration files are valid, and only root can change them",
        why="a daemon does not start with a setting that it does not understand",
        read=Host.config,
        decide=decide_config,
    ),
    *_of_each(
        _ours,
        name="socket",
        what="the sockets of both daemons: who listens, whether they answer, owner and mode",
        why="kubelet reaches the runtime by the proxy's, and the proxy calls the hook server for each pod with devices",
        read=Host.socket,
        decide=decide_socket,
    ),
    *_of_each(
        _ours,
        name="ready",
        what="the conditions of both daemons at /readyz",
        why="they show what a daemon cannot do now, and which files its unit keeps from it",
        read=Host.reply_of,
        decide=decide_ready,
    ),
    _ours(
        name="units",
        what="systemd's units: installed, enabled, running",
        why="what is not enabled does not start at the next boot, and then kubelet reaches no runtime",
        read=Host.units,
        decide=decide_units,
        of="",
    ),
    _ours(
        name="versions",
        what="the versions of both running daemons, and of this command",
        why="the daemons may be at most one minor version apart; an upgrade ends with a restart",
        read=Host.versions,
        decide=decide_versions,
        of="",
    ),
    _ours(
        name="keys",
        what="central's public keys can be read; no private key is on this node; what is accepted without one",
        why="assignments are checked with these keys, and anyone with a private key can assign devices to any pod",
        read=Host.keys,
        decide=decide_keys,
    ),
    _ours(
        name="registration",
        what="the proxy's folder of registrations has the one that this configuration makes",
        why="the proxy calls the server in a registration, at its stages and with its timeout",
        read=Host.registration,
        decide=decide_registration,
        front_end=FrontEndName.CRI_HOOK,
    ),
    _ours(
        name="ledger",
        what="the ledger opens, is sound, and has this version's schema",
        why="no device is assigned without it: it records the holders",
        read=_blocking(lambda host: read_node.read_schema(ledger_path(host.hooks))),
        decide=state.decide_ledger,
    ),
    _ours(
        name="disk",
        what="the folder of the ledger: its owner, writable, bytes and inodes left",
        why="a grant that cannot be recorded is refused",
        read=_blocking(lambda host: read_node.read_disk(Path(host.hooks.state_dir))),
        decide=state.decide_disk,
    ),
    _ours(
        name="connections",
        what="connections in use, of max_connections, and those that were rejected",
        why="kubelet's next connection is rejected when all are in use",
        read=Host.load,
        decide=decide_connections,
        of=PROXY,
    ),
    _kubelet(
        name="kubelet-endpoint",
        what="the socket that kubelet talks to now and after its next start, and the file that says so",
        why="if kubelet bypasses the proxy, pods start without the devices that they were given; by NRI it needs no proxy",
        read=Host.route,
        decide=decide_endpoint,
        of="",
    ),
    _kubelet(
        name="device-plugins",
        what="other device plugins for GPUs or RDMA that serve this node, and coexist",
        why="two systems that assign the same device assign it twice",
        read=_blocking(lambda host: read_node.read_plugins(host.root, coexist=host.hooks.coexist)),
        decide=cluster.decide_plugins,
    ),
    _kubelet(
        name="cgroup-driver",
        what="kubelet's cgroup driver and the runtime's",
        why="where they differ, pods are in two trees of cgroups, and limits hold in neither",
        read=Host.cgroup_drivers,
        decide=decide_cgroup_driver,
    ),
    *_of_each(
        _runtime,
        name="runtime",
        what="the container runtime answers, its version, its own conditions",
        why="it answers every call of kubelet, and nothing is granted before the ledger was compared with its lists",
        read=Host.runtime,
        decide=decide_runtime,
    ),
    _runtime(
        name="cdi",
        what="whether the runtime honours CDI devices, where gpu_mode needs it",
        why="containerd before 1.7.2 ignores them silently, so the node refuses instead",
        read=Host.cdi,
        decide=decide_cdi,
    ),
    _runtime(
        name="crun",
        what="whether libraries for containers are on a file system mounted noexec, which crun 1.27 to 1.29.1 keeps",
        why="the loader of a container then cannot map libcuda",
        read=Host.crun,
        decide=decide_crun,
    ),
    _runtime(
        name="nri",
        what="whether the runtime's NRI is on; with the proxy, whether containerd's default validator is",
        why="front_end nri needs it; otherwise plugins change containers after the proxy did, and the validator rejects pods",
        read=Host.nri,
        decide=decide_nri,
    ),
    _runtime(
        name="nri-plugins",
        what="front_end nri: the runtime's folder of plugins: the launched guard, its version, other executables",
        why="the launched guard works from containerd's start on; containerd does not start if the folder has an executable "
        "that is not named as a plugin",
        read=_blocking(
            lambda host: read_plugins(Path(host.hooks.nri_plugin_path), proc=host.root / "proc", installed=__version__)
        ),
        decide=decide_plugins,
        front_end=FrontEndName.NRI,
    ),
    _runtime(
        name="runtime-handler",
        what="front_end nri: the runtime handler lading, where containerd has it: its program, and what it sees of pods",
        why="it refuses containers without a grant, also without plugin and guards, if it sees annotations and no forged grant",
        read=Host.handler,
        decide=decide_handler,
        front_end=FrontEndName.NRI,
    ),
    _runtime(
        name="memlock",
        what="how much memory the runtime, and so its containers, may lock",
        why="RDMA programs lock what they register, and fail with ENOMEM where they may not",
        read=Host.memlock,
        decide=rdma.decide_memlock,
    ),
    _hooks(
        name="hooks-dir",
        what="the folder of registrations: readable, writable by root only, each file valid, a hook for every guarded prefix",
        why="a registration that cannot be trusted is ignored, and guarded pods without one are refused",
        read=Host.folder,
        decide=decide_folder,
        front_end=FrontEndName.CRI_HOOK,
        of="",
    ),
    _hooks(
        name="hooks",
        what="each registered hook server: its socket is root's, a process listens, and greets",
        why="if a server does not answer, its pods are refused, or start without it where its policy is Ignore",
        read=Host.servers,
        decide=decide_servers,
        of=PROXY,
    ),
    _gpus(
        name="driver",
        what="NVIDIA's kernel module is loaded, NVML answers, and both are of one version",
        why="without NVML no card is known; with two versions no program can use one",
        read=Host.nvidia,
        decide=gpus.decide_driver,
    ),
    _gpus(
        name="gpus",
        what="each card on the bus is known to the driver and answers",
        why="a card that does not answer is assigned to no pod",
        read=Host.nvidia,
        decide=gpus.decide_gpus,
    ),
    _gpus(
        name="gpu-nodes",
        what="the device nodes of the cards and of the driver, with the kernel's numbers",
        why="containers use a card through its node; one with another number is refused",
        read=Host.nvidia,
        decide=gpus.decide_gpu_nodes,
    ),
    _gpus(
        name="persistence",
        what="persistence mode",
        why="without it each look at the cards powers them up and down, which takes seconds and loses settings",
        read=Host.nvidia,
        decide=gpus.decide_persistence,
    ),
    _gpus(
        name="driver-files",
        what="gpu_mode devices or cdi: where the driver's libraries of this version were found, and by what",
        why="a container with a card and no libcuda of the driver's version cannot use it",
        read=Host.injection,
        decide=gpus.decide_driver_files,
    ),
    _gpus(
        name="cdi-specs",
        what="gpu_mode cdi: a CDI spec names each device by UUID; Lading's own is of this driver, and its files are there",
        why="an index is another card after a reboot; a name that is not there is a create error",
        read=Host.injection,
        decide=gpus.decide_cdi_specs,
    ),
    _gpus(
        name="loader-cache",
        what="whether the loader's cache of containers lists the driver's libraries: by a hook of NRI or of a CDI spec",
        why="Triton, torch.compile and ctypes.util.find_library ask that cache for libcuda.so.1",
        read=Host.loader_cache,
        decide=gpus.decide_loader_cache,
    ),
    _gpus(
        name="daemon-reload",
        what="gpu_mode nvidia-runtime: whether running containers keep their cards",
        why="NVIDIA's runtime can give a card past the container's specification, and systemd takes it away again",
        read=Host.reload,
        decide=gpus.decide_reload,
    ),
    _gpus(
        name="mps",
        what="isolation mps: NVIDIA's program, systemd, each card's daemon, and what keeps containers to their memory",
        why="programs of a share start only while their card's daemon takes clients",
        read=Host.mps,
        decide=decide_mps,
    ),
    _rdma(
        name="rdma-modules",
        what="ib_core, ib_uverbs, rdma_ucm, mlx5_ib; beside GPUs DMA-BUF or nvidia_peermem",
        why="without them there is no verbs device, or no GPUDirect",
        read=Host.modules,
        decide=rdma.decide_modules,
    ),
    _rdma(
        name="rdma-mode",
        what="the kernel's RDMA network namespace mode, and who moves RDMA devices",
        why="in exclusive mode a container sees an RDMA device only after it was moved into its pod",
        read=Host.rdma_mode,
        decide=rdma.decide_mode,
    ),
    _rdma(
        name="vfs",
        what="PFs with their ports, their VFs, the driver and the verbs node of each",
        why="a VF without driver, RDMA device, node or address is assigned to no pod",
        read=Host.vfs,
        decide=rdma.decide_vfs,
    ),
    _node(
        name="cgroups",
        what="cgroup v1 or v2, and what denies devices in it",
        why="the device cgroup is what keeps a container from the cards of others",
        read=_blocking(lambda host: read_node.read_cgroups(host.root)),
        decide=kernel.decide_cgroups,
    ),
    _node(
        name="selinux",
        what="SELinux: its boolean container_use_devices; labels of what shares use, and the domain of lading-shares",
        why="it can deny a container the device that it was given, Lading's library, and the connection to lading-shares",
        read=Host.selinux,
        decide=decide_selinux,
    ),
    _node(
        name="clock",
        what="the clock is synchronised",
        why="certificates, leases and the times in the ledger depend on it",
        read=_blocking(lambda _: read_node.read_clock()),
        decide=kernel.decide_clock,
    ),
    _cluster(
        name="node-name",
        what="node_name is what kubelet calls this node",
        why="assignments for another node are refused",
        read=Host.name,
        decide=cluster.decide_name,
    ),
    _cluster(
        name="api",
        what="report: the API server is reached, has this Node and NodeDevices, and allows what the reporter does",
        why="central assigns the devices in reports, and none of a node that does not report",
        read=Host.api,
        decide=cluster.decide_api,
    ),
)
