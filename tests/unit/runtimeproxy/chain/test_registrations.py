import json
from typing import Any

import pytest
from msgspec import convert

from hooks.model.container import Container, Device, EnvVar
from hooks.vendors.nvidia.vendor import Nvidia
from lading.errors import ConfigError
from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.call.calls import Stage
from runtimeproxy.chain.registrations import (
    FailurePolicy,
    HideUnassigned,
    Registration,
    Supplied,
    clash,
    decide_hidden,
    parse_registration,
)

KOORDINATOR = {"remote-endpoint": "/var/run/koordlet/koordlet.sock", "runtime-hooks": ["PreCreateContainer"]}
FULL = {
    "remote-endpoint": "unix:///run/lading/hooks.sock",
    "failure-policy": "Ignore",
    "runtime-hooks": ["PreCreateContainer", "PostStopPodSandbox"],
    "annotation-prefixes": ["lading.dev/"],
    "deadlines": {"PreCreateContainer": 30},
    "env-values": ["NCCL_IB_HCA"],
    "static-adjustments": {
        "hide-unassigned": [
            {
                "env": {"NVIDIA_VISIBLE_DEVICES": "void"},
                "exempt-namespaces": ["kube-system"],
                "supplied": {"device-prefixes": ["/dev/nvidia"], "values": ["void"], "value-prefixes": ["GPU-"]},
            }
        ]
    },
}
HIDE = {"env": {"NVIDIA_VISIBLE_DEVICES": "void"}}
STRICT = HideUnassigned(env={"NVIDIA_VISIBLE_DEVICES": "void"}, exempt_namespaces=frozenset({"kube-system"}))
COEXIST = HideUnassigned(env=STRICT.env, supplied=convert(Nvidia().supplied, Supplied))


def hides(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"static_adjustments": {"hide-unassigned": list(entries)}, "annotation_prefixes": ["x/"]}


def parse(**changes: Any) -> Registration:
    file = {**KOORDINATOR, **{key.replace("_", "-"): value for key, value in changes.items()}}
    return parse_registration(json.dumps(file).encode(), "10.json")


def test_koordinators_three_fields_are_enough_and_the_policy_is_fail() -> None:
    registration = parse()
    assert registration.policy is FailurePolicy.FAIL
    assert registration.endpoint == "/var/run/koordlet/koordlet.sock"
    assert registration.adjusts(Stage.CREATE_CONTAINER)
    assert not registration.observes(Stage.CREATE_CONTAINER)
    assert registration.deadline_s("PreCreateContainer") == 2
    assert registration.wants(())


def test_every_field_is_read() -> None:
    registration = parse_registration(json.dumps(FULL).encode(), "10.json")
    assert registration.endpoint == "/run/lading/hooks.sock"
    assert registration.policy is FailurePolicy.IGNORE
    assert registration.observes(Stage.STOP_POD_SANDBOX)
    assert registration.deadline_s("PreCreateContainer") == 30
    assert registration.env_values == {"NCCL_IB_HCA"}
    (hide,) = registration.hide_unassigned
    assert hide.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert hide.exempt_namespaces == {"kube-system"}
    assert hide.supplied == Supplied(device_prefixes=("/dev/nvidia",), values=("void",), value_prefixes=("GPU-",))


def test_an_older_hook_server_says_it_as_one_object_and_nothing_counts_as_supplied() -> None:
    (hide,) = parse(static_adjustments={"hide-unassigned": HIDE}, annotation_prefixes=["x/"]).hide_unassigned
    assert hide.env == HIDE["env"]
    assert hide.supplied == Supplied()


def test_prefixes_say_who_is_asked_and_what_is_claimed() -> None:
    mine = parse(annotation_prefixes=["lading.dev/gpus"])
    assert mine.wants(["other", "lading.dev/gpus.train"])
    assert not mine.wants(["lading.dev/vfs"])
    assert mine.claims("lading.dev/gpus")
    assert not mine.claims("lading.dev/vfs")


