import pytest

from central.assignment.model import Part, Taken
from central.ledger.parts import containers_on_cards, covers, covers_part, largest, merge, taken_by_grants
from central.request.model import Sharing
from lading.nodedevices import GrantedGpu
from tests.fakes.capacities import gpu_uuid, vf_bdf
from tests.unit.central.ledger.facts import WHOLE, grant, granted, share, taken, whole

X, Y = (Sharing(namespace="team", exclusion=label) for label in "xy")
A_MIG, B_MIG = Part(mig=frozenset({"a"})), Part(mig=frozenset({"b"}))


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (Part(10, 20), Part(20, 10), Part(20, 20)),
        (Part(10, 20), Part(5, 20), Part(10, 20)),
        (WHOLE, Part(10, 20), WHOLE),
        (Part(10, 20), WHOLE, WHOLE),
        (A_MIG, B_MIG, Part(mig=frozenset({"a", "b"}))),
        (WHOLE, A_MIG, WHOLE),
        (Part(10, sharing=(X,)), Part(20), Part(20, sharing=(X,))),
        (Part(10, sharing=(Y,)), Part(10, sharing=(X,)), Part(10, sharing=(X, Y))),
        (Part(10, sharing=(X,)), WHOLE, Part(whole=True, sharing=(X,))),
        (Part(10, isolation=("a",)), Part(20), Part(20, isolation=("a",))),
        (Part(10, isolation=("b",)), Part(10, isolation=("a",)), Part(10, isolation=("a", "b"))),
    ],
)
def test_of_two_claims_on_one_card_the_largest_amounts_count(a: Part, b: Part, both: Part) -> None:
    assert largest(a, b) == both
    assert covers_part(both, a)
    assert covers_part(both, b)


def test_claims_on_different_devices_are_joined() -> None:
    assert merge([taken({0: Part(10, 0)}, vfs=[0]), taken({1: WHOLE}, vfs=[1])]) == taken(
        {0: Part(10, 0), 1: WHOLE}, vfs=[0, 1]
    )


def test_a_part_that_covers_all_others_stays_the_same_object() -> None:
    large, small = share(0, 10, 10), share(0, 10)
    assert merge([large, small]) is large


@pytest.mark.parametrize("less", [share(0, 9, 10), share(0, 10, 9), taken(vfs=[0]), taken({0: Part(10, 10)}, vfs=[0]), Taken()])
def test_less_does_not_cover_more(less: Taken) -> None:
    more = taken({0: Part(10, 10, sharing=(X,))}, vfs=[0])
    assert covers(more, less)
    assert not covers(less, more)


@pytest.mark.parametrize(
    ("of_container", "expected"),
    [
        ([granted(0, 100, 10), granted(0, 100, 10)], Part(200, 20)),  # each counts, though they are equal
        ([granted(0, 100, pod_wide=True), granted(0, 100, pod_wide=True)], Part(100)),
        ([granted(0, 100, pod_wide=True), granted(0, 100)], Part(200)),
        ([granted(0, 80, 10, pod_memory_mib=80), granted(0, 50, 10, pod_memory_mib=80)], Part(80, 20)),
        ([granted(0), granted(0)], WHOLE),
        ([granted(0, mig="a"), granted(0, mig="b")], Part(mig=frozenset({"a", "b"}))),
    ],
)
def test_grants_of_a_pods_containers_count_as_the_node_counts_them(of_container: list[GrantedGpu], expected: Part) -> None:
    grants = [grant("p", f"c{number}", gpu) for number, gpu in enumerate(of_container)]
    assert taken_by_grants(grants) == taken({0: expected})


def test_grants_name_their_vfs_and_count_containers_by_card() -> None:
    grants = [grant("p", "a", granted(0), granted(1), vfs=[0]), grant("p", "b", granted(1), vfs=[0, 1])]
    assert taken_by_grants(grants).vfs == {vf_bdf(0), vf_bdf(1)}
    assert containers_on_cards(grants) == {gpu_uuid(0): 1, gpu_uuid(1): 2}
    assert taken_by_grants(grants).gpus == whole(0, 1).gpus
