"""Build CRI requests as kubelet 1.36 does: the same labels, annotations, environment, mounts and defaults, in the same order.

The input is parts of a pod spec; the output is `runtime.v1` messages of a best-effort pod. Source: requests captured from
a real kubelet (tests/golden/cri); kubelet's pkg/kubelet/kuberuntime.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict
from uuid import uuid4
from zlib import crc32

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode import images

_MASKED = (
    *("/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
    "/sys/devices/virtual/powercap",
)
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_SERVICE_ENV = {
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
}
_BEST_EFFORT = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    name: str
    uid: str = field(default_factory=lambda: str(uuid4()))
    namespace: str = "default"
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    privileged: bool = False  # any container of it is
    attempt: int = 0


class PodOptions(TypedDict, total=False):
    """Declare the fields of PodSpec without the name, as keyword arguments."""

    uid: str
    namespace: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    host_network: bool
    privileged: bool
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Represent a character or block device, as a device plugin would have kubelet pass it."""

    host_path: Path
    container_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    host_path: Path
    container_path: str
    readonly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    name: str
    image: str = images.BUSYBOX  # the name that the pod's author wrote
    command: Sequence[str] = ("pause",)
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[Device] = ()
    mounts: Sequence[Mount] = ()
    cdi_devices: Sequence[str] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)  # in addition to kubelet's own, as a device plugin may add
    privileged: bool = False
    readonly_rootfs: bool = False
    attempt: int = 0  # counts restarts


class ContainerOptions(TypedDict, total=False):
    """Declare the fields of ContainerSpec without the name, as keyword arguments."""

    image: str
    command: Sequence[str]
    args: Sequence[str]
    env: Mapping[str, str]
    devices: Sequence[Device]
    mounts: Sequence[Mount]
    cdi_devices: Sequence[str]
    annotations: Mapping[str, str]
    privileged: bool
    readonly_rootfs: bool
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFolders:
    """Hold a kubelet's folders: `/var/log/pods`, `/var/lib/kubelet/pods`, and the cgroup root."""

    logs: Path
    pods: Path
    cgroup_root: str  # "" as kubelet's default, else /name

    def log_folder(self, pod: PodSpec) -> Path:
        return self.logs / f"{pod.namespace}_{pod.name}_{pod.uid}"

    def etc_hosts(self, pod: PodSpec) -> Path:
        return self.pods / pod.uid / "etc-hosts"

    def termination_log(self, pod: PodSpec, container: ContainerSpec) -> Path:
        return self.pods / pod.uid / "containers" / container.name / f"{container.attempt:08x}"


def render_sandbox(pod: PodSpec, folders: NodeFolders) -> cri.PodSandboxConfig:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt),
        hostname="" if pod.host_network else pod.name,
        log_directory=str(folders.log_folder(pod)),
        dns_config=cri.DNSConfig(servers=["10.96.0.10"]),
        labels={**pod.labels, **_identity(pod)},
        annotations={
            **pod.annotations,
            "kubernetes.io/config.seen": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"),
            "kubernetes.io/config.source": "api",
        },
    )
    config.linux.cgroup_parent = f"{folders.cgroup_root}/kubepods/besteffort/pod{pod.uid}"
    security = config.linux.security_context
    security.namespace_options.CopyFrom(_namespaces(pod))
    security.privileged = pod.privileged
    security.seccomp.SetInParent()  # RuntimeDefault, for the pause container
    config.linux.overhead.SetInParent()
    config.linux.resources.CopyFrom(_BEST_EFFORT)
    return config


def render_container(pod: PodSpec, container: ContainerSpec, *, image_id: str, folders: NodeFolders) -> cri.ContainerConfig:
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=container.attempt),
        image=cri.ImageSpec(image=image_id, user_specified_image=container.image),
        command=container.command,
        args=container.args,
        envs=[cri.KeyValue(key=k, value=v.encode()) for k, v in (*container.env.items(), *_SERVICE_ENV.items())],
        mounts=[
            *(
                cri.Mount(container_path=m.container_path, host_path=str(m.host_path), readonly=m.readonly)
                for m in container.mounts
            ),
            cri.Mount(container_path="/etc/hosts", host_path=str(folders.etc_hosts(pod))),
            cri.Mount(container_path="/dev/termination-log", host_path=str(folders.termination_log(pod, container))),
        ],
        devices=[
            cri.Device(container_path=d.container_path, host_path=str(d.host_path), permissions=d.permissions)
            for d in container.devices
        ],
        labels={"io.kubernetes.container.name": container.name, **_identity(pod)},
        annotations={**container.annotations, **_own_annotations(container)},
        log_path=f"{container.name}/{container.attempt}.log",
        CDI_devices=[cri.CDIDevice(name=name) for name in container.cdi_devices],
    )
    config.linux.resources.CopyFrom(_BEST_EFFORT)
    config.linux.resources.oom_score_adj = 1000
    for size in ("2MB", "1GB"):
        config.linux.resources.hugepage_limits.add(page_size=size)
    security = config.linux.security_context
    security.privileged = container.privileged
    security.readonly_rootfs = container.readonly_rootfs
    security.namespace_options.CopyFrom(_namespaces(pod))
    security.run_as_user.SetInParent()
    security.masked_paths.extend(_MASKED)
    security.readonly_paths.extend(_READONLY)
    security.seccomp.profile_type = cri.SecurityProfile.Unconfined
    return config


def _identity(pod: PodSpec) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.uid": pod.uid,
    }


def _own_annotations(container: ContainerSpec) -> dict[str, str]:
    return {
        "io.kubernetes.container.hash": f"{crc32(repr((container.name, container.image, container.command)).encode()):x}",
        "io.kubernetes.container.restartCount": str(container.attempt),
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    }


def _namespaces(pod: PodSpec) -> cri.NamespaceOption:
    return cri.NamespaceOption(
        network=cri.NODE if pod.host_network else cri.POD,
        pid=cri.CONTAINER,
        userns_options=cri.UserNamespace(mode=cri.NODE),
    )
