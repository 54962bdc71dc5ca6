"""Convert the hook API's messages to the values of `hooks.model`, and answers back to messages.

Tests: tests/golden/test_hook_v1.py
"""

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Container, Device, EnvVar, Sandbox
from protos.hook.v1 import hook_pb2

Result = Answer | Refusal | None  # None: nothing is adjusted


def read_sandbox(sandbox: hook_pb2.PodSandbox) -> Sandbox:
    return Sandbox(
        id=sandbox.id,
        uid=sandbox.uid,
        namespace=sandbox.namespace,
        name=sandbox.name,
        annotations=dict(sandbox.annotations),
        runtime_handler=sandbox.runtime_handler,
        host_network=sandbox.host_network,
        cgroup_parent=sandbox.cgroup_parent,
        user_namespace=sandbox.user_namespace,
    )


def read_container(container: hook_pb2.Container) -> Container:
    return Container(
        id=container.id,
        name=container.name,
        annotations=dict(container.annotations),
        env=tuple(EnvVar(env.name, env.value) for env in container.env),
        devices=tuple(Device(device.container_path, device.host_path, device.permissions) for device in container.devices),
        cdi_devices=tuple(container.cdi_devices),
        privileged=container.privileged,
        sys_admin=container.sys_admin,
    )


def render_result(result: Result) -> hook_pb2.AdjustResponse:
    match result:
        case Refusal():
            return hook_pb2.AdjustResponse(refusal=hook_pb2.Refusal(reason=result.reason, message=result.message))
        case Answer():
            return hook_pb2.AdjustResponse(adjustment=_render_adjustment(result.adjustment))
        case None:
            return hook_pb2.AdjustResponse(adjustment=hook_pb2.Adjustment())


def _render_adjustment(adjustment: Adjustment) -> hook_pb2.Adjustment:
    message = hook_pb2.Adjustment(
        cdi_devices=adjustment.cdi_devices, annotations=adjustment.annotations, add_capabilities=adjustment.add_capabilities
    )
    for env in adjustment.env:
        message.env.add(name=env.name, value=env.value)
    for device in adjustment.devices:
        message.devices.add(container_path=device.container_path, host_path=device.host_path, permissions=device.permissions)
    for mount in adjustment.mounts:
        message.mounts.add(container_path=mount.container_path, host_path=mount.host_path, readonly=mount.readonly)
    return message
