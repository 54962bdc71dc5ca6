"""Apply a merged adjustment to a CRI request. All other fields stay unchanged, also fields that our copy of the API does not
define. Applying twice equals applying once.

Source: runtime.v1 CreateContainerRequest, RunPodSandboxRequest, UpdateContainerResourcesRequest.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage
from runtimeproxy.protobuf.patch import AtPaths, Edit, Edits, Inner, Named, Replaced, Upserted, edited, tag, upserted_map


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    message: bytes
    env_replaced: tuple[str, ...] = ()


def apply_adjustment(message: bytes, adjustment: hook.Adjustment, stage: Stage) -> Applied:
    """Return the changed message. `message` must parse as the stage's request. If that request carries nothing that a hook can
    change, the message is returned unchanged."""
    env = _env(adjustment)
    match stage:
        case Stage.CREATE_CONTAINER:
            config: Edits = {
                **_container_lists(adjustment, env),
                **_maps(cri.ContainerConfig, adjustment),
                **_linux(cri.ContainerConfig, _container_linux(adjustment)),
            }
            edits: Edits = {tag(cri.CreateContainerRequest, "config"): Inner(config)}
        case Stage.RUN_POD_SANDBOX:
            config = {
                **_maps(cri.PodSandboxConfig, adjustment),
                **_linux(cri.PodSandboxConfig, _resources(cri.LinuxPodSandboxConfig, "resources", adjustment)),
            }
            edits = {tag(cri.RunPodSandboxRequest, "config"): Inner(config)}
        case Stage.UPDATE_CONTAINER_RESOURCES:
            kind = cri.UpdateContainerResourcesRequest
            annotations = upserted_map(kind, "annotations", adjustment.annotations)
            edits = {tag(kind, "annotations"): annotations, **_resources(kind, "linux", adjustment)}
        case _:
            return Applied(message=message)
    return Applied(message=edited(message, edits), env_replaced=tuple(env.replaced))


def _env(adjustment: hook.Adjustment) -> Upserted:
    def render(entries: Iterable[cri.KeyValue]) -> bytes:
        return cri.ContainerConfig(envs=entries).SerializeToString()

    return Upserted({env.name: env.value.encode() for env in adjustment.env}, render, adjustment.env_remove)


def _container_lists(adjustment: hook.Adjustment, env: Upserted) -> Edits:
    """Return edits only for the lists that the adjustment names: entries of the others need not be read."""
    edits: dict[str, Edit] = {}
    if adjustment.env or adjustment.env_remove:
        edits["envs"] = env
    if adjustment.mounts:
        mounts = (
            cri.Mount(container_path=m.container_path, host_path=m.host_path, readonly=m.readonly) for m in adjustment.mounts
        )
        edits["mounts"] = AtPaths("mounts", mounts)
    if adjustment.devices:
        devices = (
            cri.Device(container_path=d.container_path, host_path=d.host_path, permissions=d.permissions)
            for d in adjustment.devices
        )
        edits["devices"] = AtPaths("devices", devices)
    if adjustment.cdi_devices:
        edits["CDI_devices"] = Named(adjustment.cdi_devices, _read_cdi_name, _render_cdi_devices)
    return {tag(cri.ContainerConfig, name): edit for name, edit in edits.items()}


def _maps(kind: type[Message], adjustment: hook.Adjustment) -> Edits:
    maps = (("annotations", adjustment.annotations), ("labels", adjustment.labels))
    return {tag(kind, name): upserted_map(kind, name, wanted) for name, wanted in maps if wanted}


def _linux(kind: type[Message], edits: Edits) -> Edits:
    return {tag(kind, "linux"): Inner(edits)} if edits else {}


def _container_linux(adjustment: hook.Adjustment) -> Edits:
    edits = dict(_resources(cri.LinuxContainerConfig, "resources", adjustment))
    if adjustment.add_capabilities:
        added = Named(adjustment.add_capabilities, bytes.decode, _render_capabilities)
        capabilities = Inner({tag(cri.Capability, "add_capabilities"): added})
        context = Inner({tag(cri.LinuxContainerSecurityContext, "capabilities"): capabilities})
        edits[tag(cri.LinuxContainerConfig, "security_context")] = context
    return edits


def _resources(kind: type[Message], name: str, adjustment: hook.Adjustment) -> Edits:
    """Return edits of the field of `kind` that holds LinuxContainerResources."""
    if not adjustment.HasField("resources"):
        return {}
    resources = cri.LinuxContainerResources
    edits: dict[int, Edit] = {
        tag(resources, field.name): Replaced(resources, field.name, value)
        for field, value in adjustment.resources.ListFields()
        if field.name != "unified"
    }
    if adjustment.resources.unified:
        edits[tag(resources, "unified")] = upserted_map(resources, "unified", adjustment.resources.unified)
    return {tag(kind, name): Inner(edits)}


def _read_cdi_name(content: bytes) -> str:
    return cri.CDIDevice.FromString(content).name


def _render_cdi_devices(names: list[str]) -> bytes:
    return cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name=name) for name in names]).SerializeToString()


def _render_capabilities(names: list[str]) -> bytes:
    return cri.Capability(add_capabilities=names).SerializeToString()
