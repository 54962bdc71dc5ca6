"""Test the devices of a container as text, and each pair of its GPUs, and of a GPU and a VF."""

import msgspec
import pytest

from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from central.search.topology import Distance
from kubectl_lading.pods.given import Pair, given_of, pairs_of
from kubectl_lading.terminal.format import DISTANCES
from lading.devices.isolation import IsolationName
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import NodeDevices
from lading.vocabulary import GpuUuid, PciAddress
from simnode.reported import read_status

REPORT = NodeDevices(metadata=AnnotatedMetadata(name="n1"), status=read_status("demo-8gpu"))
NEAR, ALSO_NEAR, *_, FAR = REPORT.status.gpus
PORT = REPORT.status.pfs[0]


def placed(*uuids: str, vfs: int = 0) -> PlacedContainer:
    gpus = tuple(PlacedGpu(uuid=GpuUuid(uuid), bdf=PciAddress("")) for uuid in uuids)
    return PlacedContainer(gpus=gpus, vfs=tuple(PlacedVf(bdf=vf.bdf, pf=PORT.bdf) for vf in PORT.vfs[:vfs]))


def test_gpus_by_their_links_and_vfs_by_their_place() -> None:
    function = PORT.vfs[0].bdf
    assert list(pairs_of(REPORT, placed(NEAR.uuid, FAR.uuid, vfs=1))) == [
        Pair(one=NEAR.uuid, other=FAR.uuid, said="18 NVLinks"),
        Pair(one=NEAR.uuid, other=function, said=DISTANCES[Distance.SWITCH]),
        Pair(one=FAR.uuid, other=function, said=DISTANCES[Distance.CROSS]),
    ]


def test_without_links_the_place_counts() -> None:
    gpus = tuple(msgspec.structs.replace(gpu, links=()) for gpu in REPORT.status.gpus)
    bare = NodeDevices(metadata=REPORT.metadata, status=msgspec.structs.replace(REPORT.status, gpus=gpus))
    (pair,) = pairs_of(bare, placed(NEAR.uuid, ALSO_NEAR.uuid))
    assert pair.said == DISTANCES[Distance.SWITCH]


def test_a_device_that_is_not_reported_has_no_pair() -> None:
    assert list(pairs_of(REPORT, placed(NEAR.uuid, "GPU-gone"))) == []


@pytest.mark.parametrize(
    ("limit", "isolation", "said"),
    [
        (None, None, "8Gi and 30% of GPU-1 (0000:1b:00.0)"),
        (None, IsolationName.NONE, "8Gi and 30% of GPU-1 (0000:1b:00.0)"),
        (60, IsolationName.TOKENS, "8Gi and 30% of GPU-1 (0000:1b:00.0), limit 60%, tokens"),
    ],
)
def test_a_share_with_what_keeps_it_to_its_amounts(limit: int | None, isolation: IsolationName | None, said: str) -> None:
    gpu = PlacedGpu(
        uuid=GpuUuid("GPU-1"),
        bdf=PciAddress("0000:1b:00.0"),
        memory_mib=8192,
        core_percent=30,
        core_limit_percent=limit,
        isolation=isolation,
    )
    assert list(given_of(PlacedContainer(gpus=(gpu,))).as_text()) == [said]
