"""Test the text of a refusal: amounts, the nearest card, and its state."""

from dataclasses import replace

import pytest

from central.ledger.model import NodeCapacity
from central.request.model import DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Scope
from central.search.demand import Limits
from central.search.explain import explain
from central.search.fit import fit
from central.search.joint import MOST_SETS
from central.search.placement import Missing, NoFit
from lading.nodedevices import Partition
from tests.fakes.capacities import MODEL, capacity, card, eight_gpus, gpu_bdf, gpu_uuid, held, rdma, request, share, vf, whole


@pytest.mark.parametrize(
    ("where", "pod", "expected", "named"),
    [
        (capacity(reported=False, name="n7"), request(whole("a")), Missing.NO_REPORT, ["n7"]),
        (capacity(reachable=False), request(whole("a")), Missing.UNREACHABLE, ["not Ready"]),
        (capacity(rebooted=True), request(whole("a")), Missing.REBOOTED, ["before the last boot"]),
        (capacity(reconciled=False), request(whole("a")), Missing.NOT_RECONCILED, ["lading-hooks"]),
        (capacity(card(0)), request(whole("a"), gpu_model="NVIDIA A10"), Missing.NO_MODEL, ["NVIDIA A10", MODEL]),
        (
            capacity(card(0), card(1, mig_enabled=True)),
            request(whole("a", 3)),
            Missing.TOO_FEW_GPUS,
            ["3 whole", "1 in MIG mode"],
        ),
        (
            capacity(card(0), held(1), card(2, free_mib=5), card(3, usable=False)),
            request(whole("a", 2)),
            Missing.TOO_FEW_FREE_GPUS,
            ["2 whole", "of 4 GPUs", "1 free", "2 held", "1 cordoned", "1 more free GPU"],
        ),
        (
            capacity(card(0, usable_mib=10), card(1, usable_mib=20)),
            request(share("a", 21)),
            Missing.NO_CARD_LARGE_ENOUGH,
            ["21Mi", "20Mi", gpu_uuid(1), gpu_bdf(1)],
        ),
        (
            capacity(card(0, free_mib=1000), card(1, free_mib=4096), card(2, free_mib=9000, usable=False)),
            request(share("a", 8192)),
            Missing.NO_CARD_WITH_ROOM,
            ["8Gi", "4Gi free", gpu_uuid(1), gpu_bdf(1), "1 cordoned"],
        ),
        (
            capacity(card(0, free_mib=100, free_core=100), card(1, free_mib=9000, free_core=10)),
            request(share("a", 8192, 15)),  # the second lacks 5 %, the first nearly a tenth of a card
            Missing.NO_CARD_WITH_ROOM,
            ["8Gi and 15%", "9000Mi and 10% free", gpu_bdf(1)],
        ),
        (
            capacity(card(0, usable_mib=1000, free_mib=400)),
            request(share("a", core_percent=50)),
            Missing.NO_CARD_WITH_ROOM,
            ["500Mi and 50%", "400Mi"],
        ),
        (capacity(card(0, unhealthy="Xid 79")), request(whole("a")), Missing.UNHEALTHY, ["unhealthy (Xid 79)"]),
        (capacity(card(0, used_by="pid 7")), request(share("a", 5)), Missing.UNHEALTHY, ["5Mi", "pid 7"]),
        (capacity(card(0, dirty="90 MiB of it")), request(whole("a")), Missing.UNHEALTHY, ["1 dirty (90 MiB of it)"]),
        (
            capacity(card(0), vfs=[vf(0, usable=False)]),
            request(whole("a", vfs=1)),
            Missing.UNHEALTHY,
            ["1 VF asked", "1 unhealthy"],
        ),
        (
            capacity(card(0), card(1, usable=False)),
            request(whole("a"), share("b", 9)),
            Missing.UNHEALTHY,
            ["9Mi", "1 cordoned"],
        ),
        (
            capacity(card(0), held(1)),
            request(whole("a"), share("b", 9)),
            Missing.SHARES_DO_NOT_FIT,
            ["1 whole GPU; 9Mi", "1 held"],
        ),
        (capacity(card(0)), request(whole("a"), share("b", 9)), Missing.NODE_TOO_SMALL, ["1 whole GPU; 9Mi", "of 1 GPU "]),
        (capacity(vfs=[vf(0)]), request(rdma("a", 2)), Missing.TOO_FEW_VFS, ["2 VFs", "of 1 VF "]),
        (
            capacity(vfs=[vf(0), vf(1, held=True), vf(2, usable=False)]),
            request(rdma("a", 2)),
            Missing.TOO_FEW_FREE_VFS,
            ["2 VFs", "of 3 VFs", "1 free", "1 held", "1 unhealthy or cordoned"],
        ),
        (  # each of two bonds is in the way, so that both are told
            eight_gpus(),
            request(whole("a", 3, vfs=9), rdma_policy=RdmaPolicy.PER_SWITCH, scope=Scope.SWITCH),
            Missing.TOO_FEW_VFS_OF_SWITCH,
            ["switches with 9 VFs each", "3 GPUs and 9 VFs below one switch"],
        ),
    ],
)
def test_the_nearest_miss(where: NodeCapacity, pod: DeviceRequest, expected: Missing, named: list[str]) -> None:
    assert fit(where, pod, policy=Policy.BINPACK) == NoFit(missing=expected)
    text = explain(where, pod, expected, policy=Policy.BINPACK)
    assert [part for part in named if part not in text] == []


def test_only_the_rules_that_cannot_be_met_are_named() -> None:
    """Check that only the cause is named: no partition has three GPUs, and no switch does; a VF exists on each switch."""
    where = replace(eight_gpus(), partitions=(Partition(id=0, modules=(1, 2)),))
    pod = request(whole("a", 3, vfs=1), rdma_policy=RdmaPolicy.PER_SWITCH, scope=Scope.SWITCH, partition=PartitionPolicy.HONOR)
    text = explain(where, pod, Missing.NO_PARTITION, policy=Policy.BINPACK)
    assert fit(where, pod, policy=Policy.BINPACK) == NoFit(missing=Missing.NO_PARTITION)
    assert "partition of 3 GPUs" in text
    assert "below one switch" in text
    assert "switches with" not in text


def test_a_search_that_was_ended_names_its_bound() -> None:
    pod = request(*(share(str(n), n) for n in range(1, 12)))
    text = explain(capacity(card(0)), pod, Missing.SEARCH_ENDED, policy=Policy.BINPACK, limits=Limits(search_steps=77))
    assert "77" in text
    assert "3 more" in text


def test_a_search_for_one_container_that_was_ended_names_another_bound() -> None:
    """Check the bound that is named if a single container's search ends."""
    text = explain(
        capacity(card(0)), request(whole("a", 9)), Missing.SETS_ENDED, policy=Policy.BINPACK, limits=Limits(search_steps=77)
    )
    assert str(MOST_SETS) in text
    assert "77" not in text


def test_every_reason_has_words() -> None:
    where, pod = capacity(held(0)), request(whole("a", vfs=1))
    assert all(explain(where, pod, missing, policy=Policy.BINPACK) for missing in Missing)
