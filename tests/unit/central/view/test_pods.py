"""Test what pods hold and use, from views of nodes."""

from central.view.model import (
    DeviceCounts,
    DeviceState,
    GpuView,
    HolderView,
    MigView,
    NodeState,
    NodeView,
    PfView,
    Totals,
    Use,
    VfView,
)
from central.view.pods import PodState, share_of, share_of_nodes, view_pods

MIB = 80_000


GRANTED = ("bound", "granted")


def holder(
    pod: str,
    mib: int = 0,
    percent: int = 0,
    *,
    claims: tuple[str, ...] = GRANTED,
    mig: tuple[str, ...] = (),
    used_mib: int | None = None,
) -> HolderView:
    """Return a holder of the whole card if no amounts are given."""
    namespace, _, name = pod.rpartition("/")
    return HolderView(
        uid=f"uid-{name}",
        namespace=namespace,
        pod=name,
        claims=claims,
        memory_mib=mib,
        core_percent=percent,
        whole=not (mib or mig),
        mig=mig,
        used_mib=used_mib,
    )


def card(
    *holders: HolderView, use: tuple[int, int] | None = None, idle: bool = False, mig: tuple[MigView, ...] = ()
) -> GpuView:
    """Return a card. `use`: MiB and percent."""
    return GpuView(
        uuid="GPU", bdf="0000:01:00.0", index=0, model="M", memory_mib=MIB,
        state=DeviceState.HELD if holders else DeviceState.FREE,
        holders=holders, mig=mig, use=use and Use(memory_mib=use[0], busy_percent=use[1]), idle=idle,
    )  # fmt: skip


def node(name: str, *gpus: GpuView, vfs: tuple[HolderView, ...] = ()) -> NodeView:
    held = tuple(VfView(bdf=f"0000:60:00.{n}", state=DeviceState.HELD, holders=(one,)) for n, one in enumerate(vfs))
    return NodeView(name=name, state=NodeState.READY, gpus=gpus, pfs=(PfView(bdf="0000:60:00.0", vfs=held),))


def test_a_pod_has_the_use_of_cards_that_it_has_alone() -> None:
    one, two = holder("ns/a"), holder("ns/a")
    (pod,) = view_pods([node("n1", card(one, use=(70_000, 90)), card(two, use=(60_000, 70)), card(use=(9_999, 99)))])
    assert (pod.holds.gpus, pod.holds.used_mib, pod.holds.busy_percent) == (2, 130_000, 80)
    assert (pod.holds.held_mib, pod.holds.held_percent, pod.state) == (2 * MIB, 200, PodState.HOLDING)


def test_the_use_of_a_shared_card_is_of_whom_it_is_shared_by() -> None:
    views = [node("n1", card(holder("x/a", 8192, 20), holder("y/b", 4096, 30), use=(5000, 50)))]
    pods = view_pods(views)
    assert [(pod.pod, pod.holds.used_mib, pod.holds.gpus_shared) for pod in pods] == [("a", None, 1), ("b", None, 1)]
    assert share_of(views, lambda one: one.namespace == "x").used_mib is None
    both = share_of(views, lambda one: True)
    assert (both.gpus, both.gpus_shared, both.used_mib, both.held_mib, both.held_percent) == (1, 0, 5000, 12_288, 50)


def test_a_pod_has_the_memory_that_it_uses_of_a_shared_card_where_it_is_notified() -> None:
    shared = card(holder("x/a", 8192, 20, used_mib=4096), holder("x/b", 1024, used_mib=0), holder("y/c", 99), use=(5000, 50))
    views = [node("n1", shared, card(holder("x/a"), use=(70_000, 90)))]
    pods = {pod.pod: pod.holds for pod in view_pods(views)}
    assert [(pods[name].used_mib, pods[name].busy_percent) for name in "abc"] == [(74_096, 90), (0, None), (None, None)]
    assert [pods[name].gpus_shared for name in "abc"] == [0, 0, 1]
    of_x = share_of(views, lambda one: one.namespace == "x")
    assert (of_x.used_mib, of_x.busy_percent, of_x.gpus_shared) == (74_096, 90, 0)
    of_all = share_of(views, lambda one: True)
    assert (of_all.used_mib, of_all.busy_percent) == (75_000, 70)


def test_a_pod_is_idle_while_none_of_its_cards_is_in_use() -> None:
    idle, busy = card(holder("ns/a"), use=(0, 0), idle=True), card(holder("ns/b"), use=(9000, 50))
    half = node("n2", card(holder("ns/c"), use=(0, 0), idle=True), card(holder("ns/c"), use=(9000, 0)))
    states = {pod.pod: pod.state for pod in view_pods([node("n1", idle, busy), half])}
    assert states == {"a": PodState.IDLE, "b": PodState.HOLDING, "c": PodState.HOLDING}


def test_a_pod_that_has_no_grant_yet_starts_and_does_not_idle() -> None:
    (pod,) = view_pods([node("n1", card(holder("ns/a", claims=("bound",)), use=(0, 0), idle=True))])
    assert pod.state is PodState.STARTING


def test_a_pod_without_gpus_is_never_idle() -> None:
    (pod,) = view_pods([node("n1", vfs=(holder("ns/net"), holder("ns/net")))])
    assert (pod.state, pod.holds.vfs, pod.holds.gpus) == (PodState.HOLDING, 2, 0)


def test_a_pod_holds_its_instances_of_a_card_in_mig_mode() -> None:
    mig = (MigView(uuid="MIG-1", memory_mib=20_000), MigView(uuid="MIG-2", memory_mib=40_000))
    (pod,) = view_pods([node("n1", card(holder("ns/a", mig=("MIG-1",)), mig=mig))])
    assert (pod.holds.held_mib, pod.holds.held_percent) == (20_000, 25)


def test_a_card_that_two_pods_of_a_group_share_is_one_card() -> None:
    views = [node("n1", card(holder("x/a", 1024), holder("x/b", 1024), use=(0, 0), idle=True))]
    share = share_of(views, lambda one: one.namespace == "x")
    assert (share.gpus, share.gpus_reported, share.gpus_idle) == (1, 1, 1)


def test_nodes_use_what_is_used_without_a_grant_too() -> None:
    share = share_of_nodes([node("n1", card(use=(5000, 50)))])
    assert (share.gpus, share.used_mib, share.busy_percent) == (0, 5000, 50)


def test_each_device_is_counted_once() -> None:
    totals = Totals(gpus=15, gpus_free=1, gpus_shared=2, gpus_held=3, gpus_withheld=4, gpus_unusable=5)
    assert totals.gpu_counts == DeviceCounts(free=1, held=5, unusable=9)
    assert totals.gpu_counts.total == totals.gpus
