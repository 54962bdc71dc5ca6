import msgspec
import pytest

from central.assignment.model import Part, Taken
from central.ledger.capacity import lacking
from lading.nodedevices import Gpu, NodeDevices, Partition
from tests.fakes.capacities import CARD_MIB, gpu_bdf, gpu_uuid, pf_bdf, vf_bdf
from tests.unit.central.ledger.facts import (
    WHOLE,
    free_cards,
    free_mib,
    free_vfs,
    gpu,
    grant,
    granted,
    ledger_of,
    mig_uuid,
    port,
    report,
    share,
    taken,
    uid,
    whole,
)


def test_the_drivers_part_of_the_memory_is_nobodys() -> None:
    assert free_mib(ledger_of(report(gpus=[gpu(0, reserved_mib=600)])).capacity("n1")) == [CARD_MIB - 600]


@pytest.mark.parametrize(
    ("cordon", "cards", "vfs"),
    [
        (gpu_uuid(0), [1], [0, 1, 2, 3]),
        (gpu_uuid(0).upper(), [1], [0, 1, 2, 3]),
        (f" {gpu_bdf(1)} , {vf_bdf(2)},", [0], [0, 1, 3]),
        (pf_bdf(0), [0, 1], []),
        ("all", [], []),
        ("nothing-here", [0, 1], [0, 1, 2, 3]),
    ],
)
def test_a_cordon_takes_devices_out_of_service(cordon: str, cards: list[int], vfs: list[int]) -> None:
    capacity = ledger_of(report(cordon=cordon)).capacity("n1")
    assert (free_cards(capacity), free_vfs(capacity)) == (cards, vfs)


@pytest.mark.parametrize(
    "broken",
    [gpu(0, unhealthy="Xid 79"), gpu(0, used_by="pid 42"), gpu(0, dirty="90 MiB of it"), gpu(0, reserved_mib=CARD_MIB)],
)
def test_a_card_that_is_not_well_or_clean_or_in_a_strangers_use_is_not_usable(broken: Gpu) -> None:
    capacity = ledger_of(report(gpus=[broken, gpu(1)])).capacity("n1")
    assert [card.usable for card in capacity.cards] == [False, True]


def test_a_vf_is_as_well_as_its_port() -> None:
    assert free_vfs(ledger_of(report(pfs=[port(3, broken=[1])])).capacity("n1")) == [0, 2]
    assert free_vfs(ledger_of(report(pfs=[port(3, unhealthy="link down")])).capacity("n1")) == []


def test_a_card_in_mig_mode_has_only_instances_to_give() -> None:
    capacity = ledger_of(report(gpus=[gpu(0, mig=2)], grants=[grant("p", "c", granted(0, mig=mig_uuid(0)))])).capacity("n1")
    assert free_cards(capacity) == []
    assert free_mib(capacity) == [0]
    assert capacity.cards[0].free_mig == (mig_uuid(1),)


def test_a_card_with_held_instances_has_no_other_free_capacity() -> None:
    capacity = ledger_of(report(gpus=[gpu(0)], grants=[grant("p", "c", granted(0, mig=mig_uuid(0)))])).capacity("n1")
    assert (capacity.cards[0].free_mib, capacity.cards[0].free_core, capacity.cards[0].free) == (0, 0, False)


def test_a_cordoned_instance_is_not_free() -> None:
    capacity = ledger_of(report(gpus=[gpu(0, mig=2)], cordon=mig_uuid(0))).capacity("n1")
    assert capacity.cards[0].free_mig == (mig_uuid(1),)


