"""Test the referee of VFs and places: it finds by counting where a pod fits, and accepts only what was requested."""

from collections.abc import Collection
from pathlib import Path

import pytest

from central.request.model import PartitionPolicy
from lading.vocabulary import PciAddress
from simulate.places import Places
from simulate.trace import TracePod
from tests.unit.simulate.shipped import described, entry, pod

ALL = range(8)
# The profile mn2a: four switches, each with two cards and a PF with four VFs; two switches in a NUMA node.
FIRST, SECOND, THIRD = ([PciAddress(f"0000:{bus}:00.{vf}") for vf in range(1, 5)] for bus in ("18", "3a", "9a"))


def places(folder: Path, profile: str = "mn2a", partition: str = "prefer") -> Places:
    return Places(described(folder, entry(profile, 2)).nodes, PartitionPolicy(partition))


@pytest.mark.parametrize(
    ("requested", "cards", "expected"),
    [
        (pod(1, 2), ALL, True),
        (pod(1, 14), ALL, True),
        (pod(1, 15), ALL, False),  # two are taken
        (pod(1, 15, "count"), ALL, False),
        (pod(3), (0, 2, 4), True),
        (pod(3, scope="numa"), (0, 2, 4), False),
        (pod(2, scope="numa"), (0, 2, 4), True),
        (pod(2, scope="switch"), (0, 2, 4), False),
        (pod(1, 3, scope="switch"), (0, 1), False),  # below that switch two are left
        (pod(1, 3, scope="switch"), (0, 2), True),
        (pod(1, 6, scope="socket"), (0, 1), True),
        (pod(1, 7, scope="socket"), (0, 1), False),
        (pod(1, 3, "per-switch"), (0, 1), False),
        (pod(2, 3, "per-switch"), (0, 2, 4), True),
        (pod(2, 3, "per-switch", "numa"), (0, 2, 4), False),
        (pod(1, 2, "per-pf"), (5,), True),
        (pod(1, 3, "per-pf"), (5,), False),
        (pod(0, 4, scope="switch"), (), True),
        (pod(0, 5, scope="switch"), (), False),
    ],
)
def test_where_a_pod_fits(tmp_path: Path, requested: TracePod, cards: Collection[int], expected: bool) -> None:
    referee = places(tmp_path)
    assert referee.take(1, pod(0, 2), (), FIRST[:2])
    assert referee.fits(1, requested, cards) is expected


def test_each_node_has_its_own(tmp_path: Path) -> None:
    referee = places(tmp_path)
    assert referee.take(0, pod(0, 4), (), FIRST)
    assert referee.take(1, pod(0, 4), (), FIRST)
    assert (referee.vfs, referee.vfs_taken) == (32, 8)


@pytest.mark.parametrize(
    ("requested", "cards", "vfs"),
    [
        (pod(1, 1), (0,), FIRST[:1]),  # a card that another pod holds
        (pod(1, 2), (0,), [FIRST[1], FIRST[1]]),
        (pod(1, 1), (0,), [PciAddress("0000:18:00.0")]),  # a PF
        (pod(1, 1), (0,), FIRST[1:3]),
        (pod(1, 2), (0,), FIRST[1:2]),
        (pod(1), (0,), FIRST[1:2]),
        (pod(1, 1, scope="switch"), (0,), SECOND[:1]),
        (pod(2, 1, scope="numa"), (0, 2), THIRD[:1]),
        (pod(2, scope="switch"), (1, 2), []),
        (pod(2, 1, "per-switch"), (0, 2), FIRST[1:3]),
        (pod(1, 1, "per-switch"), (0,), [FIRST[1], SECOND[0]]),
        (pod(1, 1, "per-pf"), (0,), [FIRST[1], SECOND[0], THIRD[0]]),
    ],
)
def test_devices_that_do_not_match_the_request_are_refused(
    tmp_path: Path, requested: TracePod, cards: Collection[int], vfs: list[PciAddress]
) -> None:
    referee = places(tmp_path)
    assert referee.take(0, pod(0, 1), (), FIRST[:1])
    assert not referee.take(0, requested, cards, vfs)
    assert referee.vfs_taken == 1


def test_partitions_where_the_cluster_honors_them(tmp_path: Path) -> None:
    """Use an H100 board whose cards, in order, have the module ids 5, 7, 6, 8, 1, 3, 2 and 4."""
    honored, preferred = places(tmp_path, "dgx-h100", "honor"), places(tmp_path, "dgx-h100")
    assert (honored.concern(pod(2)), preferred.concern(pod(2)), honored.concern(pod(1, milli=300))) == (True, False, False)
    assert honored.fits(0, pod(2), (0, 1, 2))
    assert not honored.fits(0, pod(2), (0, 2))
    assert not honored.fits(0, pod(3), ALL)
    assert honored.fits(0, pod(1, 1, milli=300), (0,))
    assert not honored.take(0, pod(2), (0, 2), ())
    assert honored.take(0, pod(2), (0, 1), ())
    assert preferred.take(0, pod(2), (0, 2), ())
    assert places(tmp_path, "pcie-8gpu", "honor").fits(0, pod(3), ALL)  # no NVSwitch, nothing to honor
