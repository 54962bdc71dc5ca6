"""Build decisions and the node that they are about, for tests of what is made of them."""

from lading.nodedevices import Gpu, Pf, Place, Status, Vf
from lading.vocabulary import GpuUuid, PciAddress
from simnode.decisions import DecidedContainer, Decision, GivenGpu, GivenVf

CARDS = ("GPU-00000001", "GPU-00000002")
PLACE = Place(path=("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0"), numa=1)
STATUS = Status(
    gpus=tuple(
        Gpu(uuid=GpuUuid(uuid), bdf=PciAddress(f"0000:1{n}:00.0"), model="H100", memory_mib=1000, place=PLACE)
        for n, uuid in enumerate(CARDS)
    ),
    pfs=(Pf(bdf=PciAddress("0000:20:00.0"), place=PLACE, vfs=tuple(Vf(bdf=PciAddress(f"0000:20:00.{n}")) for n in (1, 2))),),
)


def card(number: int = 0, **amounts: int) -> GivenGpu:
    return GivenGpu(uuid=CARDS[number], bdf=f"0000:1{number}:00.0", **amounts)


def decision(pod: str, *gpus: GivenGpu, vfs: tuple[int, ...] = ()) -> Decision:
    given = tuple(GivenVf(bdf=f"0000:20:00.{n}", pf="0000:20:00.0") for n in vfs)
    return Decision(pod=pod, uid=pod, node="n1", containers=(DecidedContainer(name="c", asks="", gpus=gpus, vfs=given),))
