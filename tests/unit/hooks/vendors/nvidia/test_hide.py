from hooks.grant.cards import UnassignedPolicy, hide_cards
from hooks.model.assignment import GrantedDevices
from hooks.model.container import Adjustment, Container, Device, EnvVar, Sandbox
from hooks.model.inventory import Inventory
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
