"""Test what is left of cpu and memory on nodes, kept as sums that are always those of the pods."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.ledger.ledger import Ledger
from central.ledger.load import UNKNOWN, Left, Loads
from central.ledger.model import Claim, NodeFacts, PodLoad
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.vocabulary import PodUid
from tests.unit.central.ledger.facts import grant, pod, report, share, uid, whole

NODE = CpuMemory(64_000, 256_000)
ONE, TWO = CpuMemory(1000, 2048), CpuMemory(2000, 4096)


def reachable() -> Ledger:
    """Create a ledger with a reachable node n1."""
    books = Ledger()
    books.facts.set_node("n1", NodeFacts(ready=True, allocatable=NODE), 1)
    books.facts.set_report(report("n1"))
    return books


@pytest.fixture
def books() -> Ledger:
    return reachable()


def left(books: Ledger, name: str = "n1") -> tuple[int, int]:
    capacity = books.capacity(name)
    assert capacity.resources_reported
    return NODE.cpu_milli - capacity.cpu_milli, NODE.memory_mib - capacity.memory_mib


def test_pods_with_and_without_devices_count(books: Ledger) -> None:
    books.facts.set_load(PodLoad(PodUid("other"), "n1", ONE))
    books.facts.set_pod(pod("a", node="n1", takes=whole(0), cpu_memory=TWO))
    assert left(books) == (3000, 6144)
    books.facts.set_load(PodLoad(PodUid("other"), "", ONE))
    books.facts.remove_pod(uid("a"))
    assert left(books) == (0, 0)


def test_a_pod_that_has_ended_counts_no_more(books: Ledger) -> None:
    books.facts.set_pod(pod("a", 1, node="n1", takes=whole(0), cpu_memory=TWO))
    books.facts.set_pod(pod("a", 2, node="n1", takes=whole(0), cpu_memory=TWO, terminal=True))
    assert left(books) == (0, 0)


def test_cpu_and_memory_of_a_planned_pod_count_once(books: Ledger) -> None:
    books.claims.predict(uid("a"), "n1", whole(0), until=10, cpu_memory=TWO)
    assert left(books) == (2000, 4096)
    books.claims.reserve(uid("a"), "n1", whole(0), 1, cpu_memory=TWO)
    assert left(books) == (2000, 4096)
    books.facts.set_pod(pod("a", 1, node="n1", takes=whole(0), cpu_memory=TWO))
    assert left(books) == (2000, 4096)
    assert books.own_claim(uid("a"), Claim.RESERVED) is None


def test_a_plan_that_ends_gives_back(books: Ledger) -> None:
    books.claims.predict(uid("a"), "n1", whole(0), until=10, cpu_memory=TWO)
    books.expire(11)
    assert left(books) == (0, 0)
    books.claims.reserve(uid("a"), "n1", whole(0), 1, cpu_memory=TWO)
    books.claims.release(uid("a"))
    assert left(books) == (0, 0)


def predicted(name: str = "p", *, until: float = 10) -> Ledger:
    """Create a ledger with a prediction on n1 for a pod without devices."""
    books = reachable()
    books.claims.predict_load(PodLoad(PodUid(name), "n1", ONE), until)
    assert left(books) == ONE
    return books


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_pod_without_devices_counts_once_where_it_is_bound(node: str) -> None:
    books = predicted()
    books.facts.set_load(PodLoad(PodUid("p"), "", NO_CPU_MEMORY))  # the watch is late: it waits
    assert left(books) == ONE
    books.facts.set_load(PodLoad(PodUid("p"), node, ONE))
    assert left(books) == (ONE if node == "n1" else NO_CPU_MEMORY)
    books.facts.set_load(PodLoad(PodUid("p"), "", NO_CPU_MEMORY))
    assert left(books) == NO_CPU_MEMORY


def test_a_deleted_pod_without_devices_leaves_no_load() -> None:
    books = predicted()
    books.facts.remove_pod(PodUid("p"))
    assert left(books) == NO_CPU_MEMORY
    books.claims.predict_load(PodLoad(PodUid("p"), "n1", ONE), 10)  # kube-scheduler has not heard of it
    assert left(books) == NO_CPU_MEMORY


def test_a_prediction_without_devices_ends_in_time() -> None:
    books = predicted(until=10)
    books.expire(9.9)
    assert left(books) == ONE
    books.expire(10)
    assert left(books) == NO_CPU_MEMORY


def test_a_pod_without_devices_is_predicted_in_one_place() -> None:
    books = predicted()
    books.claims.predict_load(PodLoad(PodUid("p"), "n2", ONE), 10)
    assert left(books) == NO_CPU_MEMORY
    books.facts.set_load(PodLoad(PodUid("p"), "n2", ONE))
    books.claims.predict_load(PodLoad(PodUid("p"), "n1", ONE), 10)  # asked about too late
    assert left(books) == NO_CPU_MEMORY


def test_without_its_own_claims_a_pod_sees_what_it_would_have(books: Ledger) -> None:
    books.facts.set_load(PodLoad(PodUid("other"), "n1", ONE))
    books.claims.predict(uid("a"), "n1", whole(0), until=10, cpu_memory=TWO)
    capacity = books.without(uid("a")).capacity("n1")
    assert (capacity.cpu_milli, capacity.memory_mib) == (63_000, 253_952)


def test_a_change_of_load_is_none_of_devices(books: Ledger) -> None:
    books.facts.set_pod(pod("a", 1, node="n1", takes=share(0, 100), cpu_memory=ONE))
    version, capacity = books.version, books.capacity("n1")
    _, loads = books.loads_changed_since(-1)
    books.facts.set_load(PodLoad(PodUid("other"), "n1", ONE))
    assert books.version == version
    assert books.capacity("n1").version == capacity.version
    assert books.capacity("n1").cards is capacity.cards
    assert books.capacities_changed_since(version) == ([], version)
    assert books.loads_changed_since(loads)[0] == [("n1", 62_000, 256_000 - 4096, True)]


def test_more_than_there_is_leaves_nothing(books: Ledger) -> None:
    books.facts.set_load(PodLoad(PodUid("other"), "n1", CpuMemory(70_000, 1)))
    capacity = books.capacity("n1")
    assert (capacity.cpu_milli, capacity.memory_mib, capacity.resources_reported) == (0, 255_999, True)


def test_cpu_and_memory_that_a_node_does_not_report_are_unknown() -> None:
    books = Ledger()
    books.facts.set_report(report("n1"))
    assert not books.capacity("n1").resources_reported
    books.facts.set_node("n1", NodeFacts(allocatable=NODE), 5)
    books.facts.set_node("n1", NodeFacts(allocatable=ONE), 4)  # late
    assert left(books) == (0, 0)
    books.facts.set_node("n1", NodeFacts(), 6)
    assert not books.capacity("n1").resources_reported


def test_a_list_takes_away_what_is_not_in_it(books: Ledger) -> None:
    books.facts.set_load(PodLoad(PodUid("gone"), "n1", ONE))
    books.facts.set_load(PodLoad(PodUid("stays"), "n1", TWO))
    books.facts.set_pod(pod("a", 9, node="n1", takes=whole(0), cpu_memory=ONE))  # newer than the list
    books.facts.replace_pods([], 5, loads=[PodLoad(PodUid("stays"), "n1", ONE)])
    assert left(books) == (2000, 4096)
    books.facts.replace_nodes({}, 9)
    assert not books.capacity("n1").resources_reported


def test_a_grant_alone_has_no_requests(books: Ledger) -> None:
    books.facts.set_report(report("n1", 2, grants=[grant("a")]))
    assert left(books) == (0, 0)


uids, nodes = st.sampled_from([PodUid(name) for name in "abc"]), st.sampled_from(["n1", "n2"])
amounts = st.builds(CpuMemory, st.integers(0, 5), st.integers(0, 5))
steps = st.one_of(
    st.tuples(st.just("bind"), uids, nodes | st.just(""), amounts), st.tuples(st.just("plan"), uids, nodes, amounts | st.none())
)


@given(st.lists(steps, max_size=30))
def test_sums_are_those_of_the_pods(said: list[tuple[str, PodUid, str, CpuMemory | None]]) -> None:
    loads = Loads()
    for name in ("n1", "n2"):
        loads.offer(name, CpuMemory(1000, 1000))
    bound: dict[PodUid, tuple[str, CpuMemory]] = {}
    planned: dict[tuple[PodUid, str], CpuMemory] = {}
    version = -1
    for kind, of, node, requests in said:
        before = {name: loads.left(name) for name in ("n1", "n2")}
        version = loads.changes.version
        if kind == "bind" and requests is not None:
            loads.bind(of, node, requests)
            bound.pop(of, None)
            bound |= {of: (node, requests)} if node else {}
        elif kind == "plan":
            loads.plan(of, node, requests)
            planned.pop((of, node), None)
            planned |= {(of, node): requests} if requests is not None else {}
        for name in ("n1", "n2"):
            counted = {of: amount for (of, at), amount in planned.items() if at == name}
            counted |= {of: amount for of, (at, amount) in bound.items() if at == name}
            cpu, memory = (sum(amount[part] for amount in counted.values()) for part in (0, 1))
            assert loads.left(name) == Left(1000 - cpu, 1000 - memory, True)
            assert (name in loads.changes.since(version)) == (loads.left(name) != before[name])
    assert loads.left("n3") == UNKNOWN


few, moments = st.sampled_from([PodUid("a"), PodUid("b")]), st.integers(1, 6)
happenings = st.one_of(
    st.tuples(st.just("predict"), few, nodes, amounts, moments),
    st.tuples(st.just("show"), few, nodes | st.just(""), amounts, st.just(0)),
    st.tuples(st.sampled_from(["gone", "ask again"]), few, st.just(""), st.just(NO_CPU_MEMORY), st.just(0)),
    st.tuples(st.just("wait"), st.just(PodUid("")), st.just(""), st.just(NO_CPU_MEMORY), moments),
)


@given(st.lists(happenings, min_size=10, max_size=30))
def test_a_prediction_without_devices_counts_until_the_pod_is_bound_deleted_or_its_time_is_over(
    happened: list[tuple[str, PodUid, str, CpuMemory, int]],
) -> None:
    books, now = Ledger(), 0
    expected: dict[PodUid, tuple[str, CpuMemory, int]] = {}
    bound: dict[PodUid, tuple[str, CpuMemory]] = {}
    deleted: set[PodUid] = set()
    for what, of, node, requests, seconds in happened:
        if what == "predict":
            books.claims.predict_load(PodLoad(of, node, requests), now + seconds)
            if of not in bound and of not in deleted:
                expected[of] = node, requests, now + seconds
        elif what == "show" and of not in deleted:  # the watch shows nothing more of a pod that is gone
            books.facts.set_load(PodLoad(of, node, requests))
            bound.pop(of, None)
            bound |= {of: (node, requests)} if node else {}
        elif what == "gone":
            books.facts.remove_pod(of)
            deleted.add(of)
            bound.pop(of, None)
        elif what == "ask again":
            books.claims.forget_prediction(of)
            expected.pop(of, None)
        elif what == "wait":
            now += seconds
            books.expire(now)
        expected = {of: one for of, one in expected.items() if of not in bound and of not in deleted and one[2] > now}
        counted = [*bound.values(), *(one[:2] for one in expected.values())]
        assert requested(books) == added_up(counted)
    books.expire(math.inf)
    assert requested(books) == added_up(bound.values())


def requested(books: Ledger) -> dict[str, CpuMemory]:
    return dict(books.snapshot().requested)


def added_up(counted: Iterable[tuple[str, CpuMemory]]) -> dict[str, CpuMemory]:
    """Return the sums by node, without nodes whose sum is zero."""
    sums: dict[str, CpuMemory] = {}
    for node, (cpu_milli, memory_mib) in counted:
        had = sums.get(node, NO_CPU_MEMORY)
        sums[node] = CpuMemory(had.cpu_milli + cpu_milli, had.memory_mib + memory_mib)
    return {node: total for node, total in sums.items() if total != NO_CPU_MEMORY}
