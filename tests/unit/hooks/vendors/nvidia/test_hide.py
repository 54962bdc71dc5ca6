import pytest

from hooks.grant.cards import UnassignedPolicy, hide_cards
from hooks.model.assignment import GrantedDevices
from hooks.model.container import Adjustment, Container, Device, EnvVar, Sandbox
from hooks.model.inventory import Inventory
from hooks.vendors.nvidia.hide import VISIBLE_DEVICES, is_supplied, supplied_by_kubelet, supplied_card
from hooks.vendors.nvidia.vendor import Nvidia

HIDE = UnassignedPolicy(exempt_namespaces=frozenset({"gpu-operator"}))
COEXIST = UnassignedPolicy(coexist=True)
NVIDIA = Device("/dev/nvidia0", "/dev/nvidia0")


def visible(policy: UnassignedPolicy, *values: str, namespace: str = "default", devices: bool = False) -> str | None:
    """Return the value that the container gets; None if it is not changed."""
    container = Container(
        env=tuple(EnvVar("NVIDIA_VISIBLE_DEVICES", value) for value in values), devices=(NVIDIA,) if devices else ()
    )
    adjustment = hide_cards(Sandbox(namespace=namespace), container, Inventory(), GrantedDevices(), [Nvidia()], policy)
    if not adjustment.env:
        assert adjustment == Adjustment()
        return None
    (upsert,) = adjustment.env
    assert upsert.name == "NVIDIA_VISIBLE_DEVICES"
    return upsert.value


def test_every_card_is_hidden() -> None:
    assert visible(HIDE) == "void"
    assert visible(HIDE, "all") == "void"
    assert visible(HIDE, "GPU-1") == "void"
    assert visible(HIDE, devices=True) == "void"


def test_exempt_is_what_the_configuration_names() -> None:
    assert visible(HIDE, "all", namespace="gpu-operator") is None
    assert visible(HIDE, "all", namespace="gpu-operator-2") == "void"
    assert visible(UnassignedPolicy(hide=False), "all") is None


def test_what_a_device_plugin_supplied_is_left_alone() -> None:
    assert visible(COEXIST, "GPU-1,GPU-2") is None
    assert visible(COEXIST, devices=True) is None
    assert visible(COEXIST, "GPU-1", devices=True) is None
    assert visible(COEXIST, "void") is None


def test_what_a_pod_wrote_itself_is_not_a_device_plugins() -> None:
    assert visible(COEXIST) == "void"  # the image may say all
    assert visible(COEXIST, "all") == "void"
    assert visible(COEXIST, "0,1") == "void"
    assert visible(COEXIST, "all", devices=True) == "void"


def test_a_pods_own_value_does_not_replace_a_device_plugins() -> None:
    assert visible(COEXIST, "GPU-1", "all") == "GPU-1"
    assert visible(COEXIST, "GPU-1", "GPU-2") == "GPU-1"


def device(path: str, host_path: str = "") -> Device:
    return Device(path, host_path or path, "rw")


def test_gpus_from_kubelet() -> None:
    assert (
        supplied_card(
            Container(
                devices=(
                    device("/dev/fuse"),
                    device("/dev/nvidia3"),
                )
            )
        )
        == "/dev/nvidia3"
    )
    assert supplied_card(Container(devices=(device("/dev/card", "/dev/nvidia3"),)))
    assert (
        supplied_card(
            Container(
                cdi_devices=(
                    "example.com/x=1",
                    "nvidia.com/gpu=0",
                )
            )
        )
        == "nvidia.com/gpu=0"
    )
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
