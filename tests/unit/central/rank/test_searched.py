"""Test that cached verdicts of the exact search, after an update, equal a search on every node."""

from collections.abc import Collection, Iterable
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from central.ledger.model import NodeCapacity
from central.loop.steps import exhaust
from central.rank.cached import CachedVerdicts
from central.rank.score import Score, score_placed
from central.rank.searched import PASSED_OVER, SearchedVerdicts
from central.rank.verdicts import REMEMBERED, Verdicts
from central.request.model import NO_CPU_MEMORY, DeviceRequest, Policy
from central.search.fit import fit
from central.search.placement import Missing, NoFit
from tests.fakes.capacities import capacity, card, request, share, whole

ASKS = (request(whole("c")), request(whole("c", 2)), request(share("c", 40_000)))
CARDS = (card(0), card(1), card(0, free_mib=30_000), card(1, free_mib=50_000), card(0, unhealthy="Xid 79"))


def judge(capacity: NodeCapacity, requested: DeviceRequest) -> Score | Missing:
    result = fit(capacity, requested, policy=Policy.BINPACK)
    return result.missing if isinstance(result, NoFit) else score_placed(capacity, requested, result, policy=Policy.BINPACK)


def verdicts_of(capacities: "Capacities") -> Verdicts:
    return Verdicts(capacities.since, lambda version: ([], version), policy=Policy.BINPACK)


def judged(verdicts: Verdicts, requested: DeviceRequest) -> CachedVerdicts:
    """Judge the request on all nodes."""
    exhaust(verdicts.judging(requested))
    return verdicts.of(requested)


def best(kept: CachedVerdicts, among: Collection[str]) -> str | None:
    return kept.best(NO_CPU_MEMORY, among)


class Capacities:
    """Return the capacities of a cluster as the ledger shows them."""

    def __init__(self) -> None:
        self.capacities: dict[str, NodeCapacity] = {}
        self.changes: list[str] = []
        self.looked = 0

    def put(self, name: str, cards: Iterable[int]) -> None:
        chosen = {number % 2: CARDS[number] for number in cards}
        self.changes.append(name)
        self.capacities[name] = capacity(*chosen.values(), name=name, version=len(self.changes))

    def remove(self, name: str) -> None:
        self.capacities.pop(name, None)
        self.changes.append(name)

    def since(self, version: int) -> tuple[list[tuple[str, NodeCapacity | None]], int]:
        names = list(dict.fromkeys(self.changes[max(version, 0) :]))
        self.looked += len(names)
        return [(name, self.capacities.get(name)) for name in names], len(self.changes)


names = st.sampled_from([f"n{number}" for number in range(6)])
change = st.tuples(names, st.none() | st.sets(st.integers(0, len(CARDS) - 1)))


@given(st.lists(st.tuples(change, st.sampled_from(ASKS), st.sets(names)), max_size=30))
def test_updated_verdicts_equal_a_search_on_every_node(
    steps: list[tuple[tuple[str, set[int] | None], DeviceRequest, set[str]]],
) -> None:
    capacities = Capacities()
    cache = verdicts_of(capacities)
    for (name, cards), requested, among in steps:
        if cards is None:
            capacities.remove(name)
        else:
            capacities.put(name, cards)
        verdicts = {one.name: judge(one, requested) for one in capacities.capacities.values()}
        scores = {node: verdict for node, verdict in verdicts.items() if not isinstance(verdict, Missing)}
        partly = cache.of(requested)
        exhaust(islice(partly.judging(), 1))
        assert partly.fits.items() <= scores.items()
        assert partly.complete is (Missing.NOT_REACHED.shown not in partly.reasons.values())
        kept = judged(cache, requested)
        assert kept.fits == scores
        shown = {node: verdict.shown if isinstance(verdict, Missing) else "" for node, verdict in verdicts.items()}
        assert kept.reasons == shown
        first = min((([-part for part in scores[node]], node) for node in among & scores.keys()), default=(None, None))[1]
        assert best(kept, sorted(among)) == first


def test_the_best_of_the_named_nodes_is_found_among_many() -> None:
    """Check that the answer is the same when many better nodes exist, and all named nodes are judged."""
    capacities = Capacities()
    names = [f"n{number:03d}" for number in range(4 * PASSED_OVER)]
    for name in names:
        capacities.put(name, {0, 1} if name < names[3 * PASSED_OVER] else {2, 3})
    requested = ASKS[2]
    kept = judged(verdicts_of(capacities), requested)
    fuller, emptier = names[3 * PASSED_OVER :], names[: 3 * PASSED_OVER]
    assert best(kept, names) == fuller[0]
    assert best(kept, emptier[::-1]) == emptier[0]
    assert best(kept, [*emptier[::-1], fuller[7], fuller[5]]) == fuller[5]
    assert best(kept, ["elsewhere"]) is None


def test_only_changed_nodes_are_judged_again() -> None:
    capacities = Capacities()
    cache = verdicts_of(capacities)
    for number in range(50):
        capacities.put(f"n{number}", {0, 1})
    cache.of(ASKS[0])
    capacities.looked = 0
    capacities.put("n7", {2})
    cache.of(ASKS[0])
    cache.of(ASKS[0])
    assert capacities.looked == 1


def test_the_verdicts_of_the_last_requests_are_cached() -> None:
    capacities = Capacities()
    cache = verdicts_of(capacities)
    capacities.put("n1", {0})
    first = cache.of(ASKS[0])
    for number in range(1, REMEMBERED):
        cache.of(request(share("c", number)))
    assert cache.of(ASKS[0]) is first
    for number in range(REMEMBERED):
        cache.of(request(share("c", 1000 + number)))
    assert cache.of(ASKS[0]) is not first


def test_changes_do_not_add_up_in_memory() -> None:
    capacities = Capacities()
    cache = verdicts_of(capacities)
    for number in range(500):
        capacities.put("n1", {0} if number % 2 else {2})
        kept = judged(cache, ASKS[2])
        best(kept, ["n1"])
    assert isinstance(kept, SearchedVerdicts)
    assert len(kept._heap) < 50
