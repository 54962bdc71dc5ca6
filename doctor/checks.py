"""List the checks of `lading-doctor`, each with the same texts as its row in docs/doctor.md.

Tests: tests/unit/doctor/test_page.py
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from doctor import cluster, kernel, rdma, state
from doctor.config import decide_config
from doctor.handler import decide_handler
from doctor.hooks_dir import decide_connections, decide_folder, decide_registration, decide_servers
from doctor.host import HOOKS, PROXY, CdiSeen, Host
from doctor.keys import decide_keys
from doctor.kubelet.kubelet import decide_endpoint
from doctor.mps import decide_mps
from doctor.nri import decide_nri, decide_plugins
from doctor.nvidia import gpus
from doctor.ready import decide_ready
from doctor.runtime import decide_cgroup_driver, decide_runtime
from doctor.sockets import decide_socket
from doctor.units import decide_units
from doctor.versions import decide_versions
from hooks.daemon.settings import FrontEndName
from lading.checks.model import Check, Finding, failed, ok

T = TypeVar("T")


def decide_cdi(seen: CdiSeen) -> Iterator[Finding]:
    dirs = seen.support.spec_dirs
    if seen.support.supported and seen.folder and not any(Path(seen.folder).resolve() == Path(one).resolve() for one in dirs):
        what = f"lading-hooks writes CDI specs into {seen.folder}, and the runtime reads {', '.join(dirs)}"
        yield failed(what, mend=f'cdi_dir = "{dirs[-1]}" in hooks.toml; systemctl restart lading-hooks')
    elif seen.support.supported:
        better = "" if seen.needed else '; gpu_mode = "cdi" is safer during a driver upgrade than "devices"'
        yield ok(f"CDI devices are honoured, specs are in {', '.join(seen.support.spec_dirs)}{better}")
    elif seen.needed:
        mend = "enable_cdi = true in containerd's configuration (containerd 1.7.2 or newer), systemctl restart containerd"
        yield failed(f"gpu_mode = cdi, and {seen.support.problem}", mend=f'{mend}; or gpu_mode = "devices"')
    else:
        yield ok(f"not needed: {seen.support.problem}")


_OURS: Final = "Lading on this node"
_KUBELET: Final = "kubelet"
_RUNTIME: Final = "container runtime"
_HOOKS: Final = "hook servers"
_GPUS: Final = "GPUs"
_RDMA: Final = "RDMA"
_NODE: Final = "node"
_CLUSTER: Final = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck(Check[Host]):
    of: str = HOOKS  # daemon that must be installed for this check; empty: none
    front_end: str = ""  # front end that the node must have for this check; empty: any


def _of_each(
    *, name: str, group: str, what: str, why: str, read: Callable[..., Awaitable[T]], decide: Callable[[T], Iterable[Finding]]
) -> Iterator[NodeCheck]:
    """Yield one check for each daemon, so that a failure to read one daemon does not hide the result of the other."""
    for daemon in (HOOKS, PROXY):
        its = partial(read, daemon=daemon)
        yield NodeCheck(name=name, group=group, what=what, why=why, read=its, decide=decide, of=daemon)


CHECKS: Final[tuple[NodeCheck, ...]] = (
    *_of_each(
        name="config",
        group=_OURS,
        what="the configuration files are valid, and only root can change them",
        why="a daemon does not start with a setting that it does not understand",
        read=Host.config,
        decide=decide_config,
    ),
    *_of_each(
        name="socket",
        group=_OURS,
        what="the sockets of both daemons: who listens, whether they answer, owner and mode",
        why="kubelet reaches the runtime by the proxy's, and the proxy calls the hook server for each pod with devices",
        read=Host.socket,
        decide=decide_socket,
    ),
    *_of_each(
        name="ready",
        group=_OURS,
        what="the conditions of both daemons at /readyz",
        why="they show what a daemon cannot do now, and which files its unit keeps from it",
        read=Host.said,
        decide=decide_ready,
    ),
    NodeCheck(
        name="units",
        group=_OURS,
        what="systemd's units: installed, enabled, running",
        why="what is not enabled does not start at the next boot, and then kubelet reaches no runtime",
        read=Host.units,
        decide=decide_units,
        of="",
    ),
    NodeCheck(
        name="versions",
        group=_OURS,
        what="the versions of both running daemons, and of this command",
        why="the daemons may be at most one minor version apart; an upgrade ends with a restart",
        read=Host.versions,
        decide=decide_versions,
        of="",
    ),
    NodeCheck(
        name="keys",
        group=_OURS,
        what="central's public keys can be read; no private key is on this node; what is accepted without one",
        why="assignments are checked with these keys, and anyone with a private key can assign devices to any pod",
        read=Host.keys,
        decide=decide_keys,
    ),
    NodeCheck(
        name="registration",
        group=_OURS,
        what="the proxy's folder of registrations has the one that this configuration makes",
        why="the proxy calls the server in a registration, at its stages and with its timeout",
        read=Host.registration,
        decide=decide_registration,
        front_end=FrontEndName.CRI_HOOK,
    ),
    NodeCheck(
        name="ledger",
        group=_OURS,
        what="the ledger opens, is sound, and has this version's schema",
        why="no device is assigned without it: it records the holders",
        read=Host.ledger,
        decide=state.decide_ledger,
    ),
    NodeCheck(
        name="disk",
        group=_OURS,
        what="the folder of the ledger: its owner, writable, bytes and inodes left",
        why="a grant that cannot be recorded is refused",
        read=Host.disk,
        decide=state.decide_disk,
    ),
    NodeCheck(
        name="connections",
        group=_OURS,
        what="connections in use, of max_connections, and those that were rejected",
        why="kubelet's next connection is rejected when all are in use",
        read=Host.load,
        decide=decide_connections,
        of=PROXY,
    ),
    NodeCheck(
        name="kubelet-endpoint",
        group=_KUBELET,
        what="the socket that kubelet talks to now and after its next start, and the file that says so",
        why="if kubelet bypasses the proxy, pods start without the devices that they were given; by NRI it needs no proxy",
        read=Host.route,
        decide=decide_endpoint,
        of="",
    ),
    NodeCheck(
        name="device-plugins",
        group=_KUBELET,
        what="other device plugins for GPUs or RDMA that serve this node, and coexist",
        why="two systems that assign the same device assign it twice",
        read=Host.plugins,
        decide=cluster.decide_plugins,
    ),
    NodeCheck(
        name="cgroup-driver",
        group=_KUBELET,
        what="kubelet's cgroup driver and the runtime's",
        why="where they differ, pods are in two trees of cgroups, and limits hold in neither",
        read=Host.cgroup_drivers,
        decide=decide_cgroup_driver,
    ),
    *_of_each(
        name="runtime",
        group=_RUNTIME,
        what="the container runtime answers, its version, its own conditions",
        why="it answers every call of kubelet, and nothing is granted before the ledger was compared with its lists",
        read=Host.runtime,
        decide=decide_runtime,
    ),
    NodeCheck(
        name="cdi",
        group=_RUNTIME,
        what="whether the runtime honours CDI devices, where gpu_mode needs it",
        why="containerd before 1.7.2 ignores them silently, so the node refuses instead",
        read=Host.cdi,
        decide=decide_cdi,
    ),
    NodeCheck(
        name="nri",
        group=_RUNTIME,
        what="whether the runtime's NRI is on; with the proxy, whether containerd's default validator is",
        why="front_end nri needs it; otherwise plugins change containers after the proxy did, and the validator rejects pods",
        read=Host.nri,
        decide=decide_nri,
    ),
    NodeCheck(
        name="nri-plugins",
        group=_RUNTIME,
        what="front_end nri: the runtime's folder of plugins: the launched guard, its version, other executables",
        why="it guards from containerd's start on; containerd does not start with an executable that is not named as a plugin",
        read=Host.nri_plugins,
        decide=decide_plugins,
        front_end=FrontEndName.NRI,
    ),
    NodeCheck(
        name="runtime-handler",
        group=_RUNTIME,
        what="front_end nri: the runtime handler lading, where containerd has it: its program, and what it sees of pods",
        why="it refuses containers without a grant, also without plugin and guards, if it sees annotations and no forged grant",
        read=Host.handler,
        decide=decide_handler,
        front_end=FrontEndName.NRI,
    ),
    NodeCheck(
        name="memlock",
        group=_RUNTIME,
        what="how much memory the runtime, and so its containers, may lock",
        why="RDMA programs lock what they register, and fail with ENOMEM where they may not",
        read=Host.memlock,
        decide=rdma.decide_memlock,
    ),
    NodeCheck(
        name="hooks-dir",
        group=_HOOKS,
        what="the folder of registrations: readable, writable by root only, each file valid, a hook for every guarded prefix",
        why="a registration that cannot be trusted is ignored, and guarded pods without one are refused",
        read=Host.folder,
        decide=decide_folder,
        front_end=FrontEndName.CRI_HOOK,
        of="",
    ),
    NodeCheck(
        name="hooks",
        group=_HOOKS,
        what="each registered hook server: its socket is root's, a process listens, and greets",
        why="if a server does not answer, its pods are refused, or start without it where its policy is Ignore",
        read=Host.servers,
        decide=decide_servers,
        of=PROXY,
    ),
    NodeCheck(
        name="driver",
        group=_GPUS,
        what="NVIDIA's kernel module is loaded, NVML answers, and both are of one version",
        why="without NVML no card is known; with two versions no program can use one",
        read=Host.nvidia,
        decide=gpus.decide_driver,
    ),
    NodeCheck(
        name="gpus",
        group=_GPUS,
        what="each card on the bus is known to the driver and answers",
        why="a card that does not answer is assigned to no pod",
        read=Host.nvidia,
        decide=gpus.decide_gpus,
    ),
    NodeCheck(
        name="gpu-nodes",
        group=_GPUS,
        what="the device nodes of the cards and of the driver, with the kernel's numbers",
        why="containers use a card through its node; one with another number is refused",
        read=Host.nvidia,
        decide=gpus.decide_gpu_nodes,
    ),
    NodeCheck(
        name="persistence",
        group=_GPUS,
        what="persistence mode",
        why="without it each look at the cards powers them up and down, which takes seconds and loses settings",
        read=Host.nvidia,
        decide=gpus.decide_persistence,
    ),
    NodeCheck(
        name="driver-files",
        group=_GPUS,
        what="gpu_mode devices: the driver's libraries of this version below driver_root",
        why="a container with a card and no libcuda of the driver's version cannot use it",
        read=Host.injection,
        decide=gpus.decide_driver_files,
    ),
    NodeCheck(
        name="cdi-specs",
        group=_GPUS,
        what="gpu_mode cdi: a CDI spec names each device by UUID; Lading's own is of this driver, and its files are there",
        why="an index is another card after a reboot; a name that is not there is a create error",
        read=Host.injection,
        decide=gpus.decide_cdi_specs,
    ),
    NodeCheck(
        name="daemon-reload",
        group=_GPUS,
        what="gpu_mode nvidia-runtime: whether running containers keep their cards",
        why="NVIDIA's runtime can give a card past the container's specification, and systemd takes it away again",
        read=Host.reload,
        decide=gpus.decide_reload,
    ),
    NodeCheck(
        name="mps",
        group=_GPUS,
        what="isolation mps: NVIDIA's program, systemd, and each card's daemon: runs, answers, takes clients",
        why="programs of a share start only while their card's daemon takes clients",
        read=Host.mps,
        decide=decide_mps,
    ),
    NodeCheck(
        name="rdma-modules",
        group=_RDMA,
        what="ib_core, ib_uverbs, rdma_ucm, mlx5_ib; beside GPUs DMA-BUF or nvidia_peermem",
        why="without them there is no verbs device, or no GPUDirect",
        read=Host.modules,
        decide=rdma.decide_modules,
    ),
    NodeCheck(
        name="rdma-mode",
        group=_RDMA,
        what="the kernel's RDMA network namespace mode, and who moves RDMA devices",
        why="in exclusive mode a container sees an RDMA device only after it was moved into its pod",
        read=Host.rdma_mode,
        decide=rdma.decide_mode,
    ),
    NodeCheck(
        name="vfs",
        group=_RDMA,
        what="PFs with their ports, their VFs, the driver and the verbs node of each",
        why="a VF without driver, RDMA device, node or address is assigned to no pod",
        read=Host.vfs,
        decide=rdma.decide_vfs,
    ),
    NodeCheck(
        name="cgroups",
        group=_NODE,
        what="cgroup v1 or v2, and what denies devices in it",
        why="the device cgroup is what keeps a container from the cards of others",
        read=Host.cgroups,
        decide=kernel.decide_cgroups,
    ),
    NodeCheck(
        name="selinux",
        group=_NODE,
        what="SELinux, and its boolean container_use_devices",
        why="it can deny a container the device that it was given",
        read=Host.selinux,
        decide=kernel.decide_selinux,
    ),
    NodeCheck(
        name="clock",
        group=_NODE,
        what="the clock is synchronised",
        why="certificates, leases and the times in the ledger depend on it",
        read=Host.clock,
        decide=kernel.decide_clock,
    ),
    NodeCheck(
        name="node-name",
        group=_CLUSTER,
        what="node_name is what kubelet calls this node",
        why="assignments for another node are refused",
        read=Host.name,
        decide=cluster.decide_name,
    ),
    NodeCheck(
        name="api",
        group=_CLUSTER,
        what="report: the API server is reached, has this Node and NodeDevices, and allows what the reporter does",
        why="central assigns the devices in reports, and none of a node that does not report",
        read=Host.api,
        decide=cluster.decide_api,
    ),
)
