"""Test devices as people name them: no two are confused."""

import msgspec
import pytest

from kubectl_lading.where.device_names import Device, Kind, devices_of, find_card, find_device
from lading.errors import LadingError
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import Gpu, MigInstance, NodeDevices, Pf, Status, Vf
from lading.vocabulary import GpuUuid, PciAddress

MIG = "MIG-0000000a-0000-0000-0000-000000000001"


def report(name: str, *uuids: str, mig: str = "") -> NodeDevices:
    """Return a report with cards in the reverse order of their addresses, and one PF with two VFs."""
    gpus = tuple(
        Gpu(
            uuid=GpuUuid(uuid),
            bdf=PciAddress(f"0000:{0x20 - number:02x}:00.0"),
            model="M",
            memory_mib=1024,
            mig=(MigInstance(uuid=mig, gpu_instance=1, compute_instance=0, memory_mib=512),) if mig and not number else (),
        )
        for number, uuid in enumerate(uuids)
    )
    vfs = tuple(Vf(bdf=PciAddress(f"0000:60:00.{number}")) for number in (1, 2))
    pf = Pf(bdf=PciAddress("0000:60:00.0"), vfs=vfs)
    return NodeDevices(metadata=AnnotatedMetadata(name=name), status=Status(gpus=gpus, pfs=(pf,)))


REPORTS = {one.metadata.name: one for one in (report("n1", "GPU-aa11", "GPU-ab22", mig=MIG), report("n2", "GPU-ac33"))}


def found(word: str, node: str = "") -> Device:
    return find_device(word, REPORTS, node=node)


@pytest.mark.parametrize("word", ["GPU-ab22", "gpu-AB", "ab2", "n1/0", "n1/0000:1f:00.0", "n1/1f:00.0", "n1/GPU-ab22"])
def test_a_card_has_many_names(word: str) -> None:
    device = found(word)
    assert (device.node, device.kind, device.name, device.index) == ("n1", Kind.GPU, "GPU-ab22", 0)


def test_instances_ports_and_functions() -> None:
    assert found("MIG-0000000a") == Device(node="n1", kind=Kind.MIG, name=MIG, bdf="0000:20:00.0", of="GPU-aa11")
    assert found("60:00.0", "n2") == Device(node="n2", kind=Kind.PF, name="0000:60:00.0", bdf="0000:60:00.0")
    assert found("n2/0000:60:00.2").of == "0000:60:00.0"


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("GPU-a", "GPU-ac33"),  # several begin so
        ("60:00.0", "n2/0000:60:00.0"),  # on several nodes
        ("n3/0", "n2"),
        ("n1/7", "n1/0"),
        ("n1/GPU-aa12", "GPU-aa11"),
        ("GPU-aa12", "GPU-aa11"),
    ],
)
def test_what_is_not_one_device_is_refused_with_names_that_are_near(word: str, near: str) -> None:
    with pytest.raises(LadingError) as raised:
        found(word)
    assert near in raised.value.hint


def test_an_address_that_one_node_has_needs_no_node() -> None:
    assert found("1f:00.0") == found("n1/0")


@pytest.mark.parametrize("word", ["MIG-0000000a", "n1/MIG-0000000a", "GPU-aa11", "n1/1", "n1/20:00.0", "aa1"])
def test_a_card_is_named_by_its_instances_too(word: str) -> None:
    assert find_card(word, REPORTS) == found("GPU-aa11")


def test_a_card_that_two_nodes_report_is_named_with_its_node() -> None:
    twice = REPORTS | {"n3": report("n3", "GPU-ac33")}
    for find in (find_card, find_device):
        with pytest.raises(LadingError) as raised:
            find("GPU-ac33", twice)
        assert "n3/GPU-ac33" in raised.value.hint
    assert find_card("n3/GPU-ac33", twice).node == "n3"


def test_instances_of_old_drivers_have_slashes_in_their_names() -> None:
    old = "MIG-GPU-aa11/1/0"
    reports = {"mig-1": report("mig-1", "GPU-aa11", mig=old)}
    for word in (old, old.lower(), f"mig-1/{old}"):
        assert (find_device(word, reports).name, find_card(word, reports).name) == (old, "GPU-aa11")


@pytest.mark.parametrize("word", ["n2/60:00.0", "n2/60:00.1", "60:00.1"])
def test_a_nic_is_no_card(word: str) -> None:
    with pytest.raises(LadingError) as raised:
        find_card(word, REPORTS)
    assert "kubectl lading node n" in raised.value.hint


def test_the_beginning_of_an_address_is_no_name() -> None:
    with pytest.raises(LadingError):
        find_device("0000", {"n2": REPORTS["n2"]})


def test_an_address_is_a_cards_and_not_its_instances() -> None:
    assert found("n1/20:00.0").kind is Kind.GPU


def test_every_device_of_a_node() -> None:
    kinds = [device.kind for device in devices_of(msgspec.structs.replace(REPORTS["n1"]))]
    assert sorted(kinds) == sorted([Kind.GPU, Kind.GPU, Kind.MIG, Kind.PF, Kind.VF, Kind.VF])
