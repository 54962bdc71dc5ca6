from tests.fakes.capacities import card, eight_gpus, held, vf


def test_a_card_is_free_unless_some_of_it_is_held() -> None:
    assert card(0).free
    assert not any(one.free for one in (held(0), card(0, free_mib=1), card(0, free_core=1), card(0, usable=False)))
    assert (held(0).free_mib, held(0).free_core) == (0, 0)


def test_a_vf_that_is_not_usable_is_not_free() -> None:
    assert vf(0).free
    assert not vf(0, held=True).free
    assert not vf(0, usable=False).free


def test_every_device_has_its_own_address() -> None:
    node = eight_gpus(held_cards={1}, held_vfs={5})
    addresses = {one.gpu.bdf for one in node.cards} | {one.vf.bdf for one in node.vfs} | {one.pf.bdf for one in node.vfs}
    assert len(addresses) == 8 + 16 + 4
    assert [one.free for one in node.cards].index(False) == 1
    assert [one.free for one in node.vfs].index(False) == 5
