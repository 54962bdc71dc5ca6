"""The checks of `lading-hooks doctor`: one row each, with the same words as its row in docs/doctor.md."""

from collections.abc import Iterator
from typing import Final

from hooks.doctor import cluster, files, gpus, kernel, rdma, state
from hooks.doctor.host import CdiSeen, Host, NriSeen
from hooks.doctor.ready import decide_ready
from lading.doctor.config import decide_config
from lading.doctor.kubelet import decide_endpoint
from lading.doctor.model import Check, Verdict, failed, ok, then
from lading.doctor.runtime import decide_cgroup_driver, decide_runtime
from lading.doctor.sockets import decide_socket
from lading.doctor.units import decide_units
from lading.doctor.versions import decide_versions


def decide_cdi(seen: CdiSeen) -> Iterator[Verdict]:
    if seen.support.supported:
        better = "" if seen.needed else '; gpu_mode = "cdi" is safer during a driver upgrade than "devices"'
        yield ok(f"CDI devices are honoured, specs are in {', '.join(seen.support.spec_dirs)}{better}")
    elif seen.needed:
        mend = "enable_cdi = true in containerd's configuration (containerd 1.7.2 or newer), systemctl restart containerd"
        yield failed(f"gpu_mode = cdi, and {seen.support.problem}", mend=f'{mend}; or gpu_mode = "devices"')
    else:
        yield ok(f"not needed: {seen.support.problem}")


def decide_nri(seen: NriSeen) -> Iterator[Verdict]:
    says = "NRI is on: its plugins may change containers after us" if seen.served else "NRI is off"
    yield ok(f"{seen.runtime.name}: {says}")


_OURS: Final = "Lading on this node"
_KUBELET: Final = "kubelet"
_RUNTIME: Final = "container runtime"
_GPUS: Final = "GPUs"
_RDMA: Final = "RDMA"
_NODE: Final = "node"
_CLUSTER: Final = "cluster"

