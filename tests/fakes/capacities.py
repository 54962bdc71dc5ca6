"""Build a node's free capacity, and requests, with short calls.

    capacity(card(0), card(1, free_mib=4096), held(2), vfs=[vf(0), vf(1, held=True)])
    eight_gpus(held_cards={0, 1}, held_vfs={0})
    request(share("prepare", 8192, role=Role.INIT), whole("train", 2, vfs=1))

Cards and VFs have numbers: card n is at 0000:1<n>:00.0, VF n of PF p at 0000:<6p>:00.<n>. Two cards and one PF share a switch.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from central.ledger.capacity import card_capacities, inventory_of, vf_capacities
from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from central.ledger.usage import Usage
from central.request.model import (
    ContainerRequest,
    DeviceRequest,
    PartitionPolicy,
    Policy,
    RdmaPolicy,
    Role,
    Scope,
    Share,
    Sharing,
)
from lading.devices.isolation import IsolationName
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import Gpu, MigInstance, NodeDevices, NvLink, Pf, Place, Status, Vf
from lading.vocabulary import GpuUuid, PciAddress

MODEL = "NVIDIA H100 80GB HBM3"
CARD_MIB = 81920


def gpu_uuid(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{number:08x}-0000-0000-0000-000000000000")


def gpu_bdf(number: int) -> PciAddress:
    return PciAddress(f"0000:{0x10 + number:02x}:00.0")


def pf_bdf(number: int) -> PciAddress:
    return PciAddress(f"0000:{0x60 + number:02x}:00.0")


def vf_bdf(number: int, *, pf: int = 0) -> PciAddress:
    return PciAddress(f"0000:{0x60 + pf:02x}:{(number + 1) // 8:02x}.{(number + 1) % 8}")


def place(switch: int | None, port: int = 0, *, behind: Sequence[int] = ()) -> Place:
    """Return the place of a device below this switch; None: unknown place. Each NUMA node has two switches. `behind`: ports of
    the switches on the way to the device, from above, without the device's own port."""
    if switch is None:
        return Place()
    numa = switch // 2
    bridges = [f"pci0000:{numa:02x}", f"0000:{0x80 + switch:02x}:01.0"]
    for depth, own in enumerate([*behind, port]):
        bridges += [f"{depth:04x}:{0xA0 + switch:02x}:00.0", f"{depth:04x}:{0xC0 + switch:02x}:{own:02x}.0"]
    return Place(path=tuple(bridges), numa=numa, socket=numa)


