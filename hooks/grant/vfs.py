"""Choose the VFs of a container: its request, the node's VFs and their holders → VFs, or the one reason why not.

- A VF held by a pod is not given to another pod. Containers of one pod may share.
- VFs asked for by number are the free ones with the lowest addresses. An unsuffixed number is the pod's: its containers use the
  same VFs. A number with a suffix gives that container VFs of its own, which no other container holds.
- A VF that was moved into a pod's network namespace is that pod's until it is back, whatever grants exist.

Pure. A number gives the same result for the same arguments; the VFs that a container has already are not chosen again.

Tests: tests/unit/hooks/grant/test_choose.py
"""

from collections.abc import Collection, Sequence

from hooks.model.assignment import ContainerRequest, GrantedVf, Refusal, VfRequest
from hooks.model.grant import Holding, listed
from hooks.model.inventory import Inventory, Vf
from lading.devices.identity import pci_order
from lading.reasons import Reason
from lading.vocabulary import PciAddress, PodUid


def choose_vfs(
    request: ContainerRequest, inventory: Inventory, pod: PodUid, held: Sequence[Holding], kept: Collection[PciAddress]
) -> tuple[GrantedVf, ...] | Refusal:
    chosen: dict[PciAddress, GrantedVf] = {}
    for wanted in request.vfs:
        vf = _find_vf(wanted, inventory)
        if isinstance(vf, Refusal):
            return vf
        refusal = _check_vf(vf, wanted.name, pod, held)
        if refusal is not None:
            return refusal
        if vf.bdf in chosen:
            return Refusal(
                reason=Reason.ANNOTATION_MALFORMED,
                message=f"cannot give VF {vf.bdf} twice to one container: {wanted.name} is another name of it",
            )
        chosen[vf.bdf] = GrantedVf(bdf=vf.bdf, ifname=wanted.ifname)
    if request.any_vfs == 0:
        return tuple(chosen.values())
    free = [vf for vf in _free_vfs(request, inventory, pod, held, kept) if vf.bdf not in chosen][: request.any_vfs]
    if len(free) < request.any_vfs:
        return _too_few_vfs(request.any_vfs, len(free), inventory)
    return (*chosen.values(), *(GrantedVf(bdf=vf.bdf, pod_wide=request.any_vfs_pod_wide) for vf in free))


def _find_vf(wanted: VfRequest, inventory: Inventory) -> Vf | Refusal:
    cause = "no such VF"
    for pf in inventory.pfs:
        if wanted.name in {pf.bdf, pf.ibdev}:
            cause = f"it is a PF, which serves the host, with {len(pf.vfs)} VFs"
        for vf in pf.vfs:
            if wanted.name not in {vf.bdf, vf.ibdev}:
                continue
            if wanted.pf is None or wanted.pf == vf.pf:
                return vf
            cause = f"no such VF of PF {wanted.pf}; it is one of {vf.pf}"
    has = [f"{vf.bdf} ({vf.ibdev or 'no ibdev'})" for vf in inventory.vfs]
    return Refusal(reason=Reason.DEVICE_UNKNOWN, message=f"cannot find VF {wanted.name}: {cause}; this node has {listed(has)}")


def _check_vf(vf: Vf, name: str, pod: PodUid, held: Sequence[Holding]) -> Refusal | None:
    text = f"VF {vf.bdf}" if name == vf.bdf else f"VF {vf.bdf} ({name})"
    problem = vf.problem
    if problem:
        return Refusal(reason=Reason.DEVICE_UNHEALTHY, message=f"cannot give {text}: {problem}")
    for holding in held:
        if holding.pod != pod and any(granted.bdf == vf.bdf for granted in holding.devices.vfs):
            return Refusal(reason=Reason.DEVICE_HELD, message=f"cannot give {text}: {holding.holds('it')}")
    return None


def _free_vfs(
    request: ContainerRequest, inventory: Inventory, pod: PodUid, held: Sequence[Holding], kept: Collection[PciAddress]
) -> list[Vf]:
    """Return the free VFs in the order in which they are assigned: first those that this container, and then the pod, had by
    number before; then by address."""
    by_pod: set[PciAddress] = set()
    taken: set[PciAddress] = set()
    for holding in held:
        for granted in holding.devices.vfs:
            shared = request.any_vfs_pod_wide and granted.pod_wide and holding.pod == pod
            if holding.container or holding.pod != pod or granted.bdf not in kept:
                (by_pod if shared else taken).add(granted.bdf)
    usable = [vf for vf in inventory.vfs if vf.bdf not in taken - by_pod and not vf.problem]
    return sorted(usable, key=lambda vf: (vf.bdf not in kept, vf.bdf not in by_pod, pci_order(vf.bdf)))


def _too_few_vfs(asked: int, free: int, inventory: Inventory) -> Refusal:
    broken = sum(1 for vf in inventory.vfs if vf.problem)
    has = len(inventory.vfs)
    return Refusal(
        reason=Reason.CAPACITY_EXCEEDED,
        message=f"cannot give {asked} VFs: of the node's {has}, {has - broken - free} are held, {broken} unusable, {free} free",
    )
