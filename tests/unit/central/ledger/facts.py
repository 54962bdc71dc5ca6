"""Make facts of the API server for tests of the ledger. Cards and VFs have numbers, as in tests/fakes/capacities.py."""

from collections.abc import Collection, Iterable, Mapping

from central.assignment.model import Part, Taken
from central.ledger.ledger import Ledger
from central.ledger.model import ONE_EACH, NodeCapacity, NodeFacts, PodRecord
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import Gpu, Grant, GrantedGpu, MigInstance, NodeDevices, Pf, Status, Vf
from lading.vocabulary import CORDON, GpuUuid, PodUid
from tests.fakes.capacities import CARD_MIB, MODEL, gpu_bdf, gpu_uuid, pf_bdf, vf_bdf

WHOLE = Part(whole=True)
READY, NOT_READY = NodeFacts(ready=True), NodeFacts()


def uid(name: str) -> PodUid:
    return PodUid(f"uid-{name}")


def taken(gpus: Mapping[int, Part] | None = None, vfs: Iterable[int] = ()) -> Taken:
    return Taken(
        gpus={gpu_uuid(number): part for number, part in (gpus or {}).items()}, vfs=frozenset(vf_bdf(number) for number in vfs)
    )


def whole(*cards: int) -> Taken:
    return taken(dict.fromkeys(cards, WHOLE))


def share(card: int, memory_mib: int, core_percent: int = 0) -> Taken:
    return taken({card: Part(memory_mib, core_percent)})


def pod(
    name: str,
    version: int = 1,
    *,
    node: str = "",
    takes: Taken | None = None,
    terminal: bool = False,
    deleting: bool = False,
    created: int = 0,
    containers: Mapping[GpuUuid, int] = ONE_EACH,
    cpu_memory: CpuMemory = NO_CPU_MEMORY,
) -> PodRecord:
    return PodRecord(
        uid=uid(name),
        namespace="default",
        name=name,
        version=version,
        node=node,
        taken=takes,
        terminal=terminal,
        deleting=deleting,
        created=created,
        containers=containers,
        cpu_memory=cpu_memory,
    )


def gpu(number: int, *, unhealthy: str = "", used_by: str = "", dirty: str = "", reserved_mib: int = 0, mig: int = 0) -> Gpu:
    return Gpu(
        uuid=gpu_uuid(number),
        bdf=gpu_bdf(number),
        model=MODEL,
        memory_mib=CARD_MIB,
        reserved_mib=reserved_mib,
        unhealthy=unhealthy,
        used_by=used_by,
        dirty=dirty,
        mig_enabled=mig > 0,
        mig=tuple(MigInstance(uuid=mig_uuid(n), gpu_instance=n, compute_instance=0, memory_mib=9856) for n in range(mig)),
    )


def mig_uuid(number: int) -> str:
    return f"MIG-{number:08x}-0000-0000-0000-000000000000"


def port(vfs: int = 4, *, unhealthy: str = "", broken: Collection[int] = ()) -> Pf:
    return Pf(
        bdf=pf_bdf(0),
        unhealthy=unhealthy,
        vfs=tuple(Vf(bdf=vf_bdf(number), unhealthy="gone" if number in broken else "") for number in range(vfs)),
    )


def grant(name: str, container: str = "main", *gpus: GrantedGpu, vfs: Iterable[int] = ()) -> Grant:
    addresses = tuple(vf_bdf(number) for number in vfs)
    return Grant(pod=uid(name), container=container, namespace="default", pod_name=name, gpus=gpus, vfs=addresses)


def granted(
    card: int,
    memory_mib: int | None = None,
    core_percent: int | None = None,
    *,
    pod_wide: bool = False,
    pod_memory_mib: int | None = None,
    mig: str = "",
    isolation: str = "",
) -> GrantedGpu:
    return GrantedGpu(
        uuid=gpu_uuid(card),
        memory_mib=memory_mib,
        core_percent=core_percent,
        isolation=isolation,
        pod_wide=pod_wide,
        pod_memory_mib=pod_memory_mib,
        mig_uuid=mig,
    )


def report(
    name: str = "n1",
    version: int = 1,
    *,
    gpus: Iterable[Gpu] | None = None,
    pfs: Iterable[Pf] | None = None,
    grants: Iterable[Grant] = (),
    cordon: str = "",
    reconciled: bool = True,
    isolations: Iterable[str] = (),
) -> NodeDevices:
    """Report two cards and a port with four VFs, unless the test sets other devices."""
    return NodeDevices(
        metadata=AnnotatedMetadata(name=name, resource_version=str(version), annotations={CORDON: cordon} if cordon else {}),
        status=Status(
            reconciled=reconciled,
            isolations=tuple(isolations),
            gpus=tuple(gpus) if gpus is not None else (gpu(0), gpu(1)),
            pfs=tuple(pfs) if pfs is not None else (port(),),
            grants=tuple(grants),
        ),
    )


def ledger_of(*reports: NodeDevices) -> Ledger:
    """Create a ledger in which every node is reachable, and none was freed."""
    ledger = Ledger()
    for each in reports or (report(),):
        ledger.facts.set_report(each)
        ledger.facts.set_node(each.metadata.name, READY, 1)
    ledger.take_freed()
    return ledger


def free_mib(capacity: NodeCapacity) -> list[int]:
    return [card.free_mib for card in capacity.cards]


def free_cards(capacity: NodeCapacity) -> list[int]:
    return [number for number, card in enumerate(capacity.cards) if card.free]


def free_vfs(capacity: NodeCapacity) -> list[int]:
    return [number for number, vf in enumerate(capacity.vfs) if vf.free]