CHECKS: Final[tuple[Check[Host], ...]] = (
    Check(
        name="config",
        group=_OURS,
        what="the configuration file is valid, and only root can change it",
        why="lading-hooks does not start with a setting that it does not understand",
        look=then(Host.config_file, decide_config),
    ),
    Check(
        name="keys",
        group=_OURS,
        what="central's public keys can be read; no private key is on this node; what is accepted without one",
        why="assignments are checked with these keys, and anyone with a private key can assign devices to any pod",
        look=then(Host.keys, files.decide_keys),
    ),
    Check(
        name="socket",
        group=_OURS,
        what="the hook server's socket: who listens, whether it is answered, its owner and mode",
        why="the proxy calls it before each container; without an answer pods with devices do not start",
        look=then(Host.socket, decide_socket),
    ),
    Check(
        name="registration",
        group=_OURS,
        what="the proxy's folder of registrations has the one that this configuration makes",
        why="the proxy calls the server in a registration, at its stages and with its timeout",
        look=then(Host.registration, files.decide_registration),
    ),
    Check(
        name="ready",
        group=_OURS,
        what="the conditions of lading-hooks at /readyz",
        why="they show what it cannot do now: devices not read, ledger not compared, containers that bypassed it",
        look=then(Host.said, decide_ready),
    ),
    Check(
        name="units",
        group=_OURS,
        what="systemd's units: installed, enabled, running",
        why="a unit that is not enabled does not run after the next boot, and pods with devices wait",
        look=then(Host.units, decide_units),
    ),
    Check(
        name="versions",
        group=_OURS,
        what="the versions of both daemons that run, and of this command",
        why="neighbours go together when they are at most one minor version apart; an upgrade ends with a restart",
        look=then(Host.versions, decide_versions),
    ),
    Check(
        name="ledger",
        group=_OURS,
        what="the ledger opens, is sound, and has this version's schema",
        why="no device is assigned without it: it records the holders",
        look=then(Host.ledger, state.decide_ledger),
    ),
    Check(
        name="disk",
        group=_OURS,
        what="the folder of the ledger: its owner, writable, bytes and inodes left",
        why="a grant that can not be recorded is refused",
        look=then(Host.disk, state.decide_disk),
    ),
    Check(
        name="kubelet-endpoint",
        group=_KUBELET,
        what="the socket that kubelet talks to now and after its next start, and the file that says so",
        why="without the proxy, pods start without their assigned devices",
        look=then(Host.route, decide_endpoint),
    ),
    Check(
        name="device-plugins",
        group=_KUBELET,
        what="other device plugins for GPUs or RDMA that serve this node, and coexist",
        why="two systems that assign the same device assign it twice",
        look=then(Host.plugins, cluster.decide_plugins),
    ),
    Check(
        name="cgroup-driver",
        group=_KUBELET,
        what="kubelet's cgroup driver and the runtime's",
        why="where they differ, pods are in two trees of cgroups, and limits hold in neither",
        look=then(Host.cgroup_drivers, decide_cgroup_driver),
    ),
    Check(
        name="runtime",
        group=_RUNTIME,
        what="the container runtime answers, its version, its own conditions",
        why="the ledger is compared with its lists, and nothing is granted before the first time",
        look=then(Host.runtime, decide_runtime),
    ),
    Check(
        name="cdi",
        group=_RUNTIME,
        what="whether the runtime honours CDI devices, where gpu_mode needs it",
        why="containerd before 1.7.2 ignores them silently, so the node refuses instead",
        look=then(Host.cdi, decide_cdi),
    ),
    Check(
        name="nri",
        group=_RUNTIME,
        what="whether the runtime's NRI is on",
        why="NRI plugins change containers after the proxy did",
        look=then(Host.nri, decide_nri),
    ),
    Check(
        name="memlock",
        group=_RUNTIME,
        what="how much memory the runtime, and so its containers, may lock",
        why="RDMA programs lock what they register, and fail with ENOMEM where they may not",
        look=then(Host.memlock, rdma.decide_memlock),
    ),
    Check(
        name="driver",
        group=_GPUS,
        what="NVIDIA's kernel module is loaded, NVML answers, and both are of one version",
        why="without NVML no card is known; with two versions no program can use one",
        look=then(Host.nvidia, gpus.decide_driver),
    ),
    Check(
        name="gpus",
        group=_GPUS,
        what="each card on the bus is known to the driver and answers",
        why="a card that does not answer is assigned to no pod",
        look=then(Host.nvidia, gpus.decide_gpus),
    ),
    Check(
        name="gpu-nodes",
        group=_GPUS,
        what="the device nodes of the cards and of the driver, with the kernel's numbers",
        why="containers use a card through its node; one with another number is refused",
        look=then(Host.nvidia, gpus.decide_gpu_nodes),
    ),
    Check(
        name="persistence",
        group=_GPUS,
        what="persistence mode",
        why="without it each look at the cards powers them up and down, which takes seconds and loses settings",
        look=then(Host.nvidia, gpus.decide_persistence),
    ),
    Check(
        name="driver-files",
        group=_GPUS,
        what="gpu_mode devices: the driver's libraries of this version below driver_root",
        why="a container with a card and no libcuda of the driver's version can not use it",
        look=then(Host.injection, gpus.decide_driver_files),
    ),
    Check(
        name="cdi-specs",
        group=_GPUS,
        what="gpu_mode cdi: a CDI spec names each device by UUID",
        why="an index is another card after a reboot; a name that is not there is a create error",
        look=then(Host.injection, gpus.decide_cdi_specs),
    ),
    Check(
        name="daemon-reload",
        group=_GPUS,
        what="gpu_mode nvidia-runtime: whether running containers keep their cards",
        why="NVIDIA's runtime can give a card past the container's specification, and systemd takes it away again",
        look=then(Host.reload, gpus.decide_reload),
    ),
    Check(
        name="rdma-modules",
        group=_RDMA,
        what="ib_core, ib_uverbs, rdma_ucm, mlx5_ib; beside GPUs DMA-BUF or nvidia_peermem",
        why="without them there is no verbs device, or no GPUDirect",
        look=then(Host.modules, rdma.decide_modules),
    ),
    Check(
        name="rdma-mode",
        group=_RDMA,
        what="the kernel's RDMA network namespace mode, and who moves RDMA devices",
        why="in exclusive mode a container sees an RDMA device only after it was moved into its pod",
        look=then(Host.rdma_mode, rdma.decide_mode),
    ),
    Check(
        name="vfs",
        group=_RDMA,
        what="PFs with their ports, their VFs, the driver and the verbs node of each",
        why="a VF without driver, RDMA device, node or address is assigned to no pod",
        look=then(Host.vfs, rdma.decide_vfs),
    ),
    Check(
        name="cgroups",
        group=_NODE,
        what="cgroup v1 or v2, and what denies devices in it",
        why="the device cgroup is what keeps a container from the cards of others",
        look=then(Host.cgroups, kernel.decide_cgroups),
    ),
    Check(
        name="selinux",
        group=_NODE,
        what="SELinux, and its boolean container_use_devices",
        why="it can deny a container the device that it was given",
        look=then(Host.selinux, kernel.decide_selinux),
    ),
    Check(
        name="clock",
        group=_NODE,
        what="the clock is synchronised",
        why="certificates, leases and the times in the ledger depend on it",
        look=then(Host.clock, kernel.decide_clock),
    ),
    Check(
        name="node-name",
        group=_CLUSTER,
        what="node_name is what kubelet calls this node",
        why="assignments for another node are refused",
        look=then(Host.name, cluster.decide_name),
    ),
    Check(
        name="api",
        group=_CLUSTER,
        what="report: the API server is reached, has this Node and NodeDevices, and allows what the reporter does",
        why="central assigns the devices in reports, and none of a node that does not report",
        look=then(Host.api, cluster.decide_api),
    ),
)
