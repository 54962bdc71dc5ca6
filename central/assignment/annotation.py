"""Write the annotation `lading.dev/assignment` for a Binding, and read it back from bound pods.

`render_assignment` writes compact JSON in the form of docs/reference.md, with the containers in starting order. `parse_own`
reads the JSON when the ledger is rebuilt: a start reads 100,000 texts, so parsing is typed and takes one pass. Unknown keys are
ignored, because another version of central may have written them. Identities are not normalized: a UUID or PCI address in
another spelling would be another device in the ledger. For an unreadable text, `parse_own` returns a value with the cause.

The schema is shared with the node, which parses the same text independently, with stricter rules.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from central.assignment.model import Admitted, PlacedContainer, PlacedGpu, PlacedVf, Taken
from central.assignment.phases import add_up, take
from central.request.model import Role, Sharing
from lading.devices import assignment as schema
from lading.devices.share import Amounts
from lading.vocabulary import ASSIGNMENT, GpuUuid, PciAddress, PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAssignment:
    """Hold the annotation of a bound pod. The caller compares `pod` and `node` with the pod that has the annotation."""

    pod: PodUid
    node: str
    gen: int
    placed: Mapping[str, PlacedContainer]
    taken: Taken
    gang: str | None  # gang of the pod at its Binding; empty: none; None: not written by an older central
    admitted: Admitted | None = None  # None: not in the annotation


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAssignment:
    message: str


_decoder: Final = msgspec.json.Decoder(schema.Assignment)


def render_assignment(
    pod_uid: PodUid,
    node: str,
    gen: int,
    placed: Mapping[str, PlacedContainer],
    roles: Sequence[tuple[str, Role]],
    sharing: Sharing | None = None,
    admitted: Admitted | None = None,
    gang: str = "",
) -> str:
    """Return the annotation's text. The same arguments give the same bytes, so that a repeated Binding carries the text that
    was signed first. `gang`: the gang with which the pod is bound; empty if there is none."""
    order = _starting_order(placed, roles)
    at_once = _less_than_the_sum(placed, roles)
    named = name_vfs(placed, roles)
    containers = {name: _render_container(placed[name], at_once, named) for name in order if placed[name] != PlacedContainer()}
    written = schema.Assignment(
        v=1,
        pod=pod_uid,
        node=node,
        gen=gen,
        containers=containers,
        quota=None if admitted is None else schema.Quota(name=admitted.quota, preemptible=admitted.preemptible),
        sharing=_render_sharing(sharing),
        gang=gang,
    )
    return msgspec.json.encode(written).decode()


def name_vfs(placed: Mapping[str, PlacedContainer], roles: Sequence[tuple[str, Role]]) -> dict[PciAddress, str]:
    """Return the interface name of each VF in the pod. All containers share a network namespace, so that a VF of several
    containers has one name."""
    vfs = dict.fromkeys(vf.bdf for name in _starting_order(placed, roles) for vf in placed[name].vfs)
    return {bdf: f"rdma{number}" for number, bdf in enumerate(vfs)}


def _starting_order(placed: Mapping[str, PlacedContainer], roles: Sequence[tuple[str, Role]]) -> list[str]:
    known = [name for name, _ in roles if name in placed]
    return known + [name for name in placed if name not in set(known)]


def _render_sharing(sharing: Sharing | None) -> schema.Sharing | None:
    if sharing is None:
        return None
    return schema.Sharing(affinity=sharing.affinity, anti_affinity=sharing.anti_affinity, exclusion=sharing.exclusion)


def _less_than_the_sum(
    placed: Mapping[str, PlacedContainer], roles: Sequence[tuple[str, Role]]
) -> dict[GpuUuid, tuple[int | None, int | None]]:
    """Return by card the MiB and percent that the pod takes at most at one time. A value is None if it equals the sum over the
    containers."""
    taken = take(roles, placed).gpus
    figures = {}
    for uuid, total in add_up(placed.values()).items():
        at_once = Amounts(taken[uuid].memory_mib, taken[uuid].core_percent)
        figures[uuid] = (
            at_once.memory_mib if at_once.memory_mib < total.memory_mib else None,
            at_once.core_percent if at_once.core_percent < total.core_percent else None,
        )
    return figures


def _render_container(
    container: PlacedContainer,
    at_once: Mapping[GpuUuid, tuple[int | None, int | None]],
    named: Mapping[PciAddress, str],
) -> schema.Container:
    return schema.Container(
        gpus=[_render_gpu(gpu, *at_once.get(gpu.uuid, (None, None))) for gpu in container.gpus],
        vfs=[schema.AssignedVf(bdf=vf.bdf, pf=vf.pf, ifname=named[vf.bdf]) for vf in container.vfs],
    )


def _render_gpu(gpu: PlacedGpu, pod_memory_mib: int | None, pod_core_percent: int | None) -> schema.AssignedGpu:
    if gpu.mig_uuid:
        return schema.AssignedGpu(uuid=gpu.mig_uuid, bdf=gpu.bdf, card=gpu.uuid)
    if gpu.whole:
        return schema.AssignedGpu(uuid=gpu.uuid, bdf=gpu.bdf)
    return schema.AssignedGpu(
        uuid=gpu.uuid,
        bdf=gpu.bdf,
        memory_mib=gpu.memory_mib,
        core_percent=gpu.core_percent,
        core_limit_percent=gpu.core_limit_percent,
        isolation=gpu.isolation,
        pod_memory_mib=pod_memory_mib,
        pod_core_percent=pod_core_percent,
    )


def parse_own(text: str, roles: Sequence[tuple[str, Role]], *, namespace: str) -> OwnAssignment | BadAssignment:
    """Parse the pod's assignment. The amounts that the pod takes are computed from its containers' roles: `pod_memory_mib` in
    the annotation is for the node. `namespace`: the pod's, in which its sharing labels apply."""
    try:
        result = _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        return BadAssignment(message=f"cannot read {ASSIGNMENT}: {e}")
    placed = {}
    for name, container in result.containers.items():
        if not all(gpu.bdf and (gpu.card or not gpu.uuid.startswith("MIG-")) for gpu in container.gpus):
            message = f"cannot read {ASSIGNMENT}: a GPU of container {name!r:.80} without its address, or its card"
            return BadAssignment(message=message)
        if not all(vf.pf for vf in container.vfs):
            return BadAssignment(message=f"cannot read {ASSIGNMENT}: a VF of container {name!r:.80} without its PF")
        gpus = tuple(map(_placed_gpu, container.gpus))
        vfs = tuple(PlacedVf(bdf=PciAddress(vf.bdf), pf=PciAddress(vf.pf or "")) for vf in container.vfs)
        placed[name] = PlacedContainer(gpus=gpus, vfs=vfs)
    taken = take(roles, placed, None if result.sharing is None else _sharing(namespace, result.sharing))
    admitted = None if result.quota is None else Admitted(sys.intern(result.quota.name), result.quota.preemptible)
    pod = PodUid(result.pod)
    return OwnAssignment(
        pod=pod, node=result.node, gen=result.gen, placed=placed, taken=taken, gang=result.gang, admitted=admitted
    )


@lru_cache(maxsize=4096)  # pods of one template share the value
def _sharing(namespace: str, sharing: schema.Sharing) -> Sharing:
    return Sharing(
        namespace=namespace, affinity=sharing.affinity, anti_affinity=sharing.anti_affinity, exclusion=sharing.exclusion
    )


def _placed_gpu(gpu: schema.AssignedGpu) -> PlacedGpu:
    mig = gpu.uuid.startswith("MIG-")
    return PlacedGpu(
        uuid=GpuUuid(gpu.card if mig else gpu.uuid),
        bdf=PciAddress(gpu.bdf or ""),
        memory_mib=gpu.memory_mib,
        core_percent=gpu.core_percent,
        core_limit_percent=gpu.core_limit_percent,
        isolation=gpu.isolation,
        mig_uuid=gpu.uuid if mig else "",
    )