def test_partitions_are_those_that_the_node_reports_and_a_new_one_is_room() -> None:
    def with_pairs(version: int, *pairs: tuple[int, int]) -> NodeDevices:
        plain = report(version=version)
        partitions = tuple(Partition(id=number, modules=pair) for number, pair in enumerate(pairs))
        return msgspec.structs.replace(plain, status=msgspec.structs.replace(plain.status, partitions=partitions))

    ledger = ledger_of(with_pairs(1, (1, 3)))
    assert ledger.capacity("n1").partitions == (Partition(id=0, modules=(1, 3)),)
    former = ledger.capacity("n1").version
    ledger.facts.set_report(with_pairs(2, (1, 3), (2, 4)))
    assert ledger.capacity("n1").version > former
    assert ledger.take_freed() == ("n1",)
    ledger.facts.set_report(with_pairs(3, (1, 3)))
    assert [partition.modules for partition in ledger.capacity("n1").partitions] == [(1, 3)]
    assert not ledger.take_freed()


SHARED = report(grants=[grant("p", "c", granted(0, 1000, 60), vfs=[0])])
ALONE = report(grants=[grant("p", "c", granted(0))])
PARTED = report(gpus=[gpu(0, mig=2)], grants=[grant("p", "c", granted(0, mig=mig_uuid(0)))])


@pytest.mark.parametrize(
    ("on", "wish", "missing"),
    [
        (SHARED, share(0, CARD_MIB - 1000, 40), None),
        (SHARED, share(0, CARD_MIB - 999), gpu_uuid(0)),
        *((SHARED, share(0, 1, 41), gpu_uuid(0)), (SHARED, whole(0), gpu_uuid(0)), (SHARED, whole(1), None)),
        *((SHARED, taken(vfs=[1, 2]), None), (SHARED, taken(vfs=[0, 1]), vf_bdf(0))),
        *((SHARED, taken({7: WHOLE}), gpu_uuid(7)), (SHARED, taken(vfs=[9]), vf_bdf(9)), (SHARED, Taken(), None)),
        *((ALONE, share(0, 1), gpu_uuid(0)), (ALONE, share(0, 0, 1), gpu_uuid(0))),
        (PARTED, taken({0: Part(mig=frozenset({mig_uuid(1)}))}), None),
        (PARTED, taken({0: Part(mig=frozenset({mig_uuid(0)}))}), gpu_uuid(0)),
        (PARTED, whole(0), gpu_uuid(0)),
        (PARTED, share(0, 1), gpu_uuid(0)),
        (report(cordon="all"), share(0, 1), gpu_uuid(0)),
    ],
)
def test_what_a_capacity_lacks_for_given_devices(on: NodeDevices, wish: Taken, missing: str | None) -> None:
    assert lacking(ledger_of(on).capacity("n1"), wish) == missing


def test_a_room_is_built_once_for_each_change_and_only_where_it_changed() -> None:
    ledger = ledger_of()
    before = ledger.capacity("n1")
    assert ledger.capacity("n1") is before
    ledger.claims.predict(uid("p"), "n1", share(0, 1), until=1)
    after = ledger.capacity("n1")
    assert after.version > before.version
    assert after.cards[0] != before.cards[0]
    assert after.cards[1] is before.cards[1]
    assert after.vfs[0] is before.vfs[0]


def test_by_turns_a_card_has_fewer_sharers() -> None:
    for count, isolation, is_free in ((15, "tokens", True), (16, "tokens", False), (16, "", True), (16, "mps", True)):
        grants = [grant("p", f"c{number}", granted(0, memory_mib=1, isolation=isolation)) for number in range(count)]
        assert (free_mib(ledger_of(report(gpus=[gpu(0)], grants=grants)).capacity("n1")) != [0]) is is_free


def test_a_card_with_as_many_sharers_as_its_node_allows_has_nothing_free() -> None:
    """Check that several containers of one pod count one by one."""
    grants = [grant("p", name, granted(0, memory_mib=1)) for name in ("a", "b")]
    for max_shares, is_free in ((3, True), (2, False)):
        full = msgspec.structs.replace(gpu(0), max_shares=max_shares)
        capacity = ledger_of(report(gpus=[full], grants=grants)).capacity("n1")
        assert (free_mib(capacity) != [0]) is is_free
