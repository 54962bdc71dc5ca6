"""Find what kubelet already gives a container on behalf of a device plugin: Lading neither assigns nor hides these devices.

A container's CRI devices, CDI names and `cdi.k8s.io/` annotations come from kubelet only; a pod can not write them. Its
environment a pod writes too, so a value counts only where the node is configured to coexist with a device plugin, and only a
list of UUIDs does: `all`, `none` and indices are what images and people write.
"""

import re
from typing import Final

from hooks.vendors.nvidia.inject import CDI_KIND, VISIBLE_DEVICES
from protos.hook.v1 import hook_pb2

_NVIDIA_NODE: Final = re.compile(r"/dev/nvidia.*", re.DOTALL)
_INFINIBAND_NODE: Final = re.compile(r"/dev/infiniband/.*", re.DOTALL)
_CDI_VENDOR: Final = CDI_KIND.partition("/")[0] + "/"
_CDI_ANNOTATION: Final = "cdi.k8s.io/"
_UUIDS: Final = re.compile(r"(?:GPU|MIG)-[^,]+(?:,(?:GPU|MIG)-[^,]+)*")


def supplied_gpu(container: hook_pb2.Container) -> str:
    """Return the first sign of a GPU from kubelet, for a message; empty without one."""
    for device in container.devices:
        if _is_node(device, _NVIDIA_NODE):
            return device.container_path
    for name in container.cdi_devices:
        if name.startswith(_CDI_VENDOR):
            return name
    for key, value in container.annotations.items():
        if key.startswith(_CDI_ANNOTATION) and any(name.strip().startswith(_CDI_VENDOR) for name in value.split(",")):
            return key
    return ""


def supplied_rdma(container: hook_pb2.Container) -> str:
    """Return the first verbs node from kubelet; empty without one."""
    return next((device.container_path for device in container.devices if _is_node(device, _INFINIBAND_NODE)), "")


def visible_devices(container: hook_pb2.Container) -> list[str]:
    """Return each value of NVIDIA_VISIBLE_DEVICES: kubelet writes a device plugin's first, then the pod's, and the last
    counts."""
    return [env.value for env in container.env if env.name == VISIBLE_DEVICES]


def names_uuids(value: str) -> bool:
    return _UUIDS.fullmatch(value) is not None


def _is_node(device: hook_pb2.Device, pattern: re.Pattern[str]) -> bool:
    return any(pattern.fullmatch(path) for path in (device.container_path, device.host_path))
