import pytest

from central.ledger.model import NodeCapacity
from central.rank.score import score
from central.request.model import ContainerRequest, DeviceRequest, Policy, Role
from central.search.demand import Limits
from tests.fakes.capacities import capacity, card, eight_gpus, held, rdma, request, share, vf, whole


def ranked(pod: DeviceRequest, policy: Policy, **capacities: NodeCapacity) -> list[str]:
    return sorted(capacities, key=lambda name: score(capacities[name], pod, policy=policy), reverse=True)


def test_binpack_takes_the_fullest() -> None:
    pod = request(whole("a"))
    order = ranked(
        pod, Policy.BINPACK, empty=eight_gpus(), full=eight_gpus(held_cards=range(6)), half=eight_gpus(held_cards={1})
    )
    assert order == ["full", "half", "empty"]


def test_binpack_counts_the_pod_itself() -> None:
    """Check a node of one card, which the pod would fill."""
    order = ranked(request(whole("a")), Policy.BINPACK, large=eight_gpus(held_cards=range(4)), small=capacity(card(0)))
    assert order == ["small", "large"]


@pytest.mark.parametrize("requested", [share("a", 60), share("a", 1, 60)], ids=["memory", "compute"])
def test_the_score_includes_the_share_of_the_pod(requested: ContainerRequest) -> None:
    half = card(0, usable_mib=100, free_mib=50, free_core=50)
    small, large = capacity(card(0, usable_mib=100)), capacity(half, card(1, usable_mib=100))
    assert ranked(request(requested), Policy.BINPACK, large=large, small=small) == ["small", "large"]


def test_the_score_includes_the_amounts_that_the_pod_takes_at_one_time() -> None:
    app = share("app", 20, 20)
    alone, with_init = request(app), request(share("init", 10, 10, role=Role.INIT), app)
    for policy in Policy:
        assert score(capacity(card(0)), with_init, policy=policy) == score(capacity(card(0)), alone, policy=policy)


def test_spread_takes_the_emptiest() -> None:
    many = capacity(*(card(n, free_mib=80000) for n in range(2)))  # a small share on each card
    few = capacity(held(0), card(1))
    assert ranked(request(share("a", 10)), Policy.SPREAD, many=many, few=few, none=capacity(card(0), card(1))) == [
        "none",
        "few",
        "many",
    ]
    assert ranked(request(share("a", 10)), Policy.BINPACK, many=many, few=few) == ["few", "many"]


def test_compute_fills_a_node_as_memory_does() -> None:
    busy, calm = capacity(card(0, free_mib=80000, free_core=10)), capacity(card(0, free_mib=80000, free_core=90))
    assert ranked(request(share("a", 1, 5)), Policy.BINPACK, calm=calm, busy=busy) == ["busy", "calm"]


def test_vfs_decide_where_cards_do_not() -> None:
    used, fresh = capacity(vfs=[vf(0), vf(1, held=True)]), capacity(vfs=[vf(0), vf(1)])
    assert ranked(request(rdma("a")), Policy.BINPACK, fresh=fresh, used=used) == ["used", "fresh"]
    assert ranked(request(rdma("a")), Policy.SPREAD, used=used, fresh=fresh) == ["fresh", "used"]


def test_devices_that_are_not_requested_do_not_count() -> None:
    assert score(eight_gpus(held_vfs={1}), request(whole("a")), policy=Policy.BINPACK) == score(
        eight_gpus(), request(whole("a")), policy=Policy.BINPACK
    )
    other = capacity(card(0), card(1, model="NVIDIA A10", free_mib=5))
    only = capacity(card(0))
    pod = request(whole("a"), gpu_model=card(0).gpu.model)
    assert score(other, pod, policy=Policy.SPREAD) == score(only, pod, policy=Policy.SPREAD)


def test_unusable_cards_count_neither_as_full_nor_as_empty() -> None:
    pod = request(share("a", 10))
    for policy in Policy:
        assert score(capacity(card(0), card(1, usable=False)), pod, policy=policy) == score(
            capacity(card(0)), pod, policy=policy
        )


def test_a_node_without_a_usable_card_has_a_score() -> None:
    """Check that a node gets a score even if the pod does not fit there."""
    for policy in Policy:
        assert score(capacity(), request(whole("a")), policy=policy)


def test_over_commit_counts_what_is_taken() -> None:
    limits = Limits(spread_containers_per_card=2)
    pod = request(whole("a"), policy=Policy.SPREAD)
    half, whole_card = (score(capacity(card(0)), pod, policy=Policy.SPREAD, limits=one) for one in (limits, Limits()))
    assert half > whole_card
