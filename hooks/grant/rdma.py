"""Give the RDMA devices of VFs to a container: verbs nodes, and the names under which programs look for them.

In the kernel's shared mode (the default) every ibdev is visible in every network namespace, so the device cgroup is what keeps
containers apart: nodes are given `rw`, never with `m`. A VF is in the grant by PCI address; ibdev and uverbs are looked up in
the inventory at this moment. Refused: a VF that is gone or cannot be used any more, a host without rdma_cm, which librdmacm
and what is built on it look for first.

Environment: `PCIDEVICE_<resource>` (what SR-IOV device plugins set; Lading's value wins, because it names the assigned devices)
and `NCCL_IB_HCA` in its exact form, `=mlx5_1,mlx5_10`, because without the `=` NCCL takes names as prefixes. A user's own
NCCL_* wins: it is tuning.
"""

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from hooks.model.assignment import GrantedDevices, GrantedVf, Refusal
from hooks.model.container import Adjustment, EnvVar, devices_of
from hooks.model.inventory import CharDevice, Inventory, Vf
from lading.reasons import Reason

NCCL_IB_HCA: Final = "NCCL_IB_HCA"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaInjection:
    resource: str = "lading.dev/rdma"  # the resource name that PCIDEVICE_… is made of
    mad: bool = False  # umad and issm nodes too: for MAD and subnet tools, not for NCCL
    memlock: bool = False  # no limit of locked memory; by NRI only
    ipc_lock: bool = False  # CAP_IPC_LOCK: where the runtime's memlock limit is too small to register memory


def adjust_vfs(
    devices: GrantedDevices, inventory: Inventory, injection: RdmaInjection, user_env: AbstractSet[str]
) -> Adjustment | Refusal:
    """Return the adjustment for these VFs; empty if there are none. `user_env`: the names that the container sets itself."""
    if not devices.vfs:
        return Adjustment()
    vfs = _find_vfs(devices.vfs, inventory)
    if isinstance(vfs, Refusal):
        return vfs
    if inventory.rdma_cm is None:
        return Refusal(
            reason=Reason.DEVICE_NODE_INVALID,
            message=f"cannot give VF {vfs[0].bdf}: the node has no /dev/infiniband/rdma_cm that can be used; modprobe rdma_ucm",
        )
    nodes: list[CharDevice] = [vf.uverbs for vf in vfs if vf.uverbs is not None]
    nodes.append(inventory.rdma_cm)
    if injection.mad:
        nodes += [node for vf in vfs for node in vf.umad]
    env = [EnvVar(pcidevice_name(injection.resource), ",".join(vf.bdf for vf in vfs))]
    if NCCL_IB_HCA not in user_env:
        env.append(EnvVar(NCCL_IB_HCA, "=" + ",".join(vf.ibdev for vf in vfs)))
    capabilities = ("IPC_LOCK",) if injection.ipc_lock else ()
    return Adjustment(
        env=tuple(env), devices=devices_of(nodes), add_capabilities=capabilities, unlimited_memlock=injection.memlock
    )


def pcidevice_name(resource: str) -> str:
    """Return the name of the variable: `lading.dev/rdma` → `PCIDEVICE_LADING_DEV_RDMA`."""
    return "PCIDEVICE_" + re.sub(r"[^A-Z0-9]", "_", resource.upper())


def _find_vfs(granted: tuple[GrantedVf, ...], inventory: Inventory) -> list[Vf] | Refusal:
    by_bdf = {vf.bdf: vf for vf in inventory.vfs}
    vfs = []
    for one in granted:
        vf = by_bdf.get(one.bdf)
        if vf is None:
            return Refusal(
                reason=Reason.DEVICE_UNKNOWN,
                message=f"cannot give VF {one.bdf}: this container was granted it, and the node does not have it any more; "
                "recreate the pod",
            )
        if problem := vf.problem:
            return Refusal(reason=Reason.DEVICE_UNHEALTHY, message=f"cannot give VF {vf.bdf}: {problem}")
        vfs.append(vf)
    return vfs
