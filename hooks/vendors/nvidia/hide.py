"""Set `NVIDIA_VISIBLE_DEVICES=void` for a container without a GPU from Lading, so that no image or pod can show it cards.

Many images carry `NVIDIA_VISIBLE_DEVICES=all`; where NVIDIA's runtime is the node's default, each such container would see
every card. Exempt is only what the node's configuration names (namespaces), never what a pod says of itself. Where a device
plugin serves the node too (`coexist`), what kubelet supplied is left as it was, and put back where the pod's own value would
replace it. A pod that knows a card's UUID can then still name it: that is the device plugin's weakness, and stays with it.
"""

from dataclasses import dataclass

from hooks.vendors.nvidia.inject import VISIBLE_DEVICES, VOID
from hooks.vendors.nvidia.supplied import names_uuids, supplied_gpu, visible_devices
from protos.hook.v1 import hook_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class UnassignedPolicy:
    hide: bool = True
    exempt_namespaces: frozenset[str] = frozenset()
    coexist: bool = False


def adjust_unassigned(
    sandbox: hook_pb2.PodSandbox, container: hook_pb2.Container, policy: UnassignedPolicy
) -> hook_pb2.Adjustment:
    """Return the adjustment for a container that holds no GPU from Lading, whether it holds VFs or nothing."""
    if not policy.hide or sandbox.namespace in policy.exempt_namespaces:
        return hook_pb2.Adjustment()
    value = VOID
    if policy.coexist:
        values = visible_devices(container)
        value = next((v for v in values if names_uuids(v)), VOID)
        if values[-1:] == [value] or (not values and supplied_gpu(container)):
            return hook_pb2.Adjustment()
    return hook_pb2.Adjustment(env=[hook_pb2.EnvUpsert(name=VISIBLE_DEVICES, value=value)])
