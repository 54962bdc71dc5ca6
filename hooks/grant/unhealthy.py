"""Decide about a grant with an unhealthy device, when its container is created again.

The node's configuration chooses. `keep`: the container waits for its device, refused with the reason until it is healthy.
`give-up`: unhealthy VFs that were chosen by number are replaced; a device that was named cannot be replaced, so the pod has to
be created again, and the refusal says so. The code that reports unhealthy devices under a running pod uses this module too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from hooks.grant.vfs import choose_vfs
from hooks.model.assignment import ContainerRequest, GrantedDevices, GrantedVf, Refusal
from hooks.model.grant import Holding
from hooks.model.inventory import Gpu, Inventory, Vf
from lading.reasons import Reason


class Unhealthy(StrEnum):
    KEEP = "keep"
    GIVE_UP = "give-up"


def find_unhealthy(devices: GrantedDevices, inventory: Inventory) -> Mapping[str, str]:
    """Return the devices that cannot be used now, by UUID or PCI address, and why."""
    gpus, vfs = {gpu.uuid: gpu for gpu in inventory.gpus}, {vf.bdf: vf for vf in inventory.vfs}
    result = {gpu.mig_uuid or gpu.uuid: _gpu_problem(gpus.get(gpu.uuid), gpu.mig_uuid) for gpu in devices.gpus}
    result |= {vf.bdf: _vf_problem(vfs.get(vf.bdf)) for vf in devices.vfs}
    return {device: reason for device, reason in result.items() if reason}


def _gpu_problem(gpu: Gpu | None, mig_uuid: str) -> str:
    if gpu is None or (mig_uuid and all(instance.uuid != mig_uuid for instance in gpu.mig)):
        return "the node does not have it any more"
    return f"it is not healthy: {gpu.unhealthy}" if gpu.unhealthy else ""


def _vf_problem(vf: Vf | None) -> str:
    return vf.problem if vf is not None else "the node does not have it any more"


def choose_again(
    own: Holding, request: ContainerRequest, unhealthy: Mapping[str, str], inventory: Inventory, held: Sequence[Holding]
) -> GrantedDevices | Refusal:
    """Return the devices of `own` with others in place of the unhealthy ones. `request` is the request that they were chosen
    by."""
    named, by_number = own.devices.vfs[: len(request.vfs)], own.devices.vfs[len(request.vfs) :]
    may_change = {vf.bdf for vf in by_number}
    for device, reason in unhealthy.items():
        if device not in may_change:
            return Refusal(
                reason=Reason.DEVICE_UNHEALTHY,
                message=f"cannot give {device} again: {reason}; it was assigned by name, so recreate the pod for another one",
            )
    vfs = choose_vfs(
        replace(request, gpus=(), vfs=()),
        inventory,
        own.pod,
        (*held, replace(own, devices=GrantedDevices(vfs=named))),
        kept=may_change - unhealthy.keys(),
    )
    if isinstance(vfs, Refusal):
        text = "; ".join(f"VF {device}: {reason}" for device, reason in unhealthy.items())
        return Refusal(reason=Reason.DEVICE_UNHEALTHY, message=f"cannot give {text}; and no other: {vfs.message}")
    return replace(own.devices, vfs=(*named, *_in_place(by_number, vfs)))


def _in_place(before: tuple[GrantedVf, ...], chosen: tuple[GrantedVf, ...]) -> list[GrantedVf]:
    """Keep the order: a device that stays keeps its place, because a program may know its devices by their order."""
    addresses = {vf.bdf for vf in chosen}
    known = {vf.bdf for vf in before}
    new = iter([vf for vf in chosen if vf.bdf not in known])
    return [vf if vf.bdf in addresses else next(new) for vf in before]
