"""Check labels and isolations on one node: a pod is placed by the rules, and refused only if no choice of cards obeys them."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import DeviceRequest, Policy, Sharing
from central.search.fit import fit
from central.search.placement import Placement
from lading.devices.isolation import IsolationName
from tests.depth import repeats
from tests.fakes.capacities import capacity, card, request, share, whole

# One rule or two, mostly with the same label: those who meet have something to do with one another.
word = st.sampled_from("xxxy")
RULES = [("affinity",), ("anti_affinity",), ("exclusion",), ("affinity", "exclusion"), ("affinity", "anti_affinity")]


@st.composite
def some_labels(draw: st.DrawFn) -> Sharing:
    text: dict[str, str] = dict.fromkeys(draw(st.sampled_from(RULES)), draw(word))
    return Sharing(namespace=draw(st.sampled_from("aaab")), **text)


labels = some_labels()
isolations = st.sampled_from([(), (), ("tokens",), ("none", "tokens")])
sharers = st.lists(st.none() | labels, min_size=1, max_size=2)


@st.composite
def cards(draw: st.DrawFn, number: int) -> CardCapacity:
    by = draw(st.none() | sharers)
    if by is None:
        return card(number)
    text = sorted({(one,) if one else () for one in by}) if any(by) else ()
    free = draw(st.sampled_from([2000, 4000, 8000]))
    made = card(number, free_mib=free, usable=bool(draw(st.integers(0, 5))))
    return replace(made, pods=len(by), sharers=tuple(text), isolations=draw(isolations))


NONE, TOKENS = IsolationName.NONE, IsolationName.TOKENS
offered = st.sampled_from([(), (), (NONE, TOKENS), (TOKENS, NONE), (TOKENS,)])
capacities = st.builds(
    lambda made, isolations: capacity(*made, isolations=isolations), st.tuples(*map(cards, range(3))), offered
)
shares = st.lists(st.sampled_from([1000, 2000, 5000]), min_size=1, max_size=3)
is_judged = st.builds(
    lambda mib, wholes, text, isolation, same_card: replace(
        request(
            *(share(f"s{number}", each) for number, each in enumerate(mib)),
            *(whole(f"w{number}") for number in range(wholes)),
            sharing=text,
            isolation=isolation,
        ),
        same_card=same_card,
    ),
    shares,
    st.integers(0, 1),
    st.none() | labels,
    st.sampled_from([None, None, NONE, TOKENS]),
    st.booleans(),
)


def has_the_isolation_of(where: NodeCapacity, one: CardCapacity, requested: IsolationName | None) -> bool:
    its = requested or (where.isolations[0] if where.isolations else NONE)
    return its in (where.isolations or [NONE]) and (not one.pods or list(one.isolations or [NONE]) == [its])


def may_be_on(one: CardCapacity, sharing: Sharing | None) -> bool:
    mine = sharing or Sharing(namespace="")
    for others in (one.sharers or ((),)) if one.pods else ():
        for other in others or (Sharing(namespace=""),):
            same = mine.namespace == other.namespace
            if (mine.exclusion or other.exclusion) and not (same and mine.exclusion == other.exclusion):
                return False
            if same and mine.anti_affinity and mine.anti_affinity == other.anti_affinity:
                return False
    return True


def keeps_the_rules(where: NodeCapacity, pod: DeviceRequest, on: tuple[int, ...]) -> bool:
    """Return whether a placement obeys the rules. `on`: the card of each share, then each whole card."""
    mib = [container.share.memory_mib or 0 for container in pod.containers if container.share]
    of_shares, wholes = on[: len(mib)], on[len(mib) :]
    if set(of_shares) & set(wholes) or any(where.cards[n].pods for n in wholes):
        return False
    if not all(where.cards[n].usable for n in on) or not all(may_be_on(where.cards[n], pod.sharing) for n in of_shares):
        return False
    if not all(has_the_isolation_of(where, where.cards[n], pod.isolation) for n in of_shares):
        return False
    if any(
        sum(each for each, n in zip(mib, of_shares, strict=True) if n == one) > where.cards[one].free_mib for one in of_shares
    ):
        return False
    if pod.same_card and len(set(of_shares)) > 1:
        return False
    sharing = pod.sharing
    if sharing is None or not sharing.affinity:
        return True
    group = (sharing.namespace, sharing.affinity)
    homes = {
        number
        for number, one in enumerate(where.cards)
        if any((label.namespace, label.affinity) == group for others in one.sharers for label in others)
    }
    return len(homes | set(of_shares)) == 1


@given(capacities, is_judged, st.sampled_from(Policy))
@pytest.mark.repeats
@settings(max_examples=repeats(40, long=2_000))
def test_a_pod_is_placed_by_the_rules_exactly_where_there_is_a_way(
    where: NodeCapacity, pod: DeviceRequest, policy: Policy
) -> None:
    ways = product(range(len(where.cards)), repeat=len(pod.containers))
    result = fit(where, pod, policy=policy)
    assert isinstance(result, Placement) == any(keeps_the_rules(where, pod, way) for way in ways)
    if isinstance(result, Placement):
        number_of = {one.gpu.uuid: number for number, one in enumerate(where.cards)}
        assert keeps_the_rules(where, pod, tuple(number_of[placed.gpus[0].uuid] for placed in result.containers.values()))
