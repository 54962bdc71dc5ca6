from dataclasses import replace

import pytest

from hooks.attach.overlay import find_strays, holdings_of, with_attached
from hooks.model.attachment import Attachment
from hooks.model.inventory import Inventory, Vf
from lading.vocabulary import PodUid
from tests.fakes.holders import row, vf_bdf
from tests.unit.hooks.inventories import inventory, vf

HOME = row(1).vf
SHARED_AWAY = replace(HOME, netdev="")
EXCLUSIVE_AWAY = replace(HOME, netdev="", ibdev="", uverbs=None, link_layer="", unhealthy="it has no RDMA device")


def shown(now: Vf, *rows: Attachment, strays: bool = False) -> Vf:
    return with_attached(inventory(vfs=(now,)), rows, strays={now.bdf} if strays else frozenset()).vfs[0]


def test_without_rows_nothing_is_made_anew() -> None:
    """Check that nothing is built, because this is called for each container."""
    now = inventory(vfs=(vf(0),))
    assert with_attached(now, ()) is now


def test_a_vf_that_is_away_by_our_hand_is_as_it_was() -> None:
    assert shown(SHARED_AWAY, row(1)) == HOME
    assert shown(EXCLUSIVE_AWAY, row(1, rdma=True)) == HOME
    assert shown(HOME, row(1)) == HOME  # not gone yet, or back already


def test_its_gids_went_with_its_network_device() -> None:
    assert shown(replace(SHARED_AWAY, unhealthy="mlx5_1 has no GID"), row(1)) == HOME


@pytest.mark.parametrize(
    "now",
    [
        replace(EXCLUSIVE_AWAY, driver="", unhealthy="no driver is bound to it"),
        replace(EXCLUSIVE_AWAY, driver="vfio-pci", unhealthy="it is bound to vfio-pci, for virtual machines"),
    ],
)
def test_what_ails_it_all_the_same_is_shown(now: Vf) -> None:
    assert shown(now, row(1, rdma=True)).unhealthy == now.unhealthy
    assert shown(now, row(1)).unhealthy == now.unhealthy


def test_an_rdma_device_that_we_did_not_move_is_missing() -> None:
    assert shown(EXCLUSIVE_AWAY, row(1, rdma=False)).unhealthy == EXCLUSIVE_AWAY.unhealthy


def test_where_it_is_on_the_bus_is_what_is_read_now() -> None:
    assert shown(replace(EXCLUSIVE_AWAY, numa=None), row(1, rdma=True)).numa is None


def test_an_attachment_that_failed_is_an_illness() -> None:
    now = shown(SHARED_AWAY, row(1, failure="its network device has not come back"))
    assert (now.unhealthy, now.ibdev, now.netdev) == ("its network device has not come back", "mlx5_1", "eth1")


def test_a_vf_that_is_not_there_is_not_made_up() -> None:
    assert with_attached(Inventory(), [row(1)]) == Inventory()
    assert with_attached(inventory(vfs=(HOME,)), [row(2)]) == inventory(vfs=(HOME,))


# network devices that someone else moved


def test_an_ethernet_vf_without_network_device_and_row_is_a_stray() -> None:
    assert find_strays(inventory(vfs=(SHARED_AWAY,)), []) == {HOME.bdf}
    assert find_strays(inventory(vfs=(SHARED_AWAY,)), [row(1)]) == frozenset()


@pytest.mark.parametrize("now", [HOME, replace(SHARED_AWAY, link_layer="InfiniBand"), EXCLUSIVE_AWAY, vf(0)])
def test_others_are_none(now: Vf) -> None:
    assert find_strays(inventory(vfs=(now,)), []) == frozenset()


def test_a_stray_is_ill_until_its_device_is_back_or_ours() -> None:
    assert shown(SHARED_AWAY, strays=True).unhealthy
    assert shown(HOME, strays=True) == HOME
    assert shown(SHARED_AWAY, row(1), strays=True) == HOME


def test_a_row_holds_its_vf_for_its_pod() -> None:
    (held,) = holdings_of([row(1)])
    assert (held.pod, held.container, [one.bdf for one in held.devices.vfs]) == (PodUid("pod-1"), "", [vf_bdf(1)])
