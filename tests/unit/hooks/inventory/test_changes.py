"""Test what is read as having happened between two inventories."""

from hypothesis import given
from hypothesis import strategies as st

from hooks.inventory.changes import Change, ChangeKind, decide_changes
from hooks.model.inventory import Gpu, Inventory, MigInstance, Pf, Vf
from lading.vocabulary import GpuUuid, PciAddress
from tests.unit.hooks.inventories import running

PF = PciAddress("0000:18:00.0")


def gpu(
    uuid: str, unhealthy: str = "", *, index: int = 0, pids: tuple[int, ...] = (), mig: tuple[MigInstance, ...] = ()
) -> Gpu:
    return Gpu(
        vendor="nvidia",
        uuid=GpuUuid(uuid),
        bdf=PciAddress("0000:1a:00.0"),
        index=index,
        minor=index,
        model="H100",
        memory_mib=1,
        reserved_mib=0,
        numa=None,
        node=None,
        unhealthy=unhealthy,
        processes=running(*pids),
        mig=mig,
    )


def inventory(gpus: dict[str, str], vfs: dict[str, str], problems: tuple[str, ...] = ()) -> Inventory:
    functions = tuple(
        Vf(bdf=PciAddress(bdf), pf=PF, index=0, driver="", numa=None, unhealthy=reason) for bdf, reason in vfs.items()
    )
    return Inventory(
        gpus=tuple(gpu(uuid, reason) for uuid, reason in gpus.items()),
        pfs=(Pf(bdf=PF, driver="", numa=None, vfs=functions),),
        problems=problems,
    )


def test_each_kind() -> None:
    old = inventory({"GPU-a": "", "GPU-b": "lost"}, {"v1": "", "v2": ""}, ("old", "same"))
    new = inventory({"GPU-a": "lost", "GPU-b": ""}, {"v2": "", "v3": "", "v4": "vfio"}, ("same", "new"))
    assert decide_changes(old, new) == (
        Change(kind=ChangeKind.REMOVED, device="v1"),
        Change(kind=ChangeKind.UNHEALTHY, device="GPU-a", reason="lost"),
        Change(kind=ChangeKind.HEALTHY, device="GPU-b"),
        Change(kind=ChangeKind.ADDED, device="v3"),
        Change(kind=ChangeKind.ADDED, device="v4"),
        Change(kind=ChangeKind.UNHEALTHY, device="v4", reason="vfio"),
        Change(kind=ChangeKind.PROBLEM, reason="new"),
        Change(kind=ChangeKind.SOLVED, reason="old"),
    )


def test_another_reason_is_reported() -> None:
    old, new = inventory({"GPU-a": "lost"}, {}), inventory({"GPU-a": "no node"}, {})
    assert decide_changes(old, new) == (Change(kind=ChangeKind.UNHEALTHY, device="GPU-a", reason="no node"),)


def test_mig_instances_are_devices_and_share_their_cards_health() -> None:
    mig = MigInstance(uuid="MIG-1", gpu_instance=1, compute_instance=0, memory_mib=1, nodes=())
    old = Inventory(gpus=(gpu("GPU-a", mig=(mig,)),))
    new = Inventory(gpus=(gpu("GPU-a", "no node", mig=(mig,)),))
    assert [change.device for change in decide_changes(old, new)] == ["GPU-a", "MIG-1"]
    assert [change.device for change in decide_changes(old, Inventory(gpus=(gpu("GPU-a"),)))] == ["MIG-1"]


def test_a_pf_has_health_of_its_own() -> None:
    def inventory(unhealthy: str) -> Inventory:
        return Inventory(pfs=(Pf(bdf=PF, driver="", numa=None, unhealthy=unhealthy),))

    assert decide_changes(inventory(""), inventory("down")) == (Change(kind=ChangeKind.UNHEALTHY, device=PF, reason="down"),)


def test_processes_and_renumbering_are_no_news() -> None:
    old, new = Inventory(gpus=(gpu("GPU-a"),)), Inventory(gpus=(gpu("GPU-a", index=3, pids=(1, 2)),))
    assert old != new
    assert decide_changes(old, new) == ()


HEALTH = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["", "lost", "no node"]))


@given(HEALTH, HEALTH)
def test_changes_turn_the_old_health_into_the_new(before: dict[str, str], after: dict[str, str]) -> None:
    health = dict(before)
    for change in decide_changes(inventory(before, {}), inventory(after, {})):
        match change.kind:
            case ChangeKind.REMOVED:
                del health[change.device]
            case ChangeKind.ADDED | ChangeKind.HEALTHY:
                health[change.device] = ""
            case ChangeKind.UNHEALTHY:
                health[change.device] = change.reason
            case other:
                raise AssertionError(other)
    assert health == after
