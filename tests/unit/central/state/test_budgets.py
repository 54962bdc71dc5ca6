"""Test which pods the Eviction API lets go, as far as disruption budgets say."""

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.controllers.informer import BudgetFeed
from central.ledger.model import PodRecord
from central.state.budgets import Budget, Budgets
from lading.kube.objects import Metadata
from lading.vocabulary import PodUid
from tests.fakes.kube_objects import NAMESPACE, budget


def made(name: str, allowed: int, generation: int = 0, observed: int = 0, **labels: str) -> Budget:
    result = budget(name, labels, allowed)
    result["metadata"] |= {"uid": f"uid-{name}", "generation": generation}
    result["status"]["observedGeneration"] = observed
    return msgspec.convert(result, Budget)


def record(name: str, *, namespace: str = NAMESPACE, deleting: bool = False, **labels: str) -> PodRecord:
    return PodRecord(uid=PodUid(name), namespace=namespace, name=name, version=1, labels=labels, deleting=deleting)


@pytest.mark.parametrize(
    ("budgets", "protected"),
    [
        ([], False),
        ([made("b", 1, app="x")], False),
        ([made("b", 0, app="x")], True),
        ([made("b", 0, app="y")], False),
        ([made("b", 1, app="x"), made("c", 1, app="x")], True),  # the Eviction API does not support two budgets for one pod
        ([made("b", 1, generation=2, observed=1, app="x")], True),  # not counted yet
    ],
)
def test_budgets_protect_pods_that_they_select(budgets: list[Budget], protected: bool) -> None:
    assert bool(Budgets.of(budgets).beyond([record("p", app="x")])) is protected
    assert not Budgets.of(budgets).beyond([record("p", namespace="other", app="x")])


def test_pods_that_go_together_use_their_budget_up() -> None:
    budgets = Budgets.of([made("b", 1, app="x")])
    pods = [record("gone", deleting=True, app="x"), record("a", app="x"), record("free"), record("b", app="x")]
    assert budgets.beyond(pods) == {"b"}


def test_budgets_follow_the_watch() -> None:
    feed = BudgetFeed()
    pod = record("p", app="x")

    def protected() -> bool:
        return bool(feed.budgets().beyond([pod]))

    feed.replaced([made("b", 0, app="x")], "1")
    assert protected()
    feed.changed(made("b", 1, app="x"))
    assert not protected()
    feed.changed(made("c", 0, app="x"))
    feed.replaced([Unreadable(metadata=Metadata(name="c", namespace=NAMESPACE, uid="uid-c"), why="of another age")], "2")
    assert protected()  # the last readable version counts
    feed.removed(Ident(NAMESPACE, "c", "uid-c"), "3")
    assert not protected()
