"""Hide cards from a container without a GPU from Lading, and find the cards that kubelet gives it for a device plugin.

Many images set `NVIDIA_VISIBLE_DEVICES=all`; where NVIDIA's runtime is the node's default, each such container would see every
card. `NVIDIA_VISIBLE_DEVICES=void` hides them. Where a device plugin serves the node too, the value from kubelet is kept, and
restored if the pod's own value would replace it. A pod that knows a card's UUID can then still name that card: this is a
weakness of the device plugin.

A container's CRI devices, CDI names and `cdi.k8s.io/` annotations come from kubelet only; a pod cannot write them. A pod can
write its environment. So a variable's value counts only if the node is configured to coexist with a device plugin, and the
value is a list of UUIDs. Images and people write `all`, `none` and indices instead. An entry may have the number of a replica
behind its UUID (`GPU-0a1b::3`).

Source: NVIDIA k8s-device-plugin's device-list strategies (envvar, volume-mounts, cdi-annotations, cdi-cri).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from hooks.model.container import Adjustment, Container, EnvVar

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"  # value of VISIBLE_DEVICES that shows no card
CDI_KIND: Final = "nvidia.com/gpu"
_NODES: Final = "/dev/nvidia"
_CDI_VENDOR: Final = CDI_KIND.partition("/")[0] + "/"
_CDI_ANNOTATION: Final = "cdi.k8s.io/"
_UUIDS: Final = ("GPU-", "MIG-")
_MOUNTS: Final = "/var/run/nvidia-container-devices"  # strategy volume-mounts: the variable's value, and a mount for each UUID

# The registration gives the proxy the same rules; the proxy also sees mounts.
SUPPLIED: Final[Mapping[str, Sequence[str]]] = {
    "device-prefixes": (_NODES,),
    "cdi-prefixes": (_CDI_VENDOR,),
    "mount-prefixes": (f"{_MOUNTS}/",),
    "values": (_MOUNTS,),
    "value-prefixes": _UUIDS,
}


def hide(container: Container, *, coexist: bool) -> Adjustment:
    """Return the adjustment that hides all cards from a container. `coexist`: a device plugin serves the node too."""
    value = VOID
    if coexist:
        values = container.values_of(VISIBLE_DEVICES)
        value = next(filter(is_supplied, values), VOID)
        if values == [value] or (not values and supplied_card(container)):
            return Adjustment()
    return Adjustment(env=(EnvVar(VISIBLE_DEVICES, value),))


def supplied_by_kubelet(container: Container, *, coexist: bool) -> str:
    """Return the first sign of a card from kubelet, as text for a message; empty without a sign."""
    values = container.values_of(VISIBLE_DEVICES) if coexist else ()
    return supplied_card(container) or next((f"{VISIBLE_DEVICES}={value}" for value in values if is_supplied(value)), "")


def supplied_card(container: Container) -> str:
    """Return the first sign of a card that only kubelet can write; empty without a sign."""
    for device in container.devices:
        if device.container_path.startswith(_NODES) or device.host_path.startswith(_NODES):
            return device.container_path
    for name in container.cdi_devices:
        if name.startswith(_CDI_VENDOR):
            return name
    for key, value in container.annotations.items():
        if key.startswith(_CDI_ANNOTATION) and any(name.strip().startswith(_CDI_VENDOR) for name in value.split(",")):
            return key
    return ""


def is_supplied(value: str) -> bool:
    """Return whether a value of NVIDIA_VISIBLE_DEVICES has a device plugin's form."""
    return value == _MOUNTS or all(entry.startswith(_UUIDS) and entry not in _UUIDS for entry in value.split(","))
