"""Check whether a container with an assignment can get devices at all, before any device is looked at.

Refused: runtime classes whose containers run in another kernel (device nodes and mounts of the host mean nothing there),
privileged containers and those with CAP_SYS_ADMIN (they open every device whatever they were given), user namespaces (the nodes
have no owner there), and containers to which kubelet gives devices of the same kind on behalf of a device plugin: two systems
that do not know each other would assign one card twice. Containers without devices from Lading are never refused here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from hooks.model.assignment import ContainerRequest, Refusal
from hooks.model.container import Container, Sandbox
from hooks.ports import Vendor
from lading.devices.identity import shown
from lading.reasons import Reason

_VERBS_NODES: Final = "/dev/infiniband/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPolicy:
    """Hold the rules from the node's configuration."""

    unsupported_handlers: tuple[str, ...] = ("kata*", "runsc*", "gvisor*")  # fnmatch patterns of runtime handlers
    allow_privileged: bool = False
    coexist: bool = False  # a device plugin serves this node too


def check_pod(
    sandbox: Sandbox, container: Container, request: ContainerRequest, policy: PodPolicy, vendors: Sequence[Vendor]
) -> Refusal | None:
    if request.empty:
        return None
    who = f"container {shown(container.name)}"
    handler = sandbox.runtime_handler
    for pattern in policy.unsupported_handlers:
        if fnmatchcase(handler, pattern):
            return Refusal(
                reason=Reason.RUNTIME_HANDLER,
                message=f"cannot give devices to {who}: its runtime handler {shown(handler)} ({pattern}) runs containers in "
                "another kernel; use a RuntimeClass that runs them in the host's",
            )
    if container.privileged and not policy.allow_privileged:
        return Refusal(
            reason=Reason.PRIVILEGED,
            message=f"cannot give devices to {who}: it is privileged and sees every device anyway; "
            "remove securityContext.privileged, or the assignment",
        )
    if container.sys_admin and not policy.allow_privileged:
        return Refusal(
            reason=Reason.PRIVILEGED,
            message=f"cannot give devices to {who}: it adds the capability SYS_ADMIN, with which it opens every device anyway; "
            "remove it from securityContext.capabilities.add, or the assignment",
        )
    if sandbox.user_namespace:
        return Refusal(
            reason=Reason.USER_NAMESPACE,
            message=f"cannot give devices to {who}: its pod has a user namespace, in which it could not open them; "
            "remove hostUsers: false",
        )
    return _check_device_plugin(container, request, policy, vendors, who)


def _check_device_plugin(
    container: Container, request: ContainerRequest, policy: PodPolicy, vendors: Sequence[Vendor], who: str
) -> Refusal | None:
    sign = ""
    if request.gpus:
        sign = next(filter(None, (vendor.supplied_by_kubelet(container, coexist=policy.coexist) for vendor in vendors)), "")
    if not sign and (request.vfs or request.any_vfs):
        sign = _supplied_verbs_node(container)
    if not sign:
        return None
    return Refusal(
        reason=Reason.DEVICE_PLUGIN_CONFLICT,
        message=f"cannot give devices to {who}: kubelet gives it {shown(sign)} from a device plugin already; "
        "ask one of the two: the plugin's resource in resources.limits, or lading.dev",
    )


def _supplied_verbs_node(container: Container) -> str:
    """Return the first verbs node that kubelet gives for a device plugin; empty without one."""
    for device in container.devices:
        if device.container_path.startswith(_VERBS_NODES) or device.host_path.startswith(_VERBS_NODES):
            return device.container_path
    return ""
