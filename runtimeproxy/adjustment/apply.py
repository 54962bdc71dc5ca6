"""A merged adjustment onto a CRI request: new bytes, with everything that the adjustment does not name as it was.

Enters: the request's bytes and a merged, validated adjustment. Leaves: the changed bytes, and the names of environment
variables that the container asked for and did not get as asked (names, never values). Applying twice equals applying once.
Fields that our copy of the API does not know survive, because protobuf keeps them. Refuses nothing: `merge` has.

Source: runtime.v1 CreateContainerRequest, RunPodSandboxRequest, UpdateContainerResourcesRequest.
"""

import posixpath
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage

Placed = TypeVar("Placed", cri.Mount, cri.Device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    message: bytes
    env_replaced: tuple[str, ...] = ()


def apply_adjustment(message: bytes, adjustment: hook.Adjustment, stage: Stage) -> Applied:
    """`message` must parse as that stage's request. One whose stage carries nothing that can change comes back as it was."""
    match stage:
        case Stage.CREATE_CONTAINER:
            create = cri.CreateContainerRequest.FromString(message)
            replaced = _onto_container(create.config, adjustment)
            return Applied(message=_bytes(create), env_replaced=replaced)
        case Stage.RUN_POD_SANDBOX:
            run = cri.RunPodSandboxRequest.FromString(message)
            run.config.annotations.update(adjustment.annotations)
            run.config.labels.update(adjustment.labels)
            if adjustment.HasField("resources"):
                _set_resources(run.config.linux.resources, adjustment.resources)
            return Applied(message=_bytes(run))
        case Stage.UPDATE_CONTAINER_RESOURCES:
            update = cri.UpdateContainerResourcesRequest.FromString(message)
            update.annotations.update(adjustment.annotations)
            if adjustment.HasField("resources"):
                _set_resources(update.linux, adjustment.resources)
            return Applied(message=_bytes(update))
        case _:
            return Applied(message=message)


def _onto_container(config: cri.ContainerConfig, adjustment: hook.Adjustment) -> tuple[str, ...]:
    replaced = _set_env(config, adjustment)
    for mount in adjustment.mounts:
        ours = cri.Mount(container_path=mount.container_path, host_path=mount.host_path, readonly=mount.readonly)
        _at_path(config.mounts, mount.container_path).CopyFrom(ours)
    for device in adjustment.devices:
        node = cri.Device(container_path=device.container_path, host_path=device.host_path, permissions=device.permissions)
        _at_path(config.devices, device.container_path).CopyFrom(node)
    named = {device.name for device in config.CDI_devices}
    for name in adjustment.cdi_devices:
        if name not in named:
            config.CDI_devices.add(name=name)
    config.annotations.update(adjustment.annotations)
    config.labels.update(adjustment.labels)
    if adjustment.HasField("resources"):
        _set_resources(config.linux.resources, adjustment.resources)
    if adjustment.add_capabilities:
        added = config.linux.security_context.capabilities.add_capabilities
        added.extend(name for name in adjustment.add_capabilities if name not in added)
    return replaced


def _set_env(config: cri.ContainerConfig, adjustment: hook.Adjustment) -> tuple[str, ...]:
    """An upsert takes the first occurrence's place; the others go, since runtimes differ on which of two counts."""
    wanted = {env.name: env.value.encode() for env in adjustment.env}
    removed = frozenset(adjustment.env_remove)
    seen: set[str] = set()
    replaced: dict[str, None] = {}  # as an ordered set
    drop: list[int] = []
    for i, env in enumerate(config.envs):
        if env.key not in wanted and env.key not in removed:
            continue
        if env.value != wanted.get(env.key):
            replaced[env.key] = None
        if env.key in removed or env.key in seen:
            drop.append(i)
        else:
            seen.add(env.key)
            env.value = wanted[env.key]
    for i in reversed(drop):
        del config.envs[i]
    for name, value in wanted.items():
        if name not in seen:
            config.envs.add(key=name, value=value)
    return tuple(replaced)


def _at_path(entries: RepeatedCompositeFieldContainer[Placed], path: str) -> Placed:
    """The entry that stands at this path of the container, however its path is written, or a new one. Later ones go."""
    here = [i for i, entry in enumerate(entries) if _cleaned(entry.container_path) == path]
    for i in reversed(here[1:]):
        del entries[i]
    return entries[here[0]] if here else entries.add()


def _cleaned(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")  # as Go's filepath.Clean has it, for which '//' is '/'


def _set_resources(resources: cri.LinuxContainerResources, ours: hook.LinuxResources) -> None:
    for field, value in ours.ListFields():
        if field.name != "unified":
            setattr(resources, field.name, value)
    resources.unified.update(ours.unified)


def _bytes(request: Message) -> bytes:
    return request.SerializeToString(deterministic=True)  # maps in one order: adjusting twice equals once, byte for byte
