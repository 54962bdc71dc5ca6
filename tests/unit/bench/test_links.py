import pytest

from bench.links import FLEETS, are_joined, replay
from central.request.model import Policy


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("fleet", FLEETS)
def test_no_pod_gets_gpus_separate_while_joined_ones_are_free(fleet: str, policy: Policy) -> None:
    result = replay(FLEETS[fleet], policy, 7, nodes=8, pods=500)
    assert result.pods > 100
    assert result.avoidable == 0


def test_gpus_of_a_bridge_or_of_a_partition_are_joined() -> None:
    bridged, partitioned = FLEETS["bridged"], FLEETS["partitioned"]
    assert [are_joined(bridged, bridged.gpus[n : n + 2]) for n in (0, 1, 2)] == [True, False, True]
    assert not are_joined(bridged, bridged.gpus[:4])
    by_module = sorted(partitioned.gpus, key=lambda gpu: gpu.module_id or 0)
    assert are_joined(partitioned, by_module[:4])
    assert are_joined(partitioned, by_module[0:3:2])  # modules 1 and 3
    assert not are_joined(partitioned, by_module[:2])
