import pytest

from central.ledger.model import NodeCapacity
from central.rank.score import score
from central.request.model import DeviceRequest, Policy, Role
from central.search.demand import Limits
from tests.fakes.capacities import capacity, card, eight_gpus, held, rdma, request, share, vf, whole

MANY = capacity(*(card(n, free_mib=80000) for n in range(2)))  # a small share on each card
FEW = capacity(held(0), card(1))
BUSY, CALM = (capacity(card(0, free_mib=80000, free_core=core)) for core in (10, 90))
USED, FRESH = (capacity(vfs=[vf(0), vf(1, held=held)]) for held in (True, False))
ONE_CARD = capacity(card(0, usable_mib=100))
HALF_OF_TWO = capacity(card(0, usable_mib=100, free_mib=50, free_core=50), card(1, usable_mib=100))
# Behaviour → pod, policy, and nodes from the highest score to the lowest.
ORDERS: dict[str, tuple[DeviceRequest, Policy, list[NodeCapacity]]] = {
    "binpack prefers the fullest node": (
        request(whole("a")),
        Policy.BINPACK,
        [eight_gpus(held_cards=range(6)), eight_gpus(held_cards={1}), eight_gpus()],
    ),
    "binpack counts the pod itself": (
        request(whole("a")),
        Policy.BINPACK,
        [capacity(card(0)), eight_gpus(held_cards=range(4))],
    ),
    "binpack counts the memory of the pod": (request(share("a", 60)), Policy.BINPACK, [ONE_CARD, HALF_OF_TWO]),
    "binpack counts the compute of the pod": (request(share("a", 1, 60)), Policy.BINPACK, [ONE_CARD, HALF_OF_TWO]),
    "spread prefers the emptiest node": (request(share("a", 10)), Policy.SPREAD, [capacity(card(0), card(1)), FEW, MANY]),
    "binpack prefers a whole taken card to small shares": (request(share("a", 10)), Policy.BINPACK, [FEW, MANY]),
    "compute fills a node as memory does": (request(share("a", 1, 5)), Policy.BINPACK, [BUSY, CALM]),
    "binpack compares VFs if no cards are requested": (request(rdma("a")), Policy.BINPACK, [USED, FRESH]),
    "spread compares VFs if no cards are requested": (request(rdma("a")), Policy.SPREAD, [FRESH, USED]),
}


@pytest.mark.parametrize(("pod", "policy", "order"), ORDERS.values(), ids=ORDERS)
def test_the_order_of_nodes_by_score(pod: DeviceRequest, policy: Policy, order: list[NodeCapacity]) -> None:
    scores = [score(one, pod, policy=policy) for one in order]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(order)


def test_the_score_includes_the_amounts_that_the_pod_takes_at_one_time() -> None:
    app = share("app", 20, 20)
    alone, with_init = request(app), request(share("init", 10, 10, role=Role.INIT), app)
    for policy in Policy:
        assert score(capacity(card(0)), with_init, policy=policy) == score(capacity(card(0)), alone, policy=policy)


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


def test_the_score_counts_the_part_of_a_card_that_a_container_takes() -> None:
    limits = Limits(spread_containers_per_card=2)
    pod = request(whole("a"), policy=Policy.SPREAD)
    half, whole_card = (score(capacity(card(0)), pod, policy=Policy.SPREAD, limits=one) for one in (limits, Limits()))
    assert half > whole_card
