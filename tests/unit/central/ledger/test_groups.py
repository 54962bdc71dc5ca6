"""Test where affinity groups are, as pods are created, end and move."""

from central.assignment.model import Part, Taken
from central.assignment.sharing import AffinityGroup
from central.ledger.groups import CardOf, Groups
from central.request.model import Sharing
from tests.fakes.capacities import gpu_uuid
from tests.unit.central.ledger.facts import share, taken, uid

X = AffinityGroup("team", "x")
P, Q = uid("p"), uid("q")


def of_x(*cards: int) -> Taken:
    return taken({card: Part(10, sharing=(Sharing(namespace="team", affinity="x"),)) for card in cards})


def on(node: str, card: int) -> CardOf:
    return CardOf(node, gpu_uuid(card))


def test_a_group_is_where_its_pods_are() -> None:
    groups = Groups()
    assert groups.cards(X) == frozenset()
    groups.move(P, "n1", None, of_x(0))
    groups.move(Q, "n1", None, of_x(0))
    groups.move(uid("other"), "n2", None, share(3, 10))
    assert groups.cards(X) == {on("n1", 0)}
    assert groups.members(X, on("n1", 0)) == {P, Q}
    assert groups.cards(X, [P]) == {on("n1", 0)}
    assert groups.cards(X, [P, Q]) == frozenset()


def test_a_group_has_moved_when_none_of_its_pods_is_on_its_card() -> None:
    groups = Groups()
    groups.move(P, "n1", None, of_x(0))
    groups.move(Q, "n1", None, of_x(0))
    groups.move(P, "n1", of_x(0), None)
    assert groups.take_moved() == frozenset()
    groups.move(Q, "n1", of_x(0), of_x(1))
    assert groups.cards(X) == {on("n1", 1)}
    assert groups.take_moved() == {X}
    groups.move(Q, "n1", of_x(1), share(1, 10))
    assert groups.cards(X) == frozenset()
    assert [groups.take_moved(), groups.take_moved()] == [frozenset({X}), frozenset()]
    assert groups.all() == {}


def test_a_pod_that_holds_the_same_on_two_nodes_is_on_both() -> None:
    groups = Groups()
    groups.move(P, "n1", None, of_x(0))
    groups.move(P, "n2", None, of_x(0))
    groups.move(P, "n1", of_x(0), None)
    assert groups.cards(X) == {on("n2", 0)}