def card(
    number: int,
    *,
    usable_mib: int = CARD_MIB,
    free_mib: int | None = None,
    free_core: int | None = None,
    containers: int | None = None,
    usable: bool = True,
    model: str = MODEL,
    switch: int | None = -1,
    behind: Sequence[int] = (),
    mig_enabled: bool = False,
    unhealthy: str = "",
    used_by: str = "",
    dirty: str = "",
    nvlinks: Sequence[NvLink] = (),
    isolations: tuple[str, ...] = (),
) -> CardCapacity:
    """Free, unless less than all of it is; then one container of one pod holds the rest."""
    mib = usable_mib if free_mib is None else free_mib
    core = 100 if free_core is None else free_core
    if containers is None:
        containers = int(mib < usable_mib or core < 100)
    gpu = Gpu(
        uuid=gpu_uuid(number),
        bdf=gpu_bdf(number),
        model=model,
        memory_mib=usable_mib + 559,
        reserved_mib=559,
        links=tuple(nvlinks),
        place=place(number // 2 if switch == -1 else switch, number, behind=behind),
        mig_enabled=mig_enabled,
        unhealthy=unhealthy,
        used_by=used_by,
        dirty=dirty,
    )
    usable = usable and not gpu.unhealthy and not used_by and not dirty
    return CardCapacity(
        gpu=gpu,
        free_mib=mib,
        free_core=core,
        pods=min(1, containers),
        containers=containers,
        usable=usable,
        isolations=isolations if containers else (),
    )


def held(number: int, *, usable_mib: int = CARD_MIB, switch: int | None = -1, model: str = MODEL) -> CardCapacity:
    """Return a card that another pod holds whole."""
    return card(number, usable_mib=usable_mib, free_mib=0, free_core=0, switch=switch, model=model)


def mig_uuid(number: int, slot: int) -> str:
    return f"MIG-{number:08x}-0000-0000-0000-{slot:012x}"


def mig_card(
    number: int,
    *profiles: str,
    held: Collection[int] = (),
    usable: bool = True,
    model: str = MODEL,
    switch: int | None = -1,
) -> CardCapacity:
    """Return a card in MIG mode with an instance of each profile. `held`: numbers of the instances that pods hold, each by
    another pod. A profile "2g.20gb" has 20 GiB."""
    plain = card(number, model=model, switch=switch, mig_enabled=True, usable=usable)
    instances = tuple(
        MigInstance(
            uuid=mig_uuid(number, slot),
            gpu_instance=slot + 1,
            compute_instance=0,
            memory_mib=int(profile.partition(".")[2].partition("gb")[0]) * 1024,
            profile=profile,
        )
        for slot, profile in enumerate(profiles)
    )
    return replace(
        plain,
        gpu=msgspec.structs.replace(plain.gpu, mig=instances),
        free_mib=0,
        free_core=0,
        pods=len(held),
        containers=len(held),
        free_mig=tuple(mig.uuid for slot, mig in enumerate(instances) if slot not in held),
    )


def port(number: int, *, switch: int | None = -1, behind: Sequence[int] = ()) -> Pf:
    """Return PF n, which is by default on the switch of cards 2n and 2n+1."""
    at = place(number if switch == -1 else switch, 0x10, behind=behind)
    return Pf(bdf=pf_bdf(number), driver="mlx5_core", ibdev=f"mlx5_{number}", place=at)


def vf(number: int, *, pf: int | Pf = 0, held: bool = False, usable: bool = True) -> VfCapacity:
    of = port(pf) if isinstance(pf, int) else pf
    bdf = vf_bdf(number, pf=int(of.bdf[5:7], 16) - 0x60)
    return VfCapacity(vf=Vf(bdf=bdf, driver="mlx5_core"), pf=of, usable=usable, free=usable and not held)


def capacity(
    *cards: CardCapacity,
    vfs: Sequence[VfCapacity] = (),
    name: str = "n1",
    version: int = 1,
    reported: bool = True,
    reconciled: bool = True,
    reachable: bool = True,
    rebooted: bool = False,
    isolations: tuple[IsolationName, ...] = (),
) -> NodeCapacity:
    return NodeCapacity(
        name=name,
        version=version,
        cards=cards,
        vfs=tuple(vfs),
        reported=reported,
        reconciled=reconciled,
        reachable=reachable,
        rebooted=rebooted,
        isolations=isolations,
    )


def eight_gpus(*, held_cards: Collection[int] = (), held_vfs: Collection[int] = (), name: str = "n1") -> NodeCapacity:
    """Return a node with four switches, each with two cards and one PF of four VFs. VF n belongs to PF n // 4."""
    cards = [held(number) if number in held_cards else card(number) for number in range(8)]
    ports = [port(number) for number in range(4)]
    vfs = [vf(number % 4, pf=ports[number // 4], held=number in held_vfs) for number in range(16)]
    return capacity(*cards, vfs=vfs, name=name)


def reported_capacity(status: Status, name: str = "n1") -> NodeCapacity:
    """Return the free capacity of a node with this report and no pods, as the ledger makes it."""
    usage = Usage()
    inventory = inventory_of(NodeDevices(metadata=AnnotatedMetadata(name=name), status=status))
    return NodeCapacity(
        name=name,
        version=1,
        cards=card_capacities(inventory, usage, None, ()),
        vfs=vf_capacities(inventory, usage, None, ()),
        partitions=inventory.partitions,
        isolations=inventory.isolations,
    )


# Requests of pods.


def whole(name: str, gpus: int = 1, *, role: Role = Role.APP, vfs: int = 0) -> ContainerRequest:
    return ContainerRequest(name=name, role=role, gpus=gpus, vfs=vfs)


def share(
    name: str,
    memory_mib: int | None = None,
    core_percent: int | None = None,
    *,
    role: Role = Role.APP,
    vfs: int = 0,
    cards: int = 1,
) -> ContainerRequest:
    return ContainerRequest(
        name=name, role=role, share=Share(memory_mib=memory_mib, core_percent=core_percent, cards=cards), vfs=vfs
    )


def rdma(name: str, vfs: int = 1, *, role: Role = Role.APP) -> ContainerRequest:
    return ContainerRequest(name=name, role=role, vfs=vfs)


def request(
    *containers: ContainerRequest,
    policy: Policy | None = None,
    gpu_model: str = "",  # or several: A|B
    rdma_policy: RdmaPolicy = RdmaPolicy.NEAREST,
    scope: Scope = Scope.ANY,
    partition: PartitionPolicy | None = None,
    sharing: Sharing | None = None,
    isolation: IsolationName | None = None,
) -> DeviceRequest:
    return DeviceRequest(
        containers=containers,
        policy=policy,
        gpu_models=tuple(filter(None, gpu_model.split("|"))),
        rdma_policy=rdma_policy,
        scope=scope,
        partition=partition,
        sharing=sharing,
        isolation=isolation,
    )
