"""Test that the cached columns, after an update, judge and score nodes as the exact search does on each node."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from central.ledger.model import CardCapacity, NodeCapacity
from central.loop.steps import exhaust
from central.rank.cached import CachedVerdicts
from central.rank.columns import Columns, Followed, Ints, States, left_of
from central.rank.forecast import Forecast
from central.rank.fragmentation import Fragmentation, Scoring
from central.rank.scores import Counting, ScoredVerdicts
from central.rank.verdicts import Verdicts
from central.rank.workload import PodKind, workload_of
from central.request.model import CpuMemory, DeviceRequest, PartitionPolicy, Policy, Shape, Sharing
from central.search.demand import Limits
from central.search.fit import fit
from central.search.placement import NoFit, Placement
from central.search.topology import NEXT_TO
from lading.devices.isolation import IsolationName
from lading.nodedevices import NvLink, Partition
from tests.depth import repeats
from tests.fakes.capacities import capacity, card, gpu_bdf, gpu_uuid, held, request, share, vf, whole

SIZE = 1000
ALL = CpuMemory(1000, 1024)
WORKLOAD = workload_of(
    {
        PodKind(cpu_memory=CpuMemory(4000, 8192), core_percent=30): 3.0,
        PodKind(cpu_memory=CpuMemory(8000, 1024), memory_mib=500): 2.0,
        PodKind(cpu_memory=CpuMemory(16_000, 4096), gpus=1): 3.0,
        PodKind(cpu_memory=CpuMemory(32_000, 65_536), gpus=2): 1.0,
        PodKind(cpu_memory=CpuMemory(2000, 1024)): 2.0,
    }
)
ASKS = (
    request(whole("c")),
    request(whole("c", 2)),
    request(share("c", 400)),
    request(share("c", None, 30)),
    request(whole("c", vfs=1)),  # judged by the search, like the requests below
    request(share("a", 300), share("b", 300)),
    request(whole("c", 2), partition=PartitionPolicy.HONOR),
    request(whole("c", 3)),
    request(share("c", 400), isolation=IsolationName.TOKENS),
    request(share("c", 400), isolation=IsolationName.NONE),
    request(share("a", 300), share("b", 300), isolation=IsolationName.TOKENS),
    request(share("c", 400, cards=2)),
)
OFFERED = (IsolationName.TOKENS, IsolationName.NONE)
PARTITIONS = (Partition(id=0, modules=(1, 3)), Partition(id=1, modules=(2, 4)))  # across switches
CARDS = (
    lambda n: card(n, usable_mib=SIZE),
    lambda n: card(n, usable_mib=SIZE, free_mib=700),
    lambda n: card(n, usable_mib=SIZE, free_mib=500),
    lambda n: held(n, usable_mib=SIZE),
    lambda n: card(n, usable_mib=SIZE, unhealthy="Xid 79"),
    lambda n: replace(card(n, usable_mib=SIZE, free_mib=600), sharers=((Sharing(namespace="ns", exclusion="x"),),)),
    lambda n: card(n, usable_mib=SIZE, free_mib=500, free_core=30),
    lambda n: card(n, usable_mib=SIZE, nvlinks=[NvLink(count=4, to=gpu_uuid(n ^ 2))]),
    lambda n: card(n, usable_mib=SIZE, free_mib=700, isolations=(IsolationName.TOKENS,)),
)
LIMITS = Limits()


class Capacities:
    """Return the capacities of a cluster as the ledger shows them."""

    def __init__(self) -> None:
        self.now: dict[str, NodeCapacity] = {}
        self.changes: list[str] = []
        self.loads: list[str] = []
        self.turnover = 0

    def put(
        self, name: str, cards: tuple[int, ...], cpu_milli: int, vfs: int, *, parted: bool = False, isolated: bool = False
    ) -> None:
        self.changes.append(name)
        made = capacity(
            *(_on_board(CARDS[kind](n), n + 1) for n, kind in enumerate(cards)), vfs=[vf(n) for n in range(vfs)], name=name
        )
        self.now[name] = replace(
            made,
            version=len(self.changes),
            cpu_milli=cpu_milli,
            memory_mib=65_536,
            resources_reported=True,
            partitions=PARTITIONS if parted else (),
            isolations=OFFERED if isolated else (),
        )

    def put_parted(self, *text: Any) -> None:
        self.put(*text, parted=True)

    def put_isolated(self, *text: Any) -> None:
        self.put(*text, isolated=True)

    def load(self, name: str, cpu_milli: int) -> None:
        if name in self.now:
            self.loads.append(name)
            self.now[name] = replace(self.now[name], cpu_milli=cpu_milli)

    def remove(self, name: str) -> None:
        self.now.pop(name, None)
        self.changes.append(name)

    def followed(self) -> Followed:
        return Followed(Columns(), self._since, self._loads_since)

    def verdicts(self) -> Verdicts:
        return Verdicts(
            self._since,
            self._loads_since,
            policy=Policy.FRAGMENTATION,
            limits=LIMITS,
            forecast=Forecast.settled(WORKLOAD, self.turnover),
        )

    def _since(self, version: int) -> tuple[list[tuple[str, NodeCapacity | None]], int]:
        names = dict.fromkeys(self.changes[max(version, 0) :])
        return [(name, self.now.get(name)) for name in names], len(self.changes)

    def _loads_since(self, version: int) -> tuple[list[tuple[str, int, int, bool]], int]:
        names = [name for name in dict.fromkeys(self.loads[max(version, 0) :]) if name in self.now]
        left = [(name, self.now[name].cpu_milli, self.now[name].memory_mib, True) for name in names]
        return left, len(self.loads)


def _on_board(one: CardCapacity, module_id: int) -> CardCapacity:
    return replace(one, gpu=msgspec.structs.replace(one.gpu, module_id=module_id))


def place(capacity: NodeCapacity, request: DeviceRequest) -> Placement | NoFit:
    return fit(capacity, request, policy=Policy.FRAGMENTATION, limits=LIMITS)


def best_score(counting: Counting, one: NodeCapacity, shape: Shape) -> int:
    """Return the result of the exact fit: each card alone for a single share, all cards together for other requests."""
    before = counting.columns.states(np.array([counting.columns.row_of[one.name]]))
    absent = [0] * (before.free.shape[1] - len(one.cards))
    single = len(shape.request.containers) == 1 and _cards(shape.request) == 1 and not any(c.sharers for c in one.cards)
    scores = []
    for cards in [(each,) for each in one.cards] if single else [one.cards]:
        placed = place(replace(one, cards=cards), shape.request)
        if isinstance(placed, Placement):
            free = [left_of(each, placed.taken.gpus.get(each.gpu.uuid)) for each in one.cards] + absent
            after = States(before.left - np.array(shape.cpu_memory)[:, None], before.kind, np.array([free]))
            scores.append(int(counting.scoring.scores(before, after, np.zeros(1, np.int64))[0]))
    return max(scores)


def _cards(requested: DeviceRequest) -> int:
    """Return the number of cards of which the first container has a share."""
    return requested.containers[0].share.cards if requested.containers[0].share else 0


def best_by_looking(counting: Counting, capacities: Capacities, shape: Shape, among: Collection[str]) -> str | None:
    ranked = []
    for one in capacities.now.values():
        placed = place(one, shape.request)
        if one.name in among and isinstance(placed, Placement):
            enough = one.cpu_milli >= shape.cpu_memory.cpu_milli and one.memory_mib >= shape.cpu_memory.memory_mib
            apart = placed.distances if enough else NEXT_TO
            ranked.append((not enough, apart, -best_score(counting, one, shape) if enough else 0, one.name))
    return min(ranked)[-1] if ranked else None


def judged(counted: Verdicts, request: DeviceRequest, *, steps: int | None = None) -> CachedVerdicts:
    """Limit how many nodes that need the exact search are judged; None: all."""
    verdicts = counted.of(request)
    exhaust(islice(verdicts.judging(), steps))
    return verdicts


def best(counted: Verdicts, shape: Shape, among: Collection[str]) -> str | None:
    judged(counted, shape.request)
    return counted.best(shape, among)


def card_of(counted: Verdicts, capacity: NodeCapacity, shape: Shape) -> str:
    """Return the card that a share gets."""
    placed = counted.place(capacity, shape)
    assert isinstance(placed, Placement)
    ((gpu,),) = (one.gpus for one in placed.containers.values())
    return gpu.bdf


names = st.sampled_from([f"n{number}" for number in range(5)])
cpu = st.sampled_from([0, 3999, 8000, 20_000, 64_000])
kinds = st.sampled_from(["put", "put_parted", "put_isolated"])
puts = st.tuples(kinds, names, st.lists(st.integers(0, len(CARDS) - 1), max_size=4).map(tuple), cpu, st.integers(0, 1))
changes = st.one_of(puts, puts, st.tuples(st.just("load"), names, cpu), st.tuples(st.just("remove"), names))
shapes = st.builds(
    lambda requested, milli: Shape(request=requested, cpu_memory=CpuMemory(milli, 1024)),
    st.sampled_from(ASKS),
    st.sampled_from([0, 4000, 16_000]),
)


@settings(max_examples=repeats(50, long=500))
@given(st.lists(st.tuples(st.lists(changes, max_size=3), shapes, st.sets(names)), max_size=10))
def test_updated_columns_equal_the_exact_search(steps: list[tuple[list[tuple[Any, ...]], Shape, set[str]]]) -> None:
    """Score with the same scoring, which reads the cluster only now and then (`Fragmentation`)."""
    capacities, cached = Capacities(), dict[DeviceRequest, ScoredVerdicts]()
    counting = Counting(capacities.followed(), partial(Fragmentation, WORKLOAD))
    for changes, shape, among in steps:
        for kind, *text in changes:
            getattr(capacities, kind)(*text)
        exact = {name: place(one, shape.request) for name, one in capacities.now.items()}
        verdicts = cached.setdefault(shape.request, ScoredVerdicts(shape.request, counting, limits=LIMITS))
        verdicts.catch_up()
        exhaust(islice(verdicts.judging(), 1))
        assert all(isinstance(exact[name], Placement) for name in verdicts.fits)
        exhaust(verdicts.judging())
        assert set(verdicts.fits) == {name for name, result in exact.items() if isinstance(result, Placement)}
        assert verdicts.reasons == {
            name: result.missing.shown if isinstance(result, NoFit) else "" for name, result in exact.items()
        }
        for names in (sorted(among), list(capacities.now)):
            assert verdicts.best(shape.cpu_memory, names) == best_by_looking(counting, capacities, shape, names)
        for one in capacities.now.values():  # the card that is remembered, and the one that is found by a look
            assert counting.with_best_card(one, shape, verdicts) == counting.with_best_card(one, shape, None)


def test_a_node_without_the_cpu_comes_last_and_is_not_refused() -> None:
    capacities = Capacities()
    capacities.put("n1", (1,), 2000, 0)
    capacities.put("n2", (0, 0, 0), 64_000, 0)
    counted, shape = capacities.verdicts(), Shape(request=ASKS[2], cpu_memory=CpuMemory(4000, 1024))
    assert [best(counted, shape, some) for some in (["n1", "n2"], ["n1"])] == ["n2", "n1"]
    assert best(counted, shape, ["nobody"]) is None


def test_a_node_with_the_gpu_and_the_vf_on_one_switch_comes_before_a_fuller_one() -> None:
    capacities = Capacities()
    capacities.put("n1", (3, 3, 0), 64_000, 1)  # the VF is on the switch of the first two cards
    capacities.put("n2", (0, 0, 0), 64_000, 1)
    shapes = {vfs: Shape(request=request(whole("c", vfs=vfs)), cpu_memory=ALL) for vfs in (0, 1)}
    assert {vfs: best(capacities.verdicts(), shape, ["n1", "n2"]) for vfs, shape in shapes.items()} == {0: "n1", 1: "n2"}


def test_a_share_is_placed_on_the_card_where_it_wastes_least() -> None:
    capacities = Capacities()
    capacities.put("n1", (0, 2, 1), 64_000, 0)  # the third card has 700 milli left: a share of 400 leaves room for one of 30 %
    counted = capacities.verdicts()
    shape = Shape(request=ASKS[2], cpu_memory=ALL)
    best(counted, shape, ["n1"])
    assert card_of(counted, capacities.now["n1"], shape) == gpu_bdf(2)
    assert card_of(counted, replace(capacities.now["n1"], name="of no ledger"), shape) == gpu_bdf(2)


def test_of_equal_cards_the_lowest_address_is_chosen() -> None:
    capacities = Capacities()
    capacities.put("n1", (3, 0, 0), 64_000, 0)
    one = capacities.now["n1"]
    turned = replace(one, cards=tuple(reversed(one.cards)))
    assert card_of(capacities.verdicts(), turned, Shape(request=ASKS[2], cpu_memory=ALL)) == gpu_bdf(1)


def test_requests_other_than_one_share_are_placed_by_the_search() -> None:
    capacities = Capacities()
    capacities.put("n1", (0, 0), 64_000, 1)
    one, counted = capacities.now["n1"], capacities.verdicts()
    for requested in (ASKS[0], ASKS[1], ASKS[4], ASKS[5]):
        assert counted.place(one, Shape(request=requested, cpu_memory=ALL)) == place(one, requested)


def test_only_changed_nodes_are_scored_again_until_the_workload_changes() -> None:
    capacities = Capacities()
    scorings: list[Tally] = []

    def new_scoring(columns: Columns) -> Scoring:
        scorings.append(Tally(Fragmentation(WORKLOAD, columns)))
        return scorings[-1]

    counting = Counting(capacities.followed(), new_scoring)
    verdicts = ScoredVerdicts(ASKS[0], counting, limits=LIMITS)

    def scored() -> int:
        scorings[-1].scored = 0
        verdicts.catch_up()
        verdicts.best(ALL, list(capacities.now))
        return scorings[-1].scored

    for number in range(20):
        capacities.put(f"n{number}", (0, 0), 64_000, 0)
    assert [scored(), scored()] == [20, 0]
    capacities.put("n7", (0,), 64_000, 0)
    capacities.load("n8", 1000)
    assert scored() == 2
    counting.renew()
    assert scored() == 20


class Tally:
    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self.scored = 0

    def scores(self, before: States, after: States, of: Ints) -> Ints:
        self.scored += len(of)
        return self._scoring.scores(before, after, of)

    def is_current(self) -> bool:
        return True
