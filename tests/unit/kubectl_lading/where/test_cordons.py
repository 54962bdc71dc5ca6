"""Test the annotation that `kubectl lading cordon` writes: central.ledger.capacity reads the devices that the command
named."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.ledger.capacity import card_capacities, inventory_of, vf_capacities
from central.ledger.usage import Usage
from kubectl_lading.where.cordon import add, add_all, is_cordoned, remove
from kubectl_lading.where.device_names import Device, Kind, devices_of
from lading.errors import LadingError
from lading.nodedevices import NodeDevices
from lading.vocabulary import CORDON
from tests.unit.kubectl_lading.where.test_device_names import MIG, report

NODE = report("n1", "GPU-aa11", "GPU-ab22", mig=MIG)
DEVICES = {device.name: device for device in devices_of(NODE)}
CARD, OTHER, PORT, FUNCTION = (DEVICES[name] for name in ("GPU-aa11", "GPU-ab22", "0000:60:00.0", "0000:60:00.1"))
PLAIN = [device for device in DEVICES.values() if device.kind is not Kind.MIG]


def out_of_service(written: str | None) -> set[str]:
    """Return the cordoned cards and VFs as central reads them; a PF is its VFs."""
    metadata = msgspec.structs.replace(NODE.metadata, annotations={CORDON: written} if written else {})
    inventory = inventory_of(NodeDevices(metadata=metadata, status=NODE.status))
    cards = {card.gpu.uuid for card in card_capacities(inventory, Usage(), None, ()) if not card.usable}
    return {*cards, *(vf.vf.bdf for vf in vf_capacities(inventory, Usage(), None, ()) if not vf.usable)}


def covered(device: Device) -> set[str]:
    return {"0000:60:00.1", "0000:60:00.2"} if device.kind is Kind.PF else {device.name}


def test_devices_are_added_once() -> None:
    assert add("", [CARD, PORT]) == "GPU-aa11,0000:60:00.0"
    assert add("0000:20:00.0", [CARD]) == "0000:20:00.0"  # it is named by its address already
    assert add("0000:60:00.0", [FUNCTION]) == "0000:60:00.0"
    assert add("all", [CARD]) == "all"
    assert add("", []) is None


def test_what_is_not_there_stays_as_it_was_written() -> None:
    assert add("GPU-gone, x", [CARD]) == "GPU-gone,x,GPU-aa11"
    assert remove("GPU-gone,GPU-AA11", [CARD], NODE) == "GPU-gone"


def test_all() -> None:
    assert add_all("GPU-aa11") == "all"
    assert add_all("All") == "All"
    assert remove("all", [CARD], NODE) == "GPU-ab22,0000:60:00.0"
    assert remove("GPU-aa11", [CARD], NODE) is None


def test_a_function_of_a_cordoned_port_is_taken_out_alone() -> None:
    assert remove("0000:60:00.0", [FUNCTION], NODE) == "0000:60:00.2"


def test_an_instance_of_a_cordoned_card_stays() -> None:
    with pytest.raises(LadingError, match="GPU-aa11"):
        remove("GPU-aa11", [DEVICES[MIG]], NODE)
    assert is_cordoned("GPU-aa11", DEVICES[MIG])
    assert remove(f"{MIG},GPU-ab22", [DEVICES[MIG]], NODE) == "GPU-ab22"


@given(
    written=st.lists(st.sampled_from([*(device.name for device in PLAIN), "0000:20:00.0", "all", "GPU-gone"]), max_size=4),
    device=st.sampled_from(PLAIN),
)
def test_others_stay_as_they_are(written: list[str], device: Device) -> None:
    before = ",".join(written)
    was = out_of_service(before)
    assert out_of_service(add(before, [device])) == was | covered(device)
    assert out_of_service(remove(before, [device], NODE)) == was - covered(device)
    assert is_cordoned(add(before, [device]) or "", device)
    assert not is_cordoned(remove(before, [device], NODE) or "", device)
