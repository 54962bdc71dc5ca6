"""Define a container that is about to be created, its sandbox, and the answer about it: what is added to it, and the work that
must be done before. A front end translates them from and to its protocol; everything below it uses these values.

Source: CRI PodSandboxConfig and ContainerConfig, of which these are the parts that a decision uses.

Tests: tests/unit/hooks/frontends/nri/test_messages.py
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hooks.model.attachment import WantedVf
from hooks.model.cdi import Hook
from hooks.model.grant import Grant
from hooks.model.inventory import CharDevice, Gpu
from lading.sharegrant import ShareGrant


@dataclass(frozen=True, slots=True)
class EnvVar:
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    container_path: str
    host_path: str = ""
    permissions: str = ""  # permissions in the device cgroup: a subset of "rwm"


@dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    readonly: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    id: str = ""
    uid: str = ""
    namespace: str = ""
    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""
    cgroup_parent: str = ""  # the pod's cgroup, as kubelet names it to the runtime
    host_network: bool = False
    user_namespace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    id: str = ""  # empty before it is created
    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: tuple[EnvVar, ...] = ()
    devices: tuple[Device, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    privileged: bool = False
    sys_admin: bool = False  # whether the added capabilities have SYS_ADMIN or ALL

    def values_of(self, name: str) -> list[str]:
        """Return each value of an environment variable: the last one counts, and kubelet writes a device plugin's first."""
        return [env.value for env in self.env if env.name == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    env: tuple[EnvVar, ...] = ()  # set or replaced, in this order
    devices: tuple[Device, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()  # vendor/class=name
    annotations: Mapping[str, str] = field(default_factory=dict)
    add_capabilities: tuple[str, ...] = ()  # without "CAP_", as in CRI
    unlimited_memlock: bool = False  # it may lock as much memory as it wants
    hooks: tuple[Hook, ...] = ()  # programs that the runtime runs before the container starts; CRI has no field for them


def merge(parts: Iterable[Adjustment]) -> Adjustment:
    """Return one adjustment with everything of these, in their order."""
    parts = tuple(parts)
    if len(parts) == 1:
        return parts[0]
    return Adjustment(
        env=tuple(env for part in parts for env in part.env),
        devices=tuple(device for part in parts for device in part.devices),
        mounts=tuple(mount for part in parts for mount in part.mounts),
        cdi_devices=tuple(name for part in parts for name in part.cdi_devices),
        annotations={key: value for part in parts for key, value in part.annotations.items()},
        add_capabilities=tuple(name for part in parts for name in part.add_capabilities),
        unlimited_memlock=any(part.unlimited_memlock for part in parts),
        hooks=tuple(hook for part in parts for hook in part.hooks),
    )


def devices_of(nodes: Iterable[CharDevice]) -> tuple[Device, ...]:
    """Return each node once, for read and write: `m` (mknod) would let a container make nodes for other devices."""
    unique = {node.path: node for node in nodes}
    return tuple(Device(node.path, node.host_path, "rw") for node in unique.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold the answer about a new container: its adjustment, and the work to do before the adjustment is sent."""

    adjustment: Adjustment
    grant: Grant | None = None  # to be recorded in the ledger before the adjustment is sent
    key_id: str = ""  # id of the key that signed the assignment, for the record
    share: ShareGrant | None = None  # to be written for the share server before the adjustment is sent
    preloads: tuple[str, ...] = ()  # environment variables of the pod that may circumvent the isolation; for the log
    attach: tuple[WantedVf, ...] = ()  # VFs to be moved into the pod before the adjustment is sent
    undivided: tuple[Gpu, ...] = ()  # cards on which MIG instances must be made before the answer is decided again
    reused: bool = False
