"""Test moves that free devices: each pod has a place while all others have theirs, and none is moved without need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from central.request.model import DeviceRequest
from central.request.parse import parse_request
from central.search.placement import Placement
from central.state.pending import Pending, pending_of
from central.view.moves import Opening, plan_openings
from lading.vocabulary import PodUid
from tests.fakes.ended import end_pod
from tests.fakes.kube_objects import WHOLE, decoded, share, vfs
from tests.unit.central.world import World, uid_of

TWO = {"lading.dev/gpu": "2"}


def movable(made: World, *, but: str = "") -> dict[PodUid, Pending]:
    result = {}
    for name, shown in made.pods.items():
        ask = parse_request(decoded(shown))
        if shown["spec"].get("nodeName") and name != but and isinstance(ask, DeviceRequest):
            result[uid_of(name)] = pending_of(decoded(shown), ask)
    return result


def plan(made: World, *names: str, but: str = "", tries: int = 20_000) -> list[Opening]:
    waiting = [made.pending_pod(name) for name in names]
    return [one for one in plan_openings(made.scheduler, waiting, movable(made, but=but), tries=tries) if one is not None]


def said(opening: Opening) -> tuple[str, list[tuple[str, str]]]:
    """Return where the pod would be, and which pods would be moved where."""
    return opening.to.node if opening.to else "", [(move.pod.name, move.to.node) for move in opening.moves]


def halves(**options: str) -> World:
    """Create two nodes of two cards, one of which is held on each."""
    made = World()
    for node, name in (("n1", "a"), ("n2", "b")):
        made.node(node, 2)
        made.bind(name, node)
    made.show("waits", TWO, **options)
    return made


def test_a_pod_moves_to_a_free_card_and_the_waiting_pod_takes_its_place() -> None:
    (opening,) = plan(halves(), "waits")
    assert said(opening) == ("n1", [("a", "n2")])


def test_no_pod_moves_for_a_pod_that_fits_already() -> None:
    made = halves()
    made.node("n3", 2)
    (opening,) = plan(made, "waits")
    assert said(opening) == ("n3", [])


def test_a_share_moves_to_another_card_of_its_own_node() -> None:
    made = World.of(n1=2)
    for name, memory in (("a", "15Gi"), ("b", "70Gi"), ("d", "10Gi"), ("c", "8Gi")):
        made.bind(name, "n1", share(memory))
    for name in ("a", "d"):
        made.deleted(name)
    made.show("waits", WHOLE)
    assert [said(one) for one in plan(made, "waits")] == [("n1", [("c", "n1")])]


def test_the_least_important_of_several() -> None:
    made = World()
    for node, priority in (("n1", 5), ("n2", 3), ("n3", 9)):
        made.node(node, 2)
        made.bind(f"on-{node}", node, priority=priority)
    made.show("waits", TWO)
    (opening,) = plan(made, "waits")
    assert [move.pod.name for move in opening.moves] == ["on-n2"]


def test_a_pod_that_may_not_move_stays() -> None:
    assert [said(one) for one in plan(halves(), "waits", but="a")] == [("n2", [("b", "n1")])]


def test_members_of_an_affinity_group_stay() -> None:
    made = World()
    for node, name in (("n1", "a"), ("n2", "b")):
        made.node(node, 2)
        made.bind(name, node, share("60Gi"))
    made.show("waits", TWO)
    assert said(plan(made, "waits")[0])[0]
    for name in ("a", "b"):
        made.pods[name]["metadata"]["annotations"]["lading.dev/share-affinity"] = "x"
    assert [said(one) for one in plan(made, "waits")] == [("", [])]


def test_where_no_one_has_another_place_no_one_is_moved() -> None:
    made = halves()
    made.bind("c", "n1")
    made.bind("d", "n2")
    (opening,) = plan(made, "waits")
    assert said(opening) == ("", [])
    assert not opening.ended


def test_plans_hold_at_the_same_time() -> None:
    """Check that the only free card elsewhere is not used for two plans."""
    made = World.of(n1=2, n2=2, n3=2)
    for node in ("n1", "n2", "n3"):
        made.bind(f"on-{node}", node)
    made.show("first", TWO, created="2026-11-21T00:00:00Z")
    made.show("second", TWO, created="2026-11-21T00:00:01Z")
    first, second = plan(made, "second", "first")
    assert (first.pod.name, second.pod.name) == ("first", "second")
    assert len(first.moves) == 1
    assert said(second) == ("", [])


def test_a_pod_that_ends_already_is_taken_for_deleted() -> None:
    made = halves()
    annotations = made.pods["a"]["metadata"]["annotations"]
    made.show("a", node="n1", deleting=True, annotations=annotations)
    assert [said(one) for one in plan(made, "waits")] == [("n1", [])]


def test_a_node_without_the_cpu_is_no_place() -> None:
    made = World()
    for node, name, cpu in (("n1", "a", "4"), ("n2", "b", "1")):
        made.node(node, 2)
        made.bind(name, node, requests={"cpu": cpu, "memory": "1Gi"})
    made.readiness("n1", True, allocatable={"cpu": "8", "memory": "8Gi"})
    made.readiness("n2", True, allocatable={"cpu": "3", "memory": "8Gi"})
    made.show("waits", TWO)
    assert [said(one) for one in plan(made, "waits")] == [("n2", [("b", "n1")])]


def test_where_the_tries_end_that_is_reported() -> None:
    made = halves()
    (opening,) = plan(made, "waits", tries=0)
    assert opening.to is None
    assert opening.ended


_LIMITS = st.sampled_from([WHOLE, TWO, share("50Gi"), share("30Gi", 40), share("10Gi"), WHOLE | vfs(1), vfs(1)])


@settings(max_examples=60, deadline=None)
@given(
    bound=st.lists(st.tuples(_LIMITS, st.sampled_from(["n1", "n2", "n3"])), max_size=9),
    requested=st.lists(st.sampled_from([TWO, WHOLE, share("70Gi"), WHOLE | vfs(2)]), min_size=1, max_size=3),
)
def test_carried_out_nothing_is_given_twice(bound: list[tuple[dict[str, str], str]], requested: list[dict[str, str]]) -> None:
    """Carry out all plans in another ledger, which has only the pods that stay."""
    made = World()
    for node in ("n1", "n2", "n3"):
        made.node(node, 2, 2)
    for number, (limits, node) in enumerate(bound):
        made.show(f"p{number}", limits)
        if made.filter(f"p{number}", node).fitting:
            made.bind(f"p{number}", node, limits, priority=number % 3)
        else:
            made.deleted(f"p{number}")
    for number, limits in enumerate(requested):
        made.show(f"w{number}", limits, created=f"2026-11-21T00:00:0{number}Z")
    openings = plan(made, *(f"w{number}" for number in range(len(requested))))
    assert [one.pod.name for one in openings] == [f"w{number}" for number in range(len(requested))]
    singles = {one.pod.uid: _single_moves(made, one.pod) for one in openings[:1]}
    moved = [move.record.uid for one in openings for move in one.moves]
    assert len(moved) == len(set(moved))
    for uid in moved:
        end_pod(made.ledger, uid)
    for opening in openings:
        puts = [opening.to, *(move.to for move in opening.moves)]
        for number, put in enumerate(puts):
            if put is not None:
                fresh = PodUid(f"new-{opening.pod.uid}-{number}")
                assert made.ledger.claims.reserve(fresh, put.node, put.hold.taken, 1) is None
    first = openings[0]
    if len(first.moves) > 1 or first.to is None:
        assert not singles[first.pod.uid]


def _single_moves(made: World, pod: Pending) -> list[PodUid]:
    """Return the pods whose move alone lets the first waiting pod start, by trying each one."""
    result = []
    for uid, one in movable(made).items():
        record = made.ledger.pod(uid)
        assert record is not None
        opens = isinstance(made.scheduler.verdict(pod.request, record.node, made.ledger.without(pod.uid, uid)), Placement)
        others = [name for name in made.ledger.nodes() if name != record.node]
        if opens and any(
            isinstance(made.scheduler.verdict(one.request, name, made.ledger.without()), Placement) for name in others
        ):
            result.append(uid)
    return result


def test_no_pod_goes_where_it_may_not() -> None:
    made = halves()
    waiting, rules = [made.pending_pod("waits")], movable(made)
    result = [one for one in plan_openings(made.scheduler, waiting, rules, allows=lambda pod, node: node == "n1") if one]
    assert [said(one) for one in result] == [("", [])]
