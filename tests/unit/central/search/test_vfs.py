from collections.abc import Sequence

from msgspec import structs

from central.ledger.model import NodeCapacity
from central.request.model import DeviceRequest, Policy, RdmaPolicy, Role
from central.search.fit import fit
from central.search.placement import Placement
from lading.nodedevices import Place
from lading.vocabulary import PciAddress
from tests.fakes.capacities import capacity, card, eight_gpus, pf_bdf, port, rdma, request, vf, vf_bdf, whole


def given(where: NodeCapacity, pod: DeviceRequest, container: str = "a") -> Sequence[PciAddress]:
    result = fit(where, pod, policy=Policy.BINPACK)
    assert isinstance(result, Placement)
    assert result.taken.vfs == {one.bdf for placed in result.containers.values() for one in placed.vfs}
    return [one.bdf for one in result.containers[container].vfs]


def test_the_vf_with_the_lowest_free_address_is_taken() -> None:
    where = capacity(vfs=[vf(3), vf(1, held=True), vf(2, usable=False)])
    assert given(where, request(rdma("a"))) == [vf_bdf(3)]


def test_a_vf_of_the_cards_switch_is_preferred() -> None:
    where = eight_gpus(held_cards={0, 1, 2, 3})  # the first free card is card 4, on the switch of PF 2
    assert given(where, request(whole("a", vfs=1))) == [vf_bdf(0, pf=2)]


def test_then_a_vf_of_the_cards_numa_node_is_preferred() -> None:
    """Check a VF of the same NUMA node below another host bridge."""
    where = eight_gpus(held_cards={0, 1, 2, 3}, held_vfs={8, 9, 10, 11})  # PF 2 has none left, PF 3 is beside it
    assert given(where, request(whole("a", vfs=1))) == [vf_bdf(0, pf=3)]
    elsewhere = structs.replace(port(1), place=Place(path=("pci0000:7f",), numa=0))
    assert given(capacity(card(0), vfs=[vf(0, pf=port(0, switch=3)), vf(0, pf=elsewhere)]), request(whole("a", vfs=1))) == [
        vf_bdf(0, pf=1)
    ]


def test_a_vf_beside_each_card_is_taken() -> None:
    assert given(eight_gpus(), request(whole("a", 8, vfs=8))) == [vf_bdf(n % 2, pf=n // 2) for n in range(8)]


def test_by_count_vfs_of_the_pfs_with_the_fewest_taken_vfs_are_preferred() -> None:
    where = eight_gpus(held_cards={0, 1, 2, 3}, held_vfs={0, 8})
    pod = request(whole("a", vfs=3), rdma_policy=RdmaPolicy.COUNT)
    assert set(given(where, pod)) == {vf_bdf(0, pf=1), vf_bdf(0, pf=3), vf_bdf(1, pf=0)}


def test_unusable_vfs_are_not_counted_as_taken() -> None:
    where = capacity(vfs=[vf(0, pf=0), vf(1, pf=0, held=True), vf(0, pf=1), vf(1, pf=1, usable=False)])
    assert given(where, request(rdma("a"))) == [vf_bdf(0, pf=1)]


def test_an_init_container_gets_vfs_of_the_app_and_more_only_if_they_are_too_few() -> None:
    where = capacity(vfs=[vf(n) for n in range(5)])
    pod = request(rdma("init", 3, role=Role.INIT), rdma("a", 2))
    assert set(given(where, pod, "init")) == {*given(where, pod), vf_bdf(2)}


def test_an_init_container_gets_the_vf_near_the_card_of_the_app() -> None:
    where = eight_gpus(held_cards={0, 1, 2, 3})
    pod = request(rdma("init", role=Role.INIT), whole("a", vfs=1))
    assert given(where, pod, "init") == given(where, pod) == [vf_bdf(0, pf=2)]


def test_a_sidecar_gets_vfs_of_its_own() -> None:
    where = capacity(vfs=[vf(n) for n in range(3)])
    pod = request(rdma("sidecar", 1, role=Role.SIDECAR), rdma("init", 2, role=Role.INIT), rdma("a", 2))
    assert set(given(where, pod, "init")) == set(given(where, pod, "a"))
    assert given(where, pod, "sidecar")[0] not in given(where, pod, "init")


def test_each_vf_has_its_pf() -> None:
    result = fit(capacity(card(0), vfs=[vf(0, pf=port(1))]), request(rdma("a")), policy=Policy.SPREAD)
    assert isinstance(result, Placement)
    assert [one.pf for one in result.containers["a"].vfs] == [pf_bdf(1)]
