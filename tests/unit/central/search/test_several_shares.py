"""Test equal shares of several cards for one container: different cards, near each other, and why there are too few."""

import pytest

from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import DeviceRequest, Policy
from central.search.explain import explain
from central.search.fit import fit
from central.search.placement import Missing, NoFit, Placement
from lading.devices.isolation import IsolationName
from lading.nodedevices import NvLink
from tests.fakes.capacities import capacity, card, gpu_uuid, held, request, share


def cards(where: NodeCapacity, pod: DeviceRequest, policy: Policy) -> list[int] | Missing:
    result = fit(where, pod, policy=policy)
    if isinstance(result, NoFit):
        return result.missing
    (placed,) = result.containers.values()
    return [number for gpu in placed.gpus for number in range(8) if gpu.uuid == gpu_uuid(number)]


def linked(number: int, *others: int, free_mib: int) -> CardCapacity:
    return card(number, free_mib=free_mib, switch=None, nvlinks=[NvLink(count=4, to=gpu_uuid(other)) for other in others])


@pytest.mark.parametrize("policy", Policy)
def test_each_is_of_another_card_and_of_the_amount(policy: Policy) -> None:
    result = fit(capacity(card(0), card(1), card(2)), request(share("a", 1000, 30, cards=2)), policy=policy)
    assert isinstance(result, Placement)
    assert len(result.taken.gpus) == 2
    assert {(part.memory_mib, part.core_percent, part.whole) for part in result.taken.gpus.values()} == {(1000, 30, False)}


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_linked_cards_come_before_full_ones(policy: Policy) -> None:
    """Check that the fullest of equally linked cards is chosen."""
    where = capacity(*(linked(n, n ^ 2, free_mib=free) for n, free in enumerate([9000, 2000, 8000, 60_000])))
    assert cards(where, request(share("a", 1000, cards=2)), policy) == [0, 2]
    assert cards(where, request(share("a", 1000)), policy) == [1]


@pytest.mark.parametrize("policy", Policy)
def test_shares_of_two_cards_need_two_cards_with_free_capacity(policy: Policy) -> None:
    pod = request(share("a", 1000, cards=2))
    where = capacity(card(0), held(1), card(2, free_mib=10))
    assert cards(where, pod, policy) is Missing.NO_CARD_WITH_ROOM
    assert "of 3 GPUs 1 have so much free" in explain(where, pod, Missing.NO_CARD_WITH_ROOM, policy=policy)
    assert cards(capacity(card(0)), pod, policy) is Missing.TOO_FEW_GPUS
    assert cards(capacity(card(0), card(1, usable_mib=10)), pod, policy) is Missing.NO_CARD_LARGE_ENOUGH


@pytest.mark.parametrize("policy", Policy)
def test_all_of_them_have_the_isolation_of_the_pod(policy: Policy) -> None:
    none, tokens = IsolationName.NONE, IsolationName.TOKENS
    where = capacity(card(0, free_mib=5000, isolations=(tokens,)), card(1, free_mib=5000), card(2), isolations=(none, tokens))
    assert cards(where, request(share("a", 1000, cards=2), isolation=tokens), policy) == [0, 2]
    assert cards(where, request(share("a", 1000, cards=2)), policy) == [1, 2]
    assert cards(where, request(share("a", 1000, cards=3)), policy) is Missing.OTHER_ISOLATION
