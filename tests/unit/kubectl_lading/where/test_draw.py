"""Test a node as a tree: each device once, bars of the right length, and lines within the terminal's width."""

from hypothesis import given
from hypothesis import strategies as st

from central.view.model import DeviceState, GpuView, GroupView, HolderView, NodeState, NodeView, PfView, VfView
from kubectl_lading.where.draw import draw_topology

FULL, EMPTY = "█", "░"


def a_gpu(
    index: int = 0,
    *,
    held_mib: int = 0,
    state: DeviceState = DeviceState.FREE,
    holders: tuple[HolderView, ...] = (),
    reason: str = "",
) -> GpuView:
    bdf = f"0000:{0x10 + index:02x}:00.0"
    uuid = f"GPU-{index:08x}-0000-0000-0000-000000000000"
    return GpuView(
        uuid=uuid, bdf=bdf, index=index, model="M", memory_mib=1000, state=state, held_mib=held_mib, holders=holders, why=reason
    )


def a_node(*gpus: GpuView, pfs: tuple[PfView, ...] = ()) -> NodeView:
    """Return a node with all devices below one switch."""
    group = GroupView(
        name="0000:00:01.0", socket=0, numa=0, gpus=tuple(gpu.uuid for gpu in gpus), pfs=tuple(pf.bdf for pf in pfs)
    )
    return NodeView(name="n1", state=NodeState.READY, gpus=gpus, pfs=pfs, groups=(group,))


def drawn(view: NodeView, width: int = 200, *, wide: bool = False) -> list[str]:
    return [line.plain for line in draw_topology(view, width, wide=wide)]


def bar(held_mib: int, state: DeviceState = DeviceState.SHARED) -> str:
    holder = HolderView(uid="u", namespace="ns", pod="p", claims=("granted",), memory_mib=held_mib)
    text = drawn(a_node(a_gpu(held_mib=held_mib, state=state, holders=(holder,)), a_gpu(1)))
    return "".join(sign for line in text if "GPU 0" in line for sign in line if sign in FULL + EMPTY)


def test_a_little_is_not_drawn_as_nothing_nor_nearly_all_as_all() -> None:
    assert bar(1) == FULL + EMPTY * 7
    assert bar(500) == FULL * 4 + EMPTY * 4
    assert bar(999) == FULL * 7 + EMPTY
    assert bar(1000, DeviceState.HELD) == FULL * 8


def test_the_isolation_of_a_share_is_beside_its_amounts() -> None:
    holder = HolderView(uid="u", namespace="ns", pod="p", claims=("granted",), memory_mib=500, isolation="tokens")
    (line,) = [one for one in drawn(a_node(a_gpu(held_mib=500, state=DeviceState.SHARED, holders=(holder,)))) if "GPU 0" in one]
    assert "ns/p" in line.partition("tokens")[0]


def test_vfs_of_a_nic_are_one_line_and_their_pods_counted() -> None:
    pods = [HolderView(uid=f"u{n}", namespace="ns", pod=f"p{n}", claims=("granted",)) for n in range(2)]
    vfs = tuple(VfView(bdf=f"0000:60:00.{n}", state=DeviceState.HELD, holders=(pods[n // 2],)) for n in range(4))
    view = a_node(
        a_gpu(),
        pfs=(PfView(bdf="0000:60:00.0", ibdev="mlx5_0", vfs=(*vfs, VfView(bdf="0000:60:01.0", state=DeviceState.FREE))),),
    )
    (line,) = [line for line in drawn(view) if "mlx5_0" in line]
    assert "4/5 VFs" in line
    assert line.endswith("ns/p0 x2, ns/p1 x2")
    wide = "\n".join(drawn(view, wide=True))
    assert "ns/p1: 60:00.2 60:00.3" in wide


def test_the_rail_of_a_nic_is_beside_its_address() -> None:
    pfs = (PfView(bdf="0000:60:00.0", ibdev="mlx5_0", rail=0), PfView(bdf="0000:61:00.0", ibdev="mlx5_1"))
    text = "\n".join(drawn(a_node(a_gpu(), pfs=pfs)))
    assert "mlx5_0 60:00.0 rail 0 " in text
    assert text.count("rail") == 1


def test_what_is_true_of_all_vfs_is_reported_once() -> None:
    vfs = tuple(VfView(bdf=f"0000:60:00.{n}", state=DeviceState.UNUSABLE, why="link is down") for n in range(3))
    view = a_node(a_gpu(), pfs=(PfView(bdf="0000:60:00.0", ibdev="mlx5_0", why="link is down", vfs=vfs),))
    assert sum(line.count("link is down") for line in drawn(view)) == 1


def test_what_is_not_granted_yet_is_marked() -> None:
    holders = tuple(
        HolderView(uid=claim, namespace="ns", pod=claim, claims=(claim,), memory_mib=1) for claim in ("bound", "granted")
    )
    text = "\n".join(drawn(a_node(a_gpu(state=DeviceState.SHARED, held_mib=2, holders=holders), a_gpu(1))))
    assert "ns/bound 0Gi 0% (" in text
    assert "ns/granted 0Gi 0%\n" in text


def test_a_device_alone_below_its_port_is_below_no_switch() -> None:
    text = drawn(a_node(a_gpu()))
    assert not any("switch" in line for line in text)
    assert any("switch" in line for line in drawn(a_node(a_gpu(), a_gpu(1))))


def test_a_place_that_no_one_knows() -> None:
    gpu = a_gpu()
    view = NodeView(name="n1", state=NodeState.READY, gpus=(gpu,), groups=(GroupView(name="", gpus=(gpu.uuid,)),))
    assert any("GPU 0" in line for line in drawn(view))


names = st.text("abcdefghij-", min_size=1, max_size=60)


@given(st.lists(st.lists(names, max_size=4), min_size=1, max_size=8), st.integers(70, 220))
def test_no_line_is_wider_than_the_terminal_and_no_one_is_lost(pods: list[list[str]], width: int) -> None:
    gpus = []
    for index, on_card in enumerate(pods):
        holders = tuple(
            HolderView(uid=str(n), namespace="ns", pod=pod, claims=("granted",), memory_mib=1) for n, pod in enumerate(on_card)
        )
        gpus.append(
            a_gpu(index, state=DeviceState.SHARED if holders else DeviceState.FREE, held_mib=len(holders), holders=holders)
        )
    text = drawn(a_node(*gpus), width)
    assert max(map(len, text)) <= width
    together = "".join(line.replace("│", "").strip() for line in text)
    assert all(f"ns/{pod}" in together.replace(" ", "") for on_card in pods for pod in on_card)
