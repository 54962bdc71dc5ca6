"""Each two GPUs of a container, and each GPU with each VF."""

import msgspec

from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from central.fit.topology import Distance
from kubectl_lading.pods.given import Pair, pairs_of
from kubectl_lading.terminal.words import DISTANCES
from lading.nodedevices import Metadata, NodeDevices
from lading.vocabulary import GpuUuid, PciAddress
from simnode.reported import read_status

REPORT = NodeDevices(metadata=Metadata(name="n1"), status=read_status("demo-8gpu"))
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


def test_what_is_not_reported_any_more_is_left_out() -> None:
    assert list(pairs_of(REPORT, placed(NEAR.uuid, "GPU-gone"))) == []
