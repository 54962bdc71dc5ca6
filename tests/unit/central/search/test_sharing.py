"""Test sharing labels on one node: which cards remain, and that no allowed card is left out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from central.assignment.sharing import UNLABELLED, Labels
from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import DeviceRequest, Policy, Role, Sharing
from central.search.demand import Limits
from central.search.explain import explain
from central.search.fit import fit
from central.search.placement import Missing, NoFit, Placement
from lading.vocabulary import GpuUuid
from tests.fakes.capacities import CARD_MIB, capacity, card, gpu_uuid, held, request, share, whole

HALF = CARD_MIB // 2


def labels(affinity: str = "", anti: str = "", exclusion: str = "", namespace: str = "a") -> Sharing:
    return Sharing(namespace=namespace, affinity=affinity, anti_affinity=anti, exclusion=exclusion)


def shared(number: int, *by: Sharing | Labels, free_mib: int = HALF) -> CardCapacity:
    """Return a card among pods with these labels."""
    each: list[Labels] = [one if isinstance(one, tuple) else (one,) for one in by]
    sharers: Sequence[Labels] = sorted(set(each)) if any(each) else ()
    return replace(card(number, free_mib=free_mib), pods=len(by), containers=len(by), sharers=tuple(sharers))


def cards(where: NodeCapacity, pod: DeviceRequest, policy: Policy = Policy.BINPACK) -> set[GpuUuid] | Missing:
    result = fit(where, pod, policy=policy)
    return result.missing if isinstance(result, NoFit) else set(result.taken.gpus)


def one(sharing: Sharing | None, mib: int = 1000) -> DeviceRequest:
    return request(share("a", mib), sharing=sharing)


X, Y = labels(exclusion="x"), labels(exclusion="y")


@pytest.mark.parametrize(
    ("sharing", "on", "joins"),
    [
        (None, [UNLABELLED], True),
        (None, [labels(anti="x"), labels("x")], True),
        *((None, [X], False), (X, [UNLABELLED], False), (X, [X], True), (X, [X, UNLABELLED], False), (X, [Y], False)),
        (labels(anti="x"), [UNLABELLED, labels(anti="y")], True),
        (labels(anti="x"), [UNLABELLED, labels(anti="x")], False),
        (labels("x"), [UNLABELLED], True),
        (labels("x"), [X], False),
    ],
)
def test_a_share_joins_whom_it_may_be_with(sharing: Sharing | None, on: list[Sharing | Labels], joins: bool) -> None:
    where = capacity(shared(0, *on), card(1))
    assert cards(where, one(sharing)) == {gpu_uuid(0 if joins else 1)}
    assert cards(capacity(shared(0, *on)), one(sharing)) == ({gpu_uuid(0)} if joins else Missing.KEPT_OFF)


def test_a_group_has_one_card_and_takes_no_other() -> None:
    where = capacity(card(0), shared(1, labels("x")), shared(2, UNLABELLED, free_mib=2000))
    assert cards(where, one(labels("x"))) == {gpu_uuid(1)}
    assert cards(where, one(labels("x"), HALF + 1)) is Missing.GROUP_FULL
    assert cards(where, one(labels("x", namespace="b"))) == {gpu_uuid(2)}
    assert cards(where, one(labels("y"))) == {gpu_uuid(2)}


def test_a_group_on_two_cards_takes_no_one() -> None:
    assert cards(capacity(shared(0, labels("x")), shared(1, labels("x"))), one(labels("x"))) is Missing.GROUP_FULL


def test_by_its_other_labels_it_may_not_join_its_group() -> None:
    where = capacity(card(0), shared(1, labels("x", anti="heavy")))
    assert cards(where, one(labels("x", anti="heavy"))) is Missing.GROUP_FULL
    assert cards(where, one(labels("x", anti="other"))) == {gpu_uuid(1)}


@pytest.mark.parametrize("policy", Policy)
def test_by_affinity_all_shares_of_a_pod_are_on_one_card(policy: Policy) -> None:
    where = capacity(card(0, free_mib=4000), card(1, free_mib=3000), card(2, free_mib=10_000))
    pod = request(share("a", 3000), share("b", 3000), share("c", 4000))
    assert len(cards(where, pod, policy)) > 1
    assert cards(where, replace(pod, sharing=labels("x")), policy) == {gpu_uuid(2)}
    assert len(cards(where, replace(pod, sharing=labels(anti="x", exclusion="")), policy)) > 1


@pytest.mark.parametrize(("policy", "number"), [(Policy.BINPACK, 1), (Policy.SPREAD, 0)])
def test_the_card_that_a_group_opens_is_the_policys(policy: Policy, number: int) -> None:
    where = capacity(card(0), card(1, free_mib=9000), card(2, free_mib=5000))
    assert cards(where, request(share("a", 4000), share("b", 4000), sharing=labels("x")), policy) == {gpu_uuid(number)}


def test_shares_that_no_one_card_has_room_for_are_kept_off() -> None:
    pod = request(share("a", 50_000), share("b", 50_000))
    assert cards(capacity(card(0), card(1)), pod) == {gpu_uuid(0), gpu_uuid(1)}
    assert cards(capacity(card(0), card(1)), replace(pod, sharing=labels("x"))) is Missing.KEPT_OFF


def test_whole_cards_of_the_pod_are_not_of_its_group() -> None:
    where = capacity(card(0), shared(1, labels("x")), card(2))
    result = fit(where, request(whole("a", 2), share("b", 1000), sharing=labels("x")), policy=Policy.BINPACK)
    assert isinstance(result, Placement)
    assert {uuid: bool(part.sharing) for uuid, part in result.taken.gpus.items()} == {
        gpu_uuid(0): False,
        gpu_uuid(2): False,
        gpu_uuid(1): True,
    }


def test_an_init_container_may_have_the_groups_card_to_be_whole() -> None:
    """Take the group's card whole before the pod's share is on it, while no other pod is on it."""
    pod = request(whole("prepare", role=Role.INIT), share("a", 1000), sharing=labels("x"))
    assert cards(capacity(card(0)), pod) == {gpu_uuid(0)}
    assert cards(capacity(shared(0, labels("x"))), pod) is Missing.TOO_FEW_FREE_GPUS


def test_a_pod_that_does_not_fit_without_labels_gets_the_other_reason() -> None:
    assert cards(capacity(shared(0, X, free_mib=500)), one(None)) is Missing.NO_CARD_WITH_ROOM
    assert cards(capacity(held(0)), one(X)) is Missing.NO_CARD_WITH_ROOM
    assert cards(capacity(shared(0, X), reachable=False), one(None)) is Missing.UNREACHABLE
    assert cards(capacity(shared(0, X)), request(whole("a"))) is Missing.TOO_FEW_FREE_GPUS


def test_the_bound_of_the_search_is_reported() -> None:
    pod = request(*(share(f"c{n}", 1000 + n) for n in range(6)), sharing=labels("x"))
    where = capacity(*(card(n, free_mib=4000 + n) for n in range(8)))
    assert fit(where, pod, policy=Policy.BINPACK, limits=Limits(search_steps=1)) == NoFit(missing=Missing.SEARCH_ENDED)


def test_over_commit_by_count_is_not_for_pods_with_labels() -> None:
    limits = Limits(spread_containers_per_card=3)
    for sharing, is_whole in ((None, False), (X, True)):
        pod = request(whole("a"), share("b", 10), sharing=sharing)
        result = fit(capacity(card(0), card(1)), pod, policy=Policy.SPREAD, limits=limits)
        assert isinstance(result, Placement)
        assert result.containers["a"].gpus[0].whole is is_whole


@pytest.mark.parametrize(
    ("where", "pod", "named"),
    [
        (capacity(card(0, free_mib=500), shared(1, X)), one(Y), ["share-exclusion y", "of 2 GPUs", "2 have"]),
        (capacity(shared(0, X)), one(None), ["no share-exclusion", "of 1 GPU ", "1 have"]),
        (capacity(shared(0, labels(anti="x"))), one(labels(anti="x")), ["share-anti-affinity x"]),
        (
            capacity(card(0), card(1)),
            request(share("a", 50_000), share("b", 50_000), sharing=labels("x")),
            ["50000Mi; 50000Mi"],
        ),
        (capacity(card(0), shared(1, labels("x"), free_mib=7)), one(labels("x")), [gpu_uuid(1), "7Mi"]),
        (capacity(shared(0, labels("x")), shared(1, labels("x"))), one(labels("x")), [gpu_uuid(0), gpu_uuid(1), "until"]),
        (capacity(card(0), replace(shared(1, labels("x")), usable=False)), one(labels("x")), [gpu_uuid(1), "cordoned"]),
    ],
)
def test_the_words_name_the_rule_or_the_groups_card(where: NodeCapacity, pod: DeviceRequest, named: list[str]) -> None:
    result = fit(where, pod, policy=Policy.BINPACK)
    assert isinstance(result, NoFit)
    assert result.missing in {Missing.KEPT_OFF, Missing.GROUP_FULL}
    text = explain(where, pod, result.missing, policy=Policy.BINPACK)
    assert [part for part in named if part not in text] == []
