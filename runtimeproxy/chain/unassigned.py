"""Apply `hide-unassigned`: what the proxy itself sets on containers whose pod requests no devices from a hook. Needs no call.

Enters: the static adjustment of a registration and a container's request. Leaves: an adjustment, or None for a container that
is exempt: by the namespace that an operator configured (never by what a pod declares), or, where a device plugin serves the
node too, because kubelet already supplied a card. That card is told from a user's own environment by its form only: a list of
UUIDs.

Source: NVIDIA k8s-device-plugin's device-list strategies (envvar, volume-mounts, cdi-annotations, cdi-cri).
"""

import re
from typing import Final

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.chain.registrations import HideUnassigned

_UUIDS: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+(,(GPU|MIG)-[0-9A-Za-z/-]+)*")
_PLUGIN_MOUNTS: Final = "/var/run/nvidia-container-devices/"  # strategy volume-mounts: one mount for each UUID


def decide_hidden(hide: HideUnassigned, request: cri.CreateContainerRequest) -> hook.Adjustment | None:
    """Return what to set on this container, whose pod has none of the registration's prefixes; None leaves it unchanged."""
    if request.sandbox_config.metadata.namespace in hide.exempt_namespaces:
        return None
    if hide.keep_kubelet_devices and _supplied(hide, request.config):
        return None
    return hook.Adjustment(env=[hook.EnvUpsert(name=name, value=value) for name, value in hide.env])


def _supplied(hide: HideUnassigned, config: cri.ContainerConfig) -> bool:
    names = {name for name, _ in hide.env}
    return (
        any(device.container_path.startswith("/dev/nvidia") for device in config.devices)
        or any(device.name.startswith("nvidia.com/") for device in config.CDI_devices)
        or any(key.startswith("cdi.k8s.io/") and "nvidia.com/" in value for key, value in config.annotations.items())
        or any(mount.container_path.startswith(_PLUGIN_MOUNTS) for mount in config.mounts)
        or any(env.key in names and _UUIDS.fullmatch(env.value.decode("utf-8", "replace")) for env in config.envs)
    )
