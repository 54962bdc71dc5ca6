"""Find the pod sandbox of a call, and its container if the stage has one, in the request and in `SandboxCache`.

Fields that neither contains are empty. A pod's annotation keys are those of the request and those that the pod was created
with, so that removing an annotation un-guards nothing.

Source: runtime.v1 RuntimeService requests (protos/cri/runtime/v1/api.proto).
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage, read_id
from runtimeproxy.call.projection import container_identity, resources_of, sandbox_of_config
from runtimeproxy.call.sandbox_cache import SandboxCache

M = TypeVar("M", bound=Message)

SANDBOX_STAGES = frozenset({Stage.RUN_POD_SANDBOX, Stage.STOP_POD_SANDBOX, Stage.REMOVE_POD_SANDBOX})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    sandbox: hook.PodSandbox
    container: hook.Container | None = None  # without env, mounts and devices
    keys: frozenset[str] = frozenset()  # annotation keys of the pod


def context_of(request: Message, cache: SandboxCache) -> CallContext:
    match request:
        case cri.RunPodSandboxRequest():
            sandbox = sandbox_of_config(request.config, runtime_handler=request.runtime_handler)
            return CallContext(sandbox=sandbox, keys=frozenset(sandbox.annotations))
        case cri.CreateContainerRequest():
            return _of_create(request, cache)
        case cri.UpdateContainerResourcesRequest():
            context = context_by_id(Stage.UPDATE_CONTAINER_RESOURCES, request.container_id, cache)
            container = hook.Container(resources=resources_of(request.linux))
            container.MergeFrom(context.container or hook.Container())
            return CallContext(sandbox=context.sandbox, container=container, keys=context.keys)
        case cri.StopPodSandboxRequest() | cri.RemovePodSandboxRequest():
            return context_by_id(Stage.STOP_POD_SANDBOX, request.pod_sandbox_id, cache)
        case cri.StartContainerRequest() | cri.StopContainerRequest() | cri.RemoveContainerRequest():
            return context_by_id(Stage.STOP_CONTAINER, request.container_id, cache)
        case _:
            raise TypeError(f"{request.DESCRIPTOR.full_name} belongs to no stage")


def context_by_id(stage: Stage, an_id: str, cache: SandboxCache) -> CallContext:
    """Return the context of the sandbox or container (depending on the stage) with this id. If the id is not cached, the
    context has only the id."""
    if stage in SANDBOX_STAGES:
        sandbox = cache.sandbox(an_id) or hook.PodSandbox(id=an_id)
        return CallContext(sandbox=sandbox, keys=cache.annotations(sandbox.id))
    sandbox, container = cache.container(an_id) or (hook.PodSandbox(), hook.Container(id=an_id))
    return CallContext(sandbox=sandbox, container=container, keys=cache.annotations(sandbox.id))


def cached_keys(stage: Stage | None, message: bytes, cache: SandboxCache) -> frozenset[str]:
    """Return the cached annotation keys of an unparsed request's pod; none if the id in the request is not cached."""
    match stage:
        case None | Stage.RUN_POD_SANDBOX:
            return frozenset()
        case Stage.CREATE_CONTAINER:
            sandbox = cache.sandbox(read_id(message))
            return frozenset(sandbox.annotations if sandbox else ())
        case _:
            return context_by_id(stage, read_id(message), cache).keys


def adjusted(context: CallContext, stage: Stage, adjustment: hook.Adjustment) -> CallContext:
    """Return the context of a request to which this adjustment was applied."""
    if stage is Stage.RUN_POD_SANDBOX:
        sandbox = _copy(context.sandbox)
        sandbox.annotations.MergeFrom(adjustment.annotations)
        sandbox.labels.MergeFrom(adjustment.labels)
        return CallContext(sandbox=sandbox, keys=context.keys.union(adjustment.annotations))
    if context.container is None:
        return context
    container = _copy(context.container)
    if stage is Stage.CREATE_CONTAINER:
        container.annotations.MergeFrom(adjustment.annotations)
        container.labels.MergeFrom(adjustment.labels)
    elif adjustment.HasField("resources"):
        container.resources.MergeFrom(adjustment.resources)
    return replace(context, container=container)


def context_made(context: CallContext, stage: Stage, reply: bytes) -> CallContext:
    """Return the context with the new id from the runtime's reply."""
    if stage is Stage.RUN_POD_SANDBOX:
        sandbox = _copy(context.sandbox)
        sandbox.id = cri.RunPodSandboxResponse.FromString(reply).pod_sandbox_id
        return replace(context, sandbox=sandbox)
    if stage is Stage.CREATE_CONTAINER and context.container is not None:
        container = _copy(context.container)
        container.id = cri.CreateContainerResponse.FromString(reply).container_id
        return replace(context, container=container)
    return context


def _copy(message: M) -> M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _of_create(request: cri.CreateContainerRequest, cache: SandboxCache) -> CallContext:
    before = cache.sandbox(request.pod_sandbox_id)
    if request.HasField("sandbox_config"):
        handler = before.runtime_handler if before else ""
        sandbox = sandbox_of_config(request.sandbox_config, sandbox_id=request.pod_sandbox_id, runtime_handler=handler)
    else:
        sandbox = before or hook.PodSandbox(id=request.pod_sandbox_id)
    return CallContext(
        sandbox=sandbox,
        container=container_identity(request.config),
        keys=frozenset(sandbox.annotations).union(before.annotations if before else ()),
    )
