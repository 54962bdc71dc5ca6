import pytest

from hooks.vendors.nvidia.supplied import names_uuids, supplied_gpu, supplied_rdma, visible_devices
from protos.hook.v1 import hook_pb2


def device(path: str, host_path: str = "") -> hook_pb2.Device:
    return hook_pb2.Device(container_path=path, host_path=host_path or path, permissions="rw")


def test_gpus_from_kubelet() -> None:
    assert supplied_gpu(hook_pb2.Container(devices=[device("/dev/fuse"), device("/dev/nvidia3")])) == "/dev/nvidia3"
    assert supplied_gpu(hook_pb2.Container(devices=[device("/dev/card", "/dev/nvidia3")]))
    assert supplied_gpu(hook_pb2.Container(cdi_devices=["example.com/x=1", "nvidia.com/gpu=0"])) == "nvidia.com/gpu=0"
    assert supplied_gpu(hook_pb2.Container(cdi_devices=["nvidia.com/mig=0"]))
    annotated = hook_pb2.Container(annotations={"cdi.k8s.io/plugin_1": "example.com/x=1, nvidia.com/gpu=0"})
    assert supplied_gpu(annotated) == "cdi.k8s.io/plugin_1"


def test_other_devices_are_not_gpus() -> None:
    other = hook_pb2.Container(
        devices=[device("/dev/infiniband/uverbs0"), device("/dev/nvme0")],
        cdi_devices=["example.com/nvidia.com=1"],
        annotations={"cdi.k8s.io/x": "example.com/x=1", "note": "nvidia.com/gpu=0"},
        env=[hook_pb2.EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")],
    )
    assert supplied_gpu(other) == ""
    assert supplied_rdma(other) == "/dev/infiniband/uverbs0"
    assert supplied_rdma(hook_pb2.Container(devices=[device("/dev/nvidia0")])) == ""


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("GPU-1", True),
        ("GPU-1,MIG-2", True),
        ("all", False),
        ("0,1", False),
        ("GPU-1,0", False),
        ("", False),
        ("GPU-1,", False),
    ],
)
def test_only_a_list_of_uuids_is_a_plugins(value: str, uuids: bool) -> None:
    assert names_uuids(value) == uuids


def test_every_value_of_the_variable_in_order() -> None:
    name = "NVIDIA_VISIBLE_DEVICES"
    env = [hook_pb2.EnvVar(name=name, value="GPU-1"), hook_pb2.EnvVar(name="X", value="GPU-2"), hook_pb2.EnvVar(name=name)]
    assert visible_devices(hook_pb2.Container(env=env)) == ["GPU-1", ""]
