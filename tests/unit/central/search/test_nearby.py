"""Test the text that names the nearest place, and how much is missing there."""

import pytest

from central.ledger.model import NodeCapacity
from central.request.model import DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Scope
from central.search.explain import explain
from central.search.fit import fit
from central.search.placement import Missing, NoFit
from tests.fakes.capacities import capacity, card, eight_gpus, held, pf_bdf, rdma, request, share, vf, whole
from tests.unit.central.search.test_joint import node

PER_SWITCH, PER_PF, HONOR = RdmaPolicy.PER_SWITCH, RdmaPolicy.PER_PF, PartitionPolicy.HONOR


@pytest.mark.parametrize(
    ("where", "pod", "expected", "named"),
    [
        (
            eight_gpus(held_cards={0, 2, 4, 6}),
            request(whole("a", 2), scope=Scope.SWITCH),
            Missing.NOT_FREE_WITHIN_SCOPE,
            ["2 free GPUs below one switch", "has 1 GPU (0000:a0:00.0)"],
        ),
        (
            eight_gpus(held_cards={1, 3, 4, 5, 6, 7}, held_vfs=range(3)),
            request(whole("a", vfs=5), scope=Scope.SWITCH),
            Missing.NOT_WITHIN_SCOPE,
            ["1 GPU and 5 VFs below one switch", "has 2 GPUs and 4 VFs (0000:a0:00.0)"],
        ),
        (
            eight_gpus(held_cards={0, 4, 5}),
            request(whole("a", 4), scope=Scope.NUMA),
            Missing.NOT_FREE_WITHIN_SCOPE,
            ["4 free GPUs in one NUMA node", "has 3 GPUs (NUMA node 0)"],
        ),
        (
            eight_gpus(),
            request(whole("b"), whole("a", 5), scope=Scope.SOCKET),
            Missing.NOT_WITHIN_SCOPE,
            ["5 GPUs in one socket", "has 4 GPUs (socket 0)"],
        ),
        (
            capacity(card(0, switch=None), card(1, switch=None)),
            request(whole("a", 2), scope=Scope.NUMA),
            Missing.NOT_WITHIN_SCOPE,
            ["2 GPUs", "has 1 GPU (of unknown place)"],
        ),
        (
            capacity(card(0), card(2, free_mib=10), vfs=[vf(0, pf=1)]),
            request(share("a", 50, vfs=1), scope=Scope.SWITCH),
            Missing.NOT_FREE_WITHIN_SCOPE,
            ["1 free GPU and 1 free VF", "has 1 GPU and 0 VFs", "0000:"],
        ),
        (
            capacity(card(0), held(2), vfs=[vf(0, pf=1), vf(1, pf=1)]),
            request(whole("a", vfs=2), rdma_policy=PER_SWITCH),
            Missing.TOO_FEW_FREE_VFS_OF_SWITCH,
            ["1 free GPU asked", "2 free VFs each", "there are 0", "beside such a GPU: 0"],
        ),
        (
            capacity(card(0, behind=[1]), vfs=[vf(0), vf(0, pf=1)]),  # the first VF behind another of the cascaded switches
            request(whole("a", vfs=2), rdma_policy=PER_SWITCH),
            Missing.TOO_FEW_VFS_OF_SWITCH,
            ["1 GPU asked", "there are 0", "beside such a GPU: 1 (0000:a0:00.0)"],
        ),
        (
            capacity(card(0), card(1), vfs=[vf(0)]),
            request(whole("a", 2, vfs=2), rdma_policy=PER_SWITCH, scope=Scope.SWITCH),
            Missing.TOO_FEW_VFS,
            ["2 VFs asked"],
        ),
        (
            capacity(card(0), vfs=[vf(0), vf(0, pf=1, held=True), vf(1, pf=1)]),
            request(rdma("a"), rdma("b"), rdma_policy=PER_PF),
            Missing.TOO_FEW_VFS_OF_PF,
            ["2 VFs of each PF", pf_bdf(0), "1 free of 1"],
        ),
        (
            capacity(vfs=[vf(0), vf(0, pf=1, held=True)]),
            request(rdma("a"), rdma_policy=PER_PF),
            Missing.TOO_FEW_FREE_VFS_OF_PF,
            ["1 free VF of each PF", pf_bdf(1), "0 free of 1"],
        ),
        (node("dgx-h100"), request(whole("a", 3), partition=HONOR), Missing.NO_PARTITION, ["3 GPUs", "of 1, 2, 4, 8"]),
        (
            node("dgx-h100", held_cards={1, 2, 7}),
            request(whole("a", 4), partition=HONOR),
            Missing.NO_FREE_PARTITION,
            ["4 GPUs", "of 2 such", "3 free", "modules 5, 6, 7, 8"],
        ),
    ],
)
def test_the_nearest_miss(where: NodeCapacity, pod: DeviceRequest, expected: Missing, named: list[str]) -> None:
    assert fit(where, pod, policy=Policy.BINPACK) == NoFit(missing=expected)
    text = explain(where, pod, expected, policy=Policy.BINPACK)
    assert [part for part in named if part not in text] == [], text


@pytest.mark.parametrize("pod", [request(share("a", 1, vfs=1)), request(whole("a", 2))])
def test_every_reason_has_words_for_every_pod(pod: DeviceRequest) -> None:
    assert all(explain(capacity(held(0)), pod, missing, policy=Policy.BINPACK) for missing in Missing)
