"""Build the node report: inventory and ledger, as the status of the NodeDevices object.

The input is an inventory, the ledger's grants, the former holders of devices, the processes that use cards without a grant,
and whether ledger and runtime were compared. The status does not depend on the order of grants, so that a different status
means a change of the node. The use of the cards changes all the time, so it is built separately, and in coarse steps
(`coarse_use`). Texts and lists are cut to the limits of the CRD (deploy/crds/nodedevices.yaml). Otherwise the API server would
refuse the whole object, and central would lose the node because of a long error message.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hooks.ledger import period, share_bypass
from hooks.ledger.use import Uses
from hooks.model import assignment, inventory
from hooks.model.grant import Grant as Held
from lading.devices.isolation import IsolationName
from lading.log import printable
from lading.nodedevices import (
    ContainerUse,
    Gpu,
    Grant,
    GrantedGpu,
    MigInstance,
    NvLink,
    Partition,
    Past,
    Pf,
    Place,
    ShareBypass,
    Status,
    Summary,
    Use,
    Vf,
)
from lading.vocabulary import GpuUuid, PciAddress, PodUid

# The CRD has the same limits.
MAX_TEXT: Final = 1024
MAX_PROBLEMS: Final = 64
MAX_CONTAINERS: Final = 64  # maximum containers whose use of one card is reported
MAX_BYPASSES: Final = 64

# Steps of the reported use: finer ones would cause reports that have no reader.
USED_STEP_MIB: Final = 256
BUSY_STEP_PERCENT: Final = 5

_COLUMN: Final = 60  # characters of the problem that kubectl shows in a column
_NONE: Final[Mapping[GpuUuid, str]] = {}


def build_status(
    result: inventory.Inventory,
    grants: Iterable[Held],
    past: Iterable[period.Past] = (),
    *,
    unmanaged: Mapping[GpuUuid, str],
    share_bypasses: Sequence[share_bypass.ShareBypass] = (),
    dirty: Mapping[GpuUuid, str] = _NONE,
    reconciled: bool,
    boot_id: str,
    reporter: str,
) -> Status:
    """Build the status. `past`: former holders, newest first. `unmanaged`: a text about the user of a card without a grant.
    `dirty`: a text why a card without a holder is not granted. `reporter`: this version of Lading."""
    uuids = {gpu.bdf: gpu.uuid for gpu in result.gpus}
    limit = result.shares_per_gpu
    held = tuple(_grant(grant) for grant in sorted(grants, key=lambda grant: grant.key))
    waiting = _waiting(result.gpus, held, dirty)
    gpus = tuple(
        _gpu(gpu, uuids, max_shares=limit, used_by=unmanaged.get(gpu.uuid, ""), dirty=waiting.get(gpu.uuid, ""))
        for gpu in result.gpus
    )
    pfs = tuple(_pf(pf) for pf in result.pfs)
    return Status(
        reporter=reporter,
        boot_id=_cut(boot_id),
        driver=_cut(", ".join(driver.version for driver in result.drivers)),
        reconciled=reconciled,
        isolations=() if result.isolations == (IsolationName.NONE,) else result.isolations,
        gpus=gpus,
        pfs=pfs,
        partitions=_partitions(result),
        grants=held,
        past=tuple(_past(one) for one in past),
        share_bypasses=tuple(_bypass(one) for one in share_bypasses[:MAX_BYPASSES]),
        problems=_problems(result.problems),
        summary=_summary(gpus, pfs, held, result.problems),
    )


def _waiting(gpus: Iterable[inventory.Gpu], held: Iterable[Grant], dirty: Mapping[GpuUuid, str]) -> Mapping[GpuUuid, str]:
    """Return the cards that wait because they are dirty. Neither one with a holder nor MIG instances do (grant/choose.py)."""
    others = {gpu.uuid for grant in held for gpu in grant.gpus} | {gpu.uuid for gpu in gpus if gpu.mig_enabled}
    return {card: text for card, text in dirty.items() if card not in others}


def _gpu(gpu: inventory.Gpu, uuids: Mapping[PciAddress, GpuUuid], *, max_shares: int, used_by: str, dirty: str) -> Gpu:
    return Gpu(
        uuid=gpu.uuid,
        bdf=gpu.bdf,
        model=_cut(gpu.model),
        memory_mib=gpu.memory_mib,
        reserved_mib=gpu.reserved_mib,
        module_id=gpu.module_id,
        links=tuple(_links(gpu.links, uuids)),
        max_shares=max_shares,
        place=Place(path=gpu.path, numa=gpu.numa, socket=gpu.socket),
        mig_enabled=gpu.mig_enabled,
        mig=tuple(
            MigInstance(
                uuid=mig.uuid,
                gpu_instance=mig.span.start if mig.span else mig.gpu_instance,
                compute_instance=0 if mig.span else mig.compute_instance,
                memory_mib=mig.memory_mib,
                profile=mig.profile,
                slices=mig.span.size if mig.span else 0,
            )
            for mig in gpu.mig
        ),
        unhealthy=_cut(gpu.unhealthy),
        used_by=_cut(used_by),
        dirty=_cut(dirty),
    )


def _links(links: Iterable[inventory.NvLink], uuids: Mapping[PciAddress, GpuUuid]) -> Iterable[NvLink]:
    """Return the links between the node's cards. A link to a card of another virtual machine is left out, because no pod can
    use it."""
    for link in links:
        if link.peer is None:
            yield NvLink(count=link.count)
        elif link.peer in uuids:
            yield NvLink(count=link.count, to=uuids[link.peer])


def _partitions(result: inventory.Inventory) -> tuple[Partition, ...]:
    """Return the partitions whose GPUs all exist on this node. A table is for a whole board, of which a virtual machine may
    have a part."""
    there = {gpu.module_id for gpu in result.gpus if gpu.module_id is not None}
    return tuple(Partition(id=one.id, modules=one.modules) for one in result.partitions if there.issuperset(one.modules))


def _pf(pf: inventory.Pf) -> Pf:
    return Pf(
        bdf=pf.bdf,
        driver=_cut(pf.driver),
        netdev=_cut(pf.netdev),
        ibdev=_cut(pf.ibdev),
        link_layer=_cut(pf.link_layer),
        place=Place(path=pf.path, numa=pf.numa, socket=pf.socket),
        rail=pf.rail,
        unhealthy=_cut(pf.unhealthy),
        vfs=tuple(Vf(bdf=vf.bdf, driver=_cut(vf.driver), unhealthy=_cut(vf.unhealthy)) for vf in pf.vfs),
    )


def _grant(held: Held) -> Grant:
    return Grant(
        pod=PodUid(_cut(held.pod)),
        container=_cut(held.container),
        namespace=_cut(held.namespace),
        pod_name=_cut(held.pod_name),
        form=str(held.form),
        gen=held.gen,
        gpus=tuple(_granted_gpu(gpu) for gpu in held.devices.gpus),
        vfs=tuple(vf.bdf for vf in held.devices.vfs),
    )


def _granted_gpu(gpu: assignment.GrantedGpu) -> GrantedGpu:
    return GrantedGpu(
        uuid=gpu.uuid,
        mig_uuid=gpu.mig_uuid,
        memory_mib=gpu.memory_mib,
        core_percent=gpu.core_percent,
        core_limit_percent=gpu.core_limit_percent,
        isolation="" if gpu.isolation is IsolationName.NONE else gpu.isolation,
        pod_wide=gpu.pod_wide,
        pod_memory_mib=gpu.pod_memory_mib,
        pod_core_percent=gpu.pod_core_percent,
    )


def _bypass(one: share_bypass.ShareBypass) -> ShareBypass:
    return ShareBypass(
        pod=PodUid(_cut(one.pod)),
        uuid=one.card,
        container=_cut(one.container),
        namespace=_cut(one.namespace),
        pod_name=_cut(one.pod_name),
        why=_cut(one.text),
    )


def _past(one: period.Past) -> Past:
    held = one.period
    return Past(
        device=one.device,
        pod=PodUid(_cut(held.pod)),
        container=_cut(held.container),
        since=max(0, held.since),
        until=max(0, held.until or 0),
        namespace=_cut(held.namespace),
        pod_name=_cut(held.pod_name),
        by=str(held.form),
    )


def coarse_use(result: inventory.Inventory, uses: Uses) -> tuple[Use, ...]:
    """Return the use of the cards that report some, rounded to steps; never more memory than a card has."""
    each = (_use(gpu, uses) for gpu in result.gpus)
    return tuple(use for use in each if use != Use(uuid=use.uuid))  # those that report nothing


def _use(gpu: inventory.Gpu, uses: Uses) -> Use:
    of_card = sorted((part, mib) for part, mib in uses.items() if part.device in {gpu.uuid, *(mig.uuid for mig in gpu.mig)})
    return Use(
        uuid=gpu.uuid,
        memory_used_mib=None if gpu.used_mib is None else _nearest(gpu.used_mib, USED_STEP_MIB, most=gpu.memory_mib),
        busy_percent=None if gpu.busy_percent is None else _nearest(gpu.busy_percent, BUSY_STEP_PERCENT, most=100),
        containers=tuple(
            ContainerUse(
                pod=PodUid(_cut(part.holder.pod)),
                container=_cut(part.holder.container),
                memory_used_mib=_nearest(mib, USED_STEP_MIB, most=gpu.memory_mib),
                mig_uuid="" if part.device == gpu.uuid else part.device,
            )
            for part, mib in of_card[:MAX_CONTAINERS]
        ),
    )


def _nearest(amount: int, step: int, *, most: int) -> int:
    return min(most, (amount + step // 2) // step * step)


def _problems(problems: tuple[str, ...]) -> tuple[str, ...]:
    if len(problems) <= MAX_PROBLEMS:
        return tuple(map(_cut, problems))
    shown = problems[: MAX_PROBLEMS - 1]
    return (*map(_cut, shown), f"and {len(problems) - len(shown)} more")


def _summary(gpus: tuple[Gpu, ...], pfs: tuple[Pf, ...], grants: tuple[Grant, ...], problems: tuple[str, ...]) -> Summary:
    vfs = [not (pf.unhealthy or vf.unhealthy) for pf in pfs for vf in pf.vfs]
    return Summary(
        gpus=f"{sum(not gpu.unhealthy for gpu in gpus)}/{len(gpus)}" if gpus else "",
        models=_cut(", ".join(dict.fromkeys(gpu.model for gpu in gpus))),
        vfs=f"{sum(vfs)}/{len(vfs)}" if vfs else "",
        held=_held(gpus, grants),
        problems=_worst(gpus, pfs, problems),
    )


def _held(gpus: tuple[Gpu, ...], grants: tuple[Grant, ...]) -> str:
    cards = {gpu.uuid for grant in grants for gpu in grant.gpus} | {gpu.uuid for gpu in gpus if gpu.used_by}
    vfs = {vf for grant in grants for vf in grant.vfs}
    counts = ((len(cards), "GPU"), (len(vfs), "VF"))
    return ", ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count)


def _worst(gpus: tuple[Gpu, ...], pfs: tuple[Pf, ...], problems: tuple[str, ...]) -> str:
    """Describe the first problem, cards before functions, and how many more there are."""
    wrong = [f"GPU {gpu.bdf}: {gpu.unhealthy}" for gpu in gpus if gpu.unhealthy]
    wrong += [f"GPU {gpu.bdf}: dirty: {gpu.dirty}" for gpu in gpus if gpu.dirty and not gpu.unhealthy]
    for pf in pfs:
        wrong += [f"PF {pf.bdf}: {pf.unhealthy}"] if pf.unhealthy else []
        wrong += [f"VF {vf.bdf}: {vf.unhealthy}" for vf in pf.vfs if vf.unhealthy]
    wrong += problems
    if not wrong:
        return ""
    return _cut(wrong[0], _COLUMN) + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    """Cut and escape a text: names come from a kernel that takes any bytes, and from pods; JSON and terminals must not get them
    raw."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
