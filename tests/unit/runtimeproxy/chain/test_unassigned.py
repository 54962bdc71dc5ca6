from typing import Any

import pytest
from msgspec import convert

from hooks.model.container import Container, Device, EnvVar
from hooks.vendors.nvidia.vendor import Nvidia
from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.chain.registrations import HideUnassigned, Supplied
from runtimeproxy.chain.unassigned import decide_hidden

HIDE = HideUnassigned(env={"NVIDIA_VISIBLE_DEVICES": "void"}, exempt_namespaces=frozenset({"kube-system"}))
COEXIST = HideUnassigned(env=HIDE.env, supplied=convert(Nvidia().supplied, Supplied))


def request(config: cri.ContainerConfig, namespace: str = "default") -> cri.CreateContainerRequest:
    made = cri.CreateContainerRequest(config=config)
    made.sandbox_config.metadata.namespace = namespace
    return made


def visible(*values: bytes, **fields: Any) -> cri.ContainerConfig:
    return cri.ContainerConfig(envs=[cri.KeyValue(key="NVIDIA_VISIBLE_DEVICES", value=value) for value in values], **fields)


def given(hide: HideUnassigned, config: cri.ContainerConfig) -> str | None:
    """The value that the container is given, or None where it is left as it was."""
    adjustment = decide_hidden(hide, request(config))
    if adjustment is None:
        return None
    (env,) = adjustment.env
    assert env.name == "NVIDIA_VISIBLE_DEVICES"
    return env.value


NODES = [cri.Device(container_path="/dev/nvidia0")]
MOUNTS = "/var/run/nvidia-container-devices"


SUPPLIED = [
    cri.ContainerConfig(devices=NODES),
    cri.ContainerConfig(devices=[cri.Device(container_path="/dev/card", host_path="/dev/nvidia0")]),
    cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name="nvidia.com/gpu=0")]),
    cri.ContainerConfig(annotations={"cdi.k8s.io/nvidia-device-plugin_x": "nvidia.com/gpu=GPU-1"}),
    cri.ContainerConfig(annotations={"cdi.k8s.io/x": "other.com/x=1, nvidia.com/gpu=GPU-1"}),
    cri.ContainerConfig(mounts=[cri.Mount(container_path=f"{MOUNTS}/GPU-1")]),
    visible(MOUNTS.encode(), mounts=[cri.Mount(container_path=f"{MOUNTS}/GPU-1")]),
    visible(b"GPU-11111111-2222-3333-4444-555555555555"),
    visible(b"GPU-1a,MIG-2b"),
    visible(b"MIG-GPU-1a/1/0"),
    visible(b"GPU-0a1b::3"),
    visible(b"void", devices=NODES),
]
ASKED_FOR = [
    cri.ContainerConfig(),
    visible(b"all"),
    visible(b"0,1"),
    visible(b"GPU-1,all"),
    visible(b"GPU-1,GPU-"),
    visible(b"all", devices=NODES),
    cri.ContainerConfig(annotations={"cdi.k8s.io/x": "other.com/nvidia.com/gpu=0"}),
    visible(b""),
    visible(b"\xff"),
    cri.ContainerConfig(devices=[cri.Device(container_path="/dev/fuse")]),
    cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name="other.com/gpu=0")]),
    cri.ContainerConfig(envs=[cri.KeyValue(key="OTHER", value=b"GPU-1a")]),
]


@pytest.mark.parametrize("config", [*ASKED_FOR, *SUPPLIED])
def test_cards_are_hidden_whatever_the_container_says(config: cri.ContainerConfig) -> None:
    assert given(HIDE, config) == (None if config.envs and config.envs[0].value == b"void" else "void")


def test_a_configured_namespace_is_exempt() -> None:
    assert decide_hidden(HIDE, request(visible(b"all"), "kube-system")) is None


@pytest.mark.parametrize("config", SUPPLIED)
def test_beside_a_device_plugin_what_kubelet_supplied_is_left_alone(config: cri.ContainerConfig) -> None:
    assert given(COEXIST, config) is None


@pytest.mark.parametrize("config", ASKED_FOR)
def test_beside_a_device_plugin_what_kubelet_did_not_supply_is_hidden(config: cri.ContainerConfig) -> None:
    assert given(COEXIST, config) == "void"


def test_a_pods_own_value_does_not_replace_a_device_plugins() -> None:
    assert given(COEXIST, visible(b"GPU-1", b"all")) == "GPU-1"
    assert given(COEXIST, visible(b"GPU-1", b"GPU-2")) == "GPU-1"


def test_a_variable_that_is_given_twice_counts_in_no_order() -> None:
    """Runtimes differ on which of two they use."""
    assert given(HIDE, visible(b"all", b"void")) == "void"


@pytest.mark.parametrize("config", [*ASKED_FOR, *SUPPLIED])
def test_proxy_and_hook_server_judge_a_value_alike(config: cri.ContainerConfig) -> None:
    shown = Container(
        annotations=config.annotations,
        env=tuple(EnvVar(env.key, env.value.decode("utf-8", "replace")) for env in config.envs),
        devices=tuple(Device(device.container_path, device.host_path) for device in config.devices),
        cdi_devices=tuple(device.name for device in config.CDI_devices),
    )
    adjustment = Nvidia().hide(shown, coexist=True)
    if not config.mounts:  # a hook server does not see what is mounted
        assert (adjustment.env[0].value if adjustment.env else None) == given(COEXIST, config)
