"""Test reservations for pods that do not exist yet: which pod gets them, and when they end."""

from dataclasses import dataclass, field

from central.gang.workload_places import HELD_S, WorkloadPlaces, place_uid
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Holder, OwnClaim
from central.request.model import CpuMemory
from lading.vocabulary import PodUid
from tests.unit.central.ledger.facts import gpu, ledger_of, pod, report, uid, whole

TRAIN = "uid-train"
NEEDS = CpuMemory(1000, 64)


@dataclass
class Reserved:
    """Represent a node with four cards, some of which are reserved for the pods of a Workload."""

    ledger: Ledger = field(default_factory=lambda: ledger_of(report(gpus=map(gpu, range(4)))))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.places = WorkloadPlaces(self.ledger, clock=lambda: self.now)

    def hold(self, *cards: int) -> bool:
        """Hold a card with one pod each."""
        claims = [
            OwnClaim(holder=Holder(pod=place_uid(TRAIN, "worker", n)), node="n1", taken=whole(card), cpu_memory=NEEDS)
            for n, card in enumerate(cards)
        ]
        return self.places.hold(TRAIN, Holder(pod=PodUid(TRAIN), namespace="default"), {"worker": claims}) is None

    def give(self, name: str, mark: str = f"{TRAIN}/worker", *, namespace: str = "default", bound: bool = False) -> None:
        self.places.give(Holder(pod=uid(name), namespace=namespace, name=name), mark, bound=bound)

    def nominated(self, name: str) -> OwnClaim | None:
        return self.ledger.own_claim(uid(name), Claim.NOMINATED)

    @property
    def free(self) -> int:
        return sum(card.free for card in self.ledger.capacity("n1").cards)


def test_a_pod_gets_one_place_of_its_pod_set_with_cpu_and_memory_however_often_it_changes() -> None:
    places = Reserved()
    assert places.hold(0, 1)
    for _ in range(3):
        places.give("a")
    result = places.nominated("a")
    assert result is not None
    assert (result.taken, result.cpu_memory, result.until) == (whole(0), NEEDS, HELD_S)
    assert places.free == 2
    places.give("b")
    places.give("c")
    assert (places.nominated("b") is not None, places.nominated("c")) == (True, None)


def test_pods_of_other_namespaces_workloads_and_sets_get_nothing() -> None:
    places = Reserved()
    places.hold(0)
    places.give("a", namespace="other")
    for mark in ("", "/", TRAIN, f"{TRAIN}/", f"{TRAIN}/ps", "uid-other/worker", "x" * 100_000):
        places.give("a", mark)
    assert (places.nominated("a"), places.free) == (None, 3)


def test_a_pod_that_is_bound_already_leaves_its_place_to_others() -> None:
    places = Reserved()
    places.hold(0, 1)
    places.give("a", bound=True)
    assert (places.nominated("a"), places.free) == (None, 3)


def test_a_plan_that_is_not_free_holds_nothing() -> None:
    places = Reserved()
    places.ledger.facts.set_pod(pod("other", node="n1", takes=whole(1)))
    assert not places.hold(0, 1)
    assert (places.free, places.places.workloads()) == (3, set())


def test_places_end_after_a_time_which_the_admission_begins_anew_once() -> None:
    places = Reserved()
    places.hold(0, 1)
    places.give("a")
    places.now = HELD_S - 1
    places.places.admit(TRAIN)
    places.now = 2 * HELD_S - 2
    places.places.admit(TRAIN)
    places.places.expire()
    assert places.free == 2
    places.now = 2 * HELD_S
    places.places.expire()
    assert (places.free, TRAIN in places.places, places.nominated("a") is not None) == (3, False, True)
