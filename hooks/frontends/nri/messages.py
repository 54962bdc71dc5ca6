"""Convert NRI's messages to the values of `hooks.model`, and adjustments back to NRI messages.

An adjustment that NRI or this runtime version cannot express becomes a refusal that names the inexpressible part. Such parts
are capabilities, device permissions other than `rw`, and CDI names where the runtime ignores them. NRI shows the container's
environment with the image's variables, each once, and does not show its capabilities.

Source: containerd/nri, pkg/api (AccessString: a device is given `rw`); containerd's NRI domain for the form of a privileged
container and of a pod in the host's network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Container, Device, EnvVar, Sandbox
from lading.log import printable
from lading.reasons import Reason
from lading.versions import parse_version
from protos.nri.v1alpha1 import nri_pb2 as nri

_CDI_1_7: Final = (1, 7, 26)  # first containerd 1.7 with NRI 0.7, whose adjustments have CDI devices; 2.0 has it as well
_VALIDATES: Final = (2, 2, 0)  # first containerd with NRI 0.10, which has ValidateContainerAdjustment
_BIND: Final = ("rbind", "rprivate")
_READ_WRITE: Final = "rw"
_UNLIMITED: Final = (1 << 64) - 1  # RLIM_INFINITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Hold the name and version that the container runtime reported (NRI's Configure)."""

    name: str = ""
    version: str = ""

    @property
    def _release(self) -> tuple[int, ...]:
        return (parse_version(self.version) if self.name == "containerd" else None) or (0, 0, 0)

    @property
    def honours_cdi(self) -> bool:
        """Return whether the runtime applies an adjustment's CDI devices; an older runtime drops them silently."""
        return self._release >= _CDI_1_7

    @property
    def validates(self) -> bool:
        """Return whether the runtime lets plugins validate the sum of all adjustments (ValidateContainerAdjustment). An older
        runtime rejects a plugin that subscribes to an unknown event."""
        return self._release >= _VALIDATES

    def __str__(self) -> str:
        return printable(f"{self.name} {self.version}")[:100]


class NriDevice(NamedTuple):
    """Hold the numbers, mode and owner of a device node on the host."""

    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


def read_sandbox(pod: nri.PodSandbox) -> Sandbox:
    namespaces = {namespace.type for namespace in pod.linux.namespaces}
    return Sandbox(
        id=pod.id,
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        annotations=dict(pod.annotations),
        runtime_handler=pod.runtime_handler,
        host_network=bool(namespaces) and "network" not in namespaces,
        user_namespace="user" in namespaces,
    )


def read_netns(pod: nri.PodSandbox) -> str:
    """Return the path of the pod's network namespace; empty if the pod has none of its own or the runtime reports none."""
    paths = (namespace.path for namespace in pod.linux.namespaces if namespace.type == "network")
    return next((path for path in paths if path.startswith("/")), "")


def read_container(container: nri.Container) -> Container:
    return Container(
        id=container.id,
        name=container.name,
        annotations=dict(container.annotations),
        env=tuple(EnvVar(name, value) for name, _, value in (one.partition("=") for one in container.env)),
        devices=tuple(Device(one.path) for one in container.linux.devices),
        privileged=any(map(_opens_every_device, container.linux.resources.devices)),
    )


def _opens_every_device(rule: nri.LinuxDeviceCgroup) -> bool:
    return rule.allow and rule.type in {"", "a"} and not rule.HasField("major")


def render_answer(answer: Answer, runtime: Runtime, read_node: Callable[[str], NriDevice]) -> nri.ContainerAdjustment | Refusal:
    """Return the adjustment in NRI's form. `read_node` reads a device node of the host, or raises HostError."""
    adjustment = answer.adjustment
    if lost := _find_lost(adjustment, runtime):
        return lost
    message = nri.ContainerAdjustment(annotations=adjustment.annotations)
    for env in adjustment.env:
        message.env.add(key=env.name, value=env.value)
    for mount in adjustment.mounts:
        options = (*_BIND, "ro" if mount.readonly else _READ_WRITE)
        message.mounts.add(destination=mount.container_path, type="bind", source=mount.host_path, options=options)
    for device in adjustment.devices:
        _add_device(message, device.container_path, read_node(device.host_path))
    if adjustment.unlimited_memlock:
        message.rlimits.add(type="RLIMIT_MEMLOCK", hard=_UNLIMITED, soft=_UNLIMITED)
    for name in adjustment.cdi_devices:
        message.CDI_devices.add(name=name)
    for hook in adjustment.hooks:
        message.hooks.create_container.add(path=hook.path, args=hook.args, env=hook.env)
    return message


def _add_device(message: nri.ContainerAdjustment, path: str, node: NriDevice) -> None:
    device = message.linux.devices.add(path=path, type="c", major=node.major, minor=node.minor)
    device.file_mode.value, device.uid.value, device.gid.value = node.mode, node.uid, node.gid


def _find_lost(adjustment: Adjustment, runtime: Runtime) -> Refusal | None:
    """Return a refusal that names the part of the adjustment which this runtime would drop; None if it drops no part."""
    if adjustment.cdi_devices and not runtime.honours_cdi:
        return Refusal(reason=Reason.CDI_UNAVAILABLE, message=f"cannot give CDI devices: {cdi_problem(runtime)}")
    if adjustment.add_capabilities:
        names = ", ".join(adjustment.add_capabilities)
        return _not_expressed(f"the capabilities {names}: NRI cannot add capabilities")
    if wider := [one for one in adjustment.devices if one.permissions != _READ_WRITE]:
        return _not_expressed(f"{wider[0].container_path} with {wider[0].permissions!r}: NRI gives devices {_READ_WRITE!r}")
    return None


def cdi_problem(runtime: Runtime) -> str:
    return f"by NRI, {runtime} silently ignores them; containerd 1.7.26 is the first that honours them"


def _not_expressed(what: str) -> Refusal:
    return Refusal(reason=Reason.NRI_UNSUPPORTED, message=f"cannot give {what}")