def test_a_registration_for_every_pod_claims_no_annotation() -> None:
    assert not parse().claims("lading.dev/gpus")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"failure_polcy": "Fail"}, ["failure-polcy"]),
        ({"failure_policy": "fail"}, ["failure-policy", "fail"]),
        ({"failure_policy": ""}, ["failure-policy"]),
        ({"runtime_hooks": ["PreCreateContainerHook"]}, ["runtime-hooks[0]", "PreCreateContainerHook"]),
        ({"runtime_hooks": []}, ["runtime-hooks"]),
        ({"runtime_hooks": "PreCreateContainer"}, ["runtime-hooks"]),
        ({"remote_endpoint": "hooks.sock"}, ["remote-endpoint", "hooks.sock"]),
        ({"remote_endpoint": "tcp://1.2.3.4:5"}, ["remote-endpoint", "tcp://1.2.3.4:5"]),
        ({"remote_endpoint": "/run/../etc/x"}, ["remote-endpoint", "/run/../etc/x"]),
        ({"remote_endpoint": "/" + "x" * 107}, ["remote-endpoint", "107"]),
        ({"annotation_prefixes": []}, ["annotation-prefixes"]),
        ({"annotation_prefixes": [""]}, ["annotation-prefixes"]),
        ({"deadlines": {"PreStartContainer": 1}}, ["deadlines.PreStartContainer"]),
        ({"deadlines": {"PreCreateContainer": 0}}, ["deadlines.PreCreateContainer", "0"]),
        ({"deadlines": {"PreCreateContainer": 601}}, ["deadlines.PreCreateContainer", "601"]),
        ({"deadlines": {"PreCreateContainer": "2s"}}, ["deadlines"]),
        ({"env_values": ["A=B"]}, ["env-values"]),
        ({"static_adjustments": {"hide-unassigned": HIDE}}, ["hide-unassigned", "annotation-prefixes"]),
        ({"static_adjustments": {"hide_unassigned": HIDE}}, ["static-adjustments", "hide_unassigned"]),
        ({"static_adjustments": {"hide-unassigned": {"env": {}}}, "annotation_prefixes": ["x/"]}, ["env"]),
        ({"static_adjustments": {"hide-unassigned": {"env": {"": "v"}}}, "annotation_prefixes": ["x/"]}, ["env"]),
        (hides({**HIDE, "env": {"A": "b\0"}}), ["env"]),
        (hides(*[HIDE] * 9), ["hide-unassigned"]),
        (hides({**HIDE, "supplied": {"value-prefixes": [""]}}), ["hide-unassigned", "value-prefixes"]),
        (hides({**HIDE, "supplied": {"value-prefixes": ["x" * 257]}}), ["value-prefixes"]),
        (hides({**HIDE, "supplied": {"value-prefixes": ["x"] * 17}}), ["value-prefixes"]),
        (hides({**HIDE, "supplied": {"pattern": "(a*)*"}}), ["supplied", "pattern"]),
    ],
)
def test_what_is_wrong_is_named_by_file_key_and_value(changes: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse(**changes)
    for name in ["10.json", *names]:
        assert name in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b'{"deadlines": NaN}']
)
def test_what_is_no_registration_is_an_error_and_no_crash(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"10\.json"):
        parse_registration(content, "10.json")


def test_one_endpoint_is_asked_once_a_stage() -> None:
    first = parse_registration(json.dumps(KOORDINATOR).encode(), "10.json")
    second = parse_registration(json.dumps({**KOORDINATOR, "remote-endpoint": "/run/other.sock"}).encode(), "20.json")
    again = parse_registration(json.dumps(KOORDINATOR).encode(), "30.json")
    assert clash(second, [first]) is None
    error = clash(again, [first, second])
    assert error is not None
    assert "30.json" in str(error)
    assert "10.json" in str(error)


def test_one_endpoint_may_have_other_stages_in_another_file() -> None:
    first = parse()
    assert clash(parse(runtime_hooks=["PostCreateContainer"]), [first]) is None


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
    assert given(STRICT, config) == (None if config.envs and config.envs[0].value == b"void" else "void")


def test_a_configured_namespace_is_exempt() -> None:
    assert decide_hidden(STRICT, request(visible(b"all"), "kube-system")) is None


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
    assert given(STRICT, visible(b"all", b"void")) == "void"


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
