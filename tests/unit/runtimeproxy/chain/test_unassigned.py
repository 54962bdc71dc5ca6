import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.chain.registrations import HideUnassigned
from runtimeproxy.chain.unassigned import decide_hidden

HIDE = HideUnassigned(env=(("NVIDIA_VISIBLE_DEVICES", "void"),), exempt_namespaces=frozenset({"kube-system"}))
COEXIST = HideUnassigned(env=HIDE.env, keep_kubelet_devices=True)


def request(config: cri.ContainerConfig, namespace: str = "default") -> cri.CreateContainerRequest:
    made = cri.CreateContainerRequest(config=config)
    made.sandbox_config.metadata.namespace = namespace
    return made


def visible(value: bytes) -> cri.ContainerConfig:
    return cri.ContainerConfig(envs=[cri.KeyValue(key="NVIDIA_VISIBLE_DEVICES", value=value)])


SUPPLIED = [
    cri.ContainerConfig(devices=[cri.Device(container_path="/dev/nvidia0")]),
    cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name="nvidia.com/gpu=0")]),
    cri.ContainerConfig(annotations={"cdi.k8s.io/nvidia-device-plugin_x": "nvidia.com/gpu=GPU-1"}),
    cri.ContainerConfig(mounts=[cri.Mount(container_path="/var/run/nvidia-container-devices/GPU-1")]),
    visible(b"GPU-11111111-2222-3333-4444-555555555555"),
    visible(b"GPU-1a,MIG-2b"),
    visible(b"MIG-GPU-1a/1/0"),
]
ASKED_FOR = [
    cri.ContainerConfig(),
    visible(b"all"),
    visible(b"0,1"),
    visible(b"GPU-1,all"),
    visible(b""),
    visible(b"\xff"),
    cri.ContainerConfig(devices=[cri.Device(container_path="/dev/fuse")]),
    cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name="other.com/gpu=0")]),
    cri.ContainerConfig(envs=[cri.KeyValue(key="OTHER", value=b"GPU-1a")]),
]


@pytest.mark.parametrize("config", [*ASKED_FOR, *SUPPLIED])
def test_cards_are_hidden_whatever_the_container_says(config: cri.ContainerConfig) -> None:
    adjustment = decide_hidden(HIDE, request(config))
    assert adjustment is not None
    assert [(e.name, e.value) for e in adjustment.env] == [("NVIDIA_VISIBLE_DEVICES", "void")]


def test_a_configured_namespace_is_exempt() -> None:
    assert decide_hidden(HIDE, request(visible(b"all"), "kube-system")) is None


@pytest.mark.parametrize("config", SUPPLIED)
def test_beside_a_device_plugin_what_kubelet_supplied_is_left_alone(config: cri.ContainerConfig) -> None:
    assert decide_hidden(COEXIST, request(config)) is None


@pytest.mark.parametrize("config", ASKED_FOR)
def test_beside_a_device_plugin_what_kubelet_did_not_supply_is_hidden(config: cri.ContainerConfig) -> None:
    assert decide_hidden(COEXIST, request(config)) is not None
