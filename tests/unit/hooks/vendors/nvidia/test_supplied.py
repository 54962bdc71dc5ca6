import pytest

from hooks.model.container import Container, Device, EnvVar
from hooks.vendors.nvidia.supplied import VISIBLE_DEVICES, is_supplied, supplied_by_kubelet, supplied_card


def device(path: str, host_path: str = "") -> Device:
    return Device(path, host_path or path, "rw")


def test_gpus_from_kubelet() -> None:
    assert supplied_card(Container(devices=(device("/dev/fuse"), device("/dev/nvidia3")))) == "/dev/nvidia3"
    assert supplied_card(Container(devices=(device("/dev/card", "/dev/nvidia3"),)))
    assert supplied_card(Container(cdi_devices=("example.com/x=1", "nvidia.com/gpu=0"))) == "nvidia.com/gpu=0"
    assert supplied_card(Container(cdi_devices=("nvidia.com/mig=0",)))
    annotated = Container(annotations={"cdi.k8s.io/plugin_1": "example.com/x=1, nvidia.com/gpu=0"})
    assert supplied_card(annotated) == "cdi.k8s.io/plugin_1"


def test_other_devices_are_not_gpus() -> None:
    other = Container(
        devices=(device("/dev/infiniband/uverbs0"), device("/dev/nvme0")),
        cdi_devices=("example.com/nvidia.com=1",),
        annotations={"cdi.k8s.io/x": "example.com/x=1", "note": "nvidia.com/gpu=0"},
        env=(EnvVar(VISIBLE_DEVICES, "all"),),
    )
    assert supplied_card(other) == ""


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("GPU-1", True),
        ("GPU-1,MIG-2", True),
        ("GPU-0a1b::3", True),
        ("all", False),
        ("0,1", False),
        ("GPU-1,0", False),
        ("", False),
        ("GPU-1,", False),
    ],
)
def test_only_a_list_of_uuids_is_a_plugins(value: str, uuids: bool) -> None:
    assert is_supplied(value) == uuids


def test_a_value_counts_only_where_a_device_plugin_serves_the_node() -> None:
    container = Container(env=(EnvVar(VISIBLE_DEVICES, "all"), EnvVar("X", "GPU-2"), EnvVar(VISIBLE_DEVICES, "GPU-1")))
    assert supplied_by_kubelet(container, coexist=True) == f"{VISIBLE_DEVICES}=GPU-1"
    assert supplied_by_kubelet(container, coexist=False) == ""
