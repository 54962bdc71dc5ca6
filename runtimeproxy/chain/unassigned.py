"""Apply `hide-unassigned`: hide a vendor's cards from containers whose pod requests none from a hook. No hook is asked.

Only a namespace that an operator configured exempts a container, never a declaration of the pod. Devices that a vendor's device
plugin supplied stay as they are. If the pod's own value of a variable would replace the plugin's, the plugin's is put back.
kubelet writes the plugin's value first, and the last value counts.
"""

from typing import Final

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.chain.registrations import HideUnassigned, Supplied

_CDI_ANNOTATION: Final = "cdi.k8s.io/"


def decide_hidden(hide: HideUnassigned, request: cri.CreateContainerRequest) -> hook.Adjustment | None:
    """Return the variables to set on a container whose pod has none of the registration's prefixes; None for no change."""
    if request.sandbox_config.metadata.namespace in hide.exempt_namespaces:
        return None
    wanted = []
    for name, hiding in hide.env.items():
        values = [env.value.decode("utf-8", "replace") for env in request.config.envs if env.key == name]
        value = next((v for v in values if _is_supplied(v, hide.supplied)), hiding)
        if values != [value] and (values or not _has_supplied_device(request.config, hide.supplied)):
            wanted.append(hook.EnvUpsert(name=name, value=value))
    return hook.Adjustment(env=wanted) if wanted else None


def _is_supplied(value: str, supplied: Supplied) -> bool:
    prefixes = supplied.value_prefixes
    return value in supplied.values or all(entry.startswith(prefixes) and entry not in prefixes for entry in value.split(","))


def _has_supplied_device(config: cri.ContainerConfig, supplied: Supplied) -> bool:
    names = [device.name for device in config.CDI_devices]
    for key, value in config.annotations.items():
        if key.startswith(_CDI_ANNOTATION):
            names += [name.strip() for name in value.split(",")]
    return (
        any(name.startswith(supplied.cdi_prefixes) for name in names)
        or any(d.container_path.startswith(supplied.device_prefixes) for d in config.devices)
        or any(d.host_path.startswith(supplied.device_prefixes) for d in config.devices)
        or any(mount.container_path.startswith(supplied.mount_prefixes) for mount in config.mounts)
    )
