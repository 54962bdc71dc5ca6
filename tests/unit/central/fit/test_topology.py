from central.fit.topology import closeness, link, switch_of
from lading.nodedevices import Gpu, NvLink, Place
from tests.fakes.rooms import card, gpu_uuid, place

NOWHERE = Place()


def linked(number: int, *links: NvLink) -> Gpu:
    return card(number, switch=None, nvlinks=links).gpu


def test_bridges_in_common_count_before_the_numa_node() -> None:
    assert closeness(place(0, 1), place(0, 2)) > closeness(place(0), place(1)) > closeness(place(0), place(2))
    assert closeness(place(0), place(1)) == (1, True)  # one host bridge
    assert closeness(place(0), place(2)) == (0, False)


def test_what_is_not_known_is_close_to_nothing() -> None:
    assert closeness(NOWHERE, NOWHERE) == (0, False)


def test_cards_of_one_switch_have_the_bridges_above_their_ports_in_common() -> None:
    assert switch_of(card(0).gpu) == switch_of(card(1).gpu) != switch_of(card(2).gpu)


def test_nvlinks_count_directly_and_through_a_switch() -> None:
    to_1 = linked(0, NvLink(count=4, to=gpu_uuid(1)))
    to_switch, few_to_switch = linked(2, NvLink(count=18)), linked(3, NvLink(count=12))
    assert link(to_1, linked(1))[0] == 4
    assert link(to_switch, few_to_switch)[0] == 12
    assert link(to_1, to_switch)[0] == 0


def test_nvlink_counts_before_pcie() -> None:
    far_but_linked = card(6, nvlinks=[NvLink(count=1, to=gpu_uuid(0))]).gpu
    assert link(far_but_linked, card(0).gpu) > link(card(1).gpu, card(0).gpu)
