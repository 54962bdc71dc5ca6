"""Test which pods would have to end for a pod that waits: the fewest, and never too few."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from central.search.placement import Placement
from central.view.helps import MOST_SETS, NodeHelp, find_helps, smallest_sets
from lading.vocabulary import PodUid
from tests.fakes.kube_objects import WHOLE, grant, share, vfs
from tests.unit.central.world import World, uid_of


def helps(made: World, limits: dict[str, str], *names: str) -> list[NodeHelp]:
    made.show("waits", limits)
    return list(find_helps(made.scheduler, made.pending_pod("waits"), names or made.ledger.nodes()))


def sets(help_on: NodeHelp) -> list[list[str]]:
    some = [*combinations(help_on.any_of, help_on.together)] if help_on.any_of else help_on.sets
    return [[one.pod for one in deleted] for deleted in some]


def test_a_set_has_no_more_pods_than_needed() -> None:
    made = World.of(n1=2)
    made.bind("a", "n1", share("50Gi"))
    made.bind("b", "n1", share("60Gi"))
    (on,) = helps(made, WHOLE)
    assert sets(on) == [["a"], ["b"]]


def test_all_pairs_that_are_enough_and_no_one_who_is_not_needed() -> None:
    made = World.of(n1=3)
    for name in ("a", "b", "c"):
        made.bind(name, "n1")
    (on,) = helps(made, {"lading.dev/gpu": "2"})
    assert sorted(map(sorted, sets(on))) == [["a", "b"], ["a", "c"], ["b", "c"]]


def test_pods_that_are_being_deleted_come_first_and_then_the_lowest_priority() -> None:
    made = World.of(n1=3)
    made.bind("a", "n1", priority=5)
    made.bind("b", "n1", priority=3)
    made.bind("c", "n1", priority=9)
    made.pods["c"]["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    made.show("c", node="n1", deleting=True, priority=9, annotations=made.pods["c"]["metadata"]["annotations"])
    (on,) = helps(made, WHOLE)
    assert sets(on) == [["c"], ["b"], ["a"]]
    assert [one.deleting for one in on.any_of] == [True, False, False]


def test_nodes_that_lack_less_come_first_and_those_where_it_fits_are_passed_over() -> None:
    made = World()
    for name, held in (("far", 3), ("fits", 0), ("near", 1)):
        made.node(name, 3)
        for number in range(held):
            made.bind(f"{name}-{number}", name)
    assert [on.node for on in helps(made, {"lading.dev/gpu": "3"})] == ["near", "far"]


def test_where_no_one_can_help() -> None:
    made = World.of(small=1)
    made.bind("a", "small")
    assert helps(made, {"lading.dev/gpu": "2"}) == [NodeHelp(node="small")]


def test_a_pod_that_does_not_end_is_in_no_set() -> None:
    made = World.of(n1=2, n2=1)
    for name, node in (("stays", "n1"), ("ends", "n1"), ("alone", "n2")):
        made.bind(name, node)
    made.show("waits")
    stay = {uid_of("stays"), uid_of("alone")}
    first, second = find_helps(made.scheduler, made.pending_pod("waits"), ["n1", "n2"], stay=stay)
    assert (sets(first), first.stay) == ([["ends"]], ())
    assert (second.together, [one.pod for one in second.stay]) == (0, ["alone"])


def test_a_pod_that_does_not_end_is_named_only_if_its_end_would_help() -> None:
    made = World.of(n1=2)
    made.bind("stays", "n1")
    made.show("waits", {"lading.dev/gpu": "3"})
    (on,) = find_helps(made.scheduler, made.pending_pod("waits"), ["n1"], stay={uid_of("stays")})
    assert on == NodeHelp(node="n1")


def test_a_holder_with_a_grant_alone_is_in_a_set() -> None:
    made = World()
    made.node("n1", 1, grants=[grant("uid-x", "n1", 0)])
    (on,) = helps(made, WHOLE)
    assert [(one.uid, one.pod) for deleted in on.sets for one in deleted] == [("uid-x", "")]


def test_any_of_those_who_are_alike() -> None:
    made = World()
    made.node("n1", 0, 20)
    for number in range(20):
        made.bind(f"p{number}", "n1", vfs(1))
    (on,) = helps(made, vfs(2))
    assert (on.together, len(on.any_of), on.sets) == (2, 20, ())


def test_no_more_sets_are_reported_than_a_person_reads() -> None:
    """Check that both pods of each card have to end."""
    made = World.of(n1=8)
    for number in range(16):
        made.bind(f"p{number}", "n1", share("35Gi"))
    (on,) = helps(made, WHOLE)
    assert (on.together, len(on.sets), on.more) == (2, MOST_SETS, 8 - MOST_SETS)


def test_beyond_the_tries_one_set_of_which_no_one_can_stay() -> None:
    pods = [PodUid(f"p{number}") for number in range(12)]
    (deleted,) = smallest_sets(pods, lambda some: len(set(some)) >= 7, tries=10)
    assert len(deleted) == 7


@settings(max_examples=40, deadline=None)
@given(
    held=st.lists(st.sampled_from([WHOLE, share("30Gi"), share("20Gi", 60), vfs(1), WHOLE | vfs(1)]), max_size=6),
    requested=st.sampled_from([{"lading.dev/gpu": "2"}, share("70Gi"), WHOLE | vfs(2), vfs(2)]),
)
def test_the_smallest_of_all_sets(held: list[dict[str, str]], requested: dict[str, str]) -> None:
    made = World()
    made.node("n1", 2, 2)
    for number, limits in enumerate(held):
        made.show(f"p{number}", limits)
        if made.filter(f"p{number}", "n1").fitting:
            made.bind(f"p{number}", "n1", limits)
        else:
            made.deleted(f"p{number}")
    made.show("waits", requested)
    pod = made.pending_pod("waits")
    there = [record.uid for record in made.ledger.bound_on("n1")]

    def fits(*deleted: PodUid) -> bool:
        return isinstance(made.scheduler.verdict(pod.request, "n1", made.ledger.without(pod.uid, *deleted)), Placement)

    enough = ([deleted for deleted in combinations(there, size) if fits(*deleted)] for size in range(len(there) + 1))
    smallest = next(filter(None, enough), [])
    result = list(find_helps(made.scheduler, pod, ["n1"]))
    if smallest == [()]:
        assert result == []
        return
    ((on),) = result
    listed = {frozenset(map(uid_of, deleted)) for deleted in sets(on)}
    assert on.more + len(listed) == len(smallest)
    assert listed <= {frozenset(deleted) for deleted in smallest}
    assert all(len(deleted) == on.together for deleted in listed)
