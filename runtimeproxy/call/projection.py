"""Select the fields of a pod sandbox and a container for hooks: identity, annotations, names; never a value that may be secret.

Values of environment variables are included only if a registration names the variable.

Source: runtime.v1 PodSandboxConfig, ContainerConfig, PodSandbox, Container; protos/hook/v1/hook.proto.
"""

from collections.abc import Collection
from typing import Any, Final

from lading.vocabulary import adds_sys_admin
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook

_PLAIN_RESOURCES: Final = frozenset(f.name for f in hook.LinuxResources.DESCRIPTOR.fields if f.name != "unified")


def sandbox_of_config(config: cri.PodSandboxConfig, *, sandbox_id: str = "", runtime_handler: str = "") -> hook.PodSandbox:
    """Convert a sandbox's configuration, which has neither the id nor the runtime handler: the caller passes them."""
    context = config.linux.security_context
    namespaces = context.namespace_options
    return hook.PodSandbox(
        id=sandbox_id,
        name=config.metadata.name,
        namespace=config.metadata.namespace,
        uid=config.metadata.uid,
        attempt=config.metadata.attempt,
        annotations=config.annotations,
        labels=config.labels,
        runtime_handler=runtime_handler,
        cgroup_parent=config.linux.cgroup_parent,
        host_network=namespaces.network == cri.NODE,
        # POD is 0, so only the presence of the options tells "requested" from "not known to the caller"
        user_namespace=namespaces.HasField("userns_options") and namespaces.userns_options.mode == cri.POD,
        privileged=context.privileged,
    )


def sandbox_of_list(item: cri.PodSandbox | cri.PodSandboxStatus) -> hook.PodSandbox:
    """Convert a sandbox of the runtime's list or status, which lacks cgroup parent, namespaces and privileges."""
    return hook.PodSandbox(
        id=item.id,
        name=item.metadata.name,
        namespace=item.metadata.namespace,
        uid=item.metadata.uid,
        attempt=item.metadata.attempt,
        annotations=item.annotations,
        labels=item.labels,
        runtime_handler=item.runtime_handler,
    )


def container_identity(config: cri.ContainerConfig | cri.Container, *, container_id: str = "") -> hook.Container:
    """Convert only the fields that the runtime's lists have, so that a cached container is the same from a call or a list."""
    return hook.Container(
        id=container_id,
        name=config.metadata.name,
        attempt=config.metadata.attempt,
        annotations=config.annotations,
        labels=config.labels,
        image=config.image.user_specified_image or config.image.image,
    )


def container_of_config(
    config: cri.ContainerConfig, identity: hook.Container, *, env_values: Collection[str] = ()
) -> hook.Container:
    """Convert a container's configuration. `identity`: its `container_identity`. `env_values` names the variables whose
    values are included; a value that is not UTF-8 is left out."""
    container = hook.Container()
    container.CopyFrom(identity)
    container.mount_paths.extend(mount.container_path for mount in config.mounts)
    container.cdi_devices.extend(device.name for device in config.CDI_devices)
    security = config.linux.security_context
    container.privileged = security.privileged
    container.sys_admin = adds_sys_admin(security.capabilities.add_capabilities)
    for env in config.envs:
        shown = container.env.add(name=env.key)
        if env.key in env_values and (value := _text(env.value)) is not None:
            shown.value = value
    for device in config.devices:
        container.devices.add(container_path=device.container_path, host_path=device.host_path, permissions=device.permissions)
    if config.linux.HasField("resources"):
        container.resources.CopyFrom(resources_of(config.linux.resources))
    return container


def resources_of(resources: cri.LinuxContainerResources) -> hook.LinuxResources:
    """Convert resources. CRI uses 0 and empty for "not set", so fields with these values are absent."""
    plain: dict[str, Any] = {field.name: value for field, value in resources.ListFields() if field.name in _PLAIN_RESOURCES}
    return hook.LinuxResources(**plain, unified=resources.unified)


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
