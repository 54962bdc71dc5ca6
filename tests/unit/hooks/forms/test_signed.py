import json
import time
from typing import Any

import pytest

from hooks.forms.signed import MAX_BYTES, MAX_DEPTH, parse_central
from hooks.model.assignment import Assignment, ContainerRequest, Form, GpuRequest, Refusal, VfRequest
from hooks.model.attachment import VfConfig, VfSettings
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.vocabulary import PciAddress, PodUid

POD = PodUid("5f0d2c61-0000-4000-8000-000000000001")
UUID = "GPU-00000001-2222-3333-4444-555555555555"
MIG = "MIG-00000001-2222-3333-4444-555555555555"


def assignment(**changes: Any) -> dict[str, Any]:
    return {"v": 1, "pod": POD, "node": "n1", "gen": 7, "containers": {}, **changes}


def with_gpu(**changes: Any) -> dict[str, Any]:
    return assignment(containers={"train": {"gpus": [{"uuid": UUID, "bdf": "0000:1b:00.0", **changes}]}})


def with_vf(**changes: Any) -> dict[str, Any]:
    return assignment(containers={"train": {"vfs": [{"bdf": "0000:18:00.2", **changes}]}})


def parse(value: Any) -> Assignment | Refusal:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return parse_central(text, pod=POD, node="n1", form=Form.UNSIGNED)


def refused(value: Any, reason: Reason = Reason.ANNOTATION_MALFORMED) -> str:
    result = parse(value)
    assert isinstance(result, Refusal), result
    assert result.reason == reason
    result.message.encode()
    assert len(result.message) < 600
    return result.message


def test_the_form_of_the_reference() -> None:
    result = parse(
        assignment(
            containers={
                "train": {
                    "gpus": [{"uuid": UUID, "bdf": "00000000:1B:00.0"}],
                    "vfs": [{"bdf": "0000:18:00.2", "pf": "0000:18:00.0", "ifname": "rdma0"}],
                },
                "side": {"gpus": [{"uuid": UUID, "bdf": "0000:1b:00.0", "memory_mib": 8138, "core_percent": 30}]},
                "mig": {"gpus": [{"uuid": MIG}]},
                "none": {},
            }
        )
    )
    bdf = PciAddress("0000:1b:00.0")
    assert result == Assignment(
        form=Form.UNSIGNED,
        pod=POD,
        node="n1",
        gen=7,
        containers={
            "train": ContainerRequest(
                gpus=(GpuRequest(name=UUID, bdf=bdf),),
                vfs=(VfRequest(name="0000:18:00.2", pf=PciAddress("0000:18:00.0"), ifname="rdma0"),),
            ),
            "side": ContainerRequest(gpus=(GpuRequest(name=UUID, bdf=bdf, memory_mib=8138, core_percent=30),)),
            "mig": ContainerRequest(gpus=(GpuRequest(name=MIG),)),
            "none": ContainerRequest(),
        },
    )
    assert result.for_container("another").empty


def test_how_a_vf_is_to_be_set() -> None:
    result = parse(with_vf(netdev=True, mac="02:00:5E:10:00:01", vlan=0, mtu=9000, of_a_newer_central=[]))
    assert isinstance(result, Assignment)
    (vf,) = result.for_container("train").vfs
    assert vf == VfRequest(
        name="0000:18:00.2", netdev=True, settings=VfSettings(config=VfConfig(mac="02:00:5e:10:00:01", vlan=0), mtu=9000)
    )
    assert parse(with_vf(netdev=None, mac=None)) == parse(with_vf())


def test_what_a_pod_takes_of_a_card_at_one_time() -> None:
    result = parse(with_gpu(memory_mib=8138, core_percent=30, pod_memory_mib=8138, pod_core_percent=100))
    assert isinstance(result, Assignment)
    (gpu,) = result.for_container("train").gpus
    assert (gpu.pod_memory_mib, gpu.pod_core_percent) == (8138, 100)
    for other in (with_gpu(memory_mib=1, pod_core_percent=1), with_gpu(core_percent=1, pod_memory_mib=1)):
        assert isinstance(parse(other), Assignment)
    assert parse(with_gpu(pod_memory_mib=None, pod_core_percent=None)) == parse(with_gpu())


def test_a_share_with_a_limit_and_an_isolation() -> None:
    result = parse(with_gpu(memory_mib=8138, core_limit_percent=80, isolation="tokens"))
    assert isinstance(result, Assignment)
    (gpu,) = result.for_container("train").gpus
    assert (gpu.core_limit_percent, gpu.isolation) == (80, IsolationName.TOKENS)


def test_unknown_keys_are_ignored_everywhere() -> None:
    value = with_gpu(partition=3)
    value |= {"since": 1.5, "nested": {"deep": [[[{"a": None}]]]}}
    value["containers"]["train"]["later"] = True
    assert parse(value) == parse(with_gpu())


@pytest.mark.parametrize("version", [2, 0, True, 1.0, "1", None, [1]])
def test_another_version(version: object) -> None:
    refused(assignment(v=version), Reason.ASSIGNMENT_VERSION)


def test_no_version() -> None:
    refused({"pod": POD}, Reason.ASSIGNMENT_VERSION)


def test_for_another_pod_or_node() -> None:
    assert "'other'" in refused(assignment(pod="other"), Reason.ASSIGNMENT_OTHER_POD)
    assert "'n2'" in refused(assignment(node="n2"), Reason.ASSIGNMENT_OTHER_NODE)


def test_a_node_without_a_name_is_nobodys() -> None:
    result = parse_central(json.dumps(assignment(node="", pod="")), pod=PodUid(""), node="", form=Form.SIGNED)
    assert isinstance(result, Refusal)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "annotation"),
        (assignment(pod=None), "pod"),
        (assignment(gen=-1), "gen"),
        (assignment(gen=True), "gen"),
        (assignment(gen=1.0), "gen"),
        (assignment(gen="7"), "gen"),
        (assignment(gen=2**63), "gen"),
        (assignment(containers=[]), "containers"),
        (assignment(containers={"Train": {}}), "'Train'"),
        (assignment(containers={"a.b": {}}), "'a.b'"),
        (assignment(containers={"train": None}), "containers.train"),
        (assignment(containers={"train": {"gpus": {}}}), "containers.train.gpus"),
        (assignment(containers={"train": {"gpus": ["GPU-1"]}}), "containers.train.gpus[0]"),
        (assignment(containers={"train": {"gpus": [{}]}}), "containers.train.gpus[0].uuid"),
        (with_gpu(uuid="0"), "containers.train.gpus[0].uuid"),
        (with_gpu(uuid="/dev/nvidia0"), "/dev/nvidia0"),
        (with_gpu(bdf="/dev/../etc/shadow"), "/dev/../etc/shadow"),
        (with_gpu(bdf=7), "containers.train.gpus[0].bdf"),
        (with_gpu(memory_mib=0), "containers.train.gpus[0].memory_mib"),
        (with_gpu(memory_mib=8138.0), "containers.train.gpus[0].memory_mib"),
        (with_gpu(memory_mib="8Gi"), "containers.train.gpus[0].memory_mib"),
        (with_gpu(memory_mib=True), "containers.train.gpus[0].memory_mib"),
        (with_gpu(memory_mib=2**31), "containers.train.gpus[0].memory_mib"),
        (with_gpu(core_percent=101), "containers.train.gpus[0].core_percent"),
        (with_gpu(core_percent=0), "containers.train.gpus[0].core_percent"),
        (with_gpu(uuid=MIG, memory_mib=1), "containers.train.gpus[0]"),
        (with_gpu(pod_memory_mib=8138), "containers.train.gpus[0]"),
        (with_gpu(pod_core_percent=30), "containers.train.gpus[0]"),
        (with_gpu(uuid=MIG, pod_memory_mib=8138), "containers.train.gpus[0]"),
        (with_gpu(memory_mib=8138, pod_memory_mib=8137), "containers.train.gpus[0].pod_memory_mib"),
        (with_gpu(memory_mib=8138, pod_memory_mib=2**31), "containers.train.gpus[0].pod_memory_mib"),
        (with_gpu(memory_mib=8138, pod_memory_mib=8138.0), "containers.train.gpus[0].pod_memory_mib"),
        (with_gpu(memory_mib=8138, pod_memory_mib=True), "containers.train.gpus[0].pod_memory_mib"),
        (with_gpu(core_percent=1, pod_memory_mib=0), "containers.train.gpus[0].pod_memory_mib"),
        (with_gpu(core_percent=30, pod_core_percent=29), "containers.train.gpus[0].pod_core_percent"),
        (with_gpu(core_percent=30, pod_core_percent=101), "containers.train.gpus[0].pod_core_percent"),
        (with_gpu(core_percent=30, pod_core_percent="30"), "containers.train.gpus[0].pod_core_percent"),
        (with_gpu(core_limit_percent=30), "containers.train.gpus[0]"),
        (with_gpu(isolation="tokens"), "containers.train.gpus[0]"),
        (with_gpu(core_percent=30, core_limit_percent=29), "containers.train.gpus[0].core_limit_percent"),
        (with_gpu(core_percent=30, core_limit_percent=101), "containers.train.gpus[0].core_limit_percent"),
        (with_gpu(core_percent=30, isolation="trust"), "containers.train.gpus[0].isolation"),
        (with_vf(bdf=None), "containers.train.vfs[0].bdf"),
        (with_vf(bdf="mlx5_1"), "containers.train.vfs[0].bdf"),
        (with_vf(pf="mlx5_0"), "containers.train.vfs[0].pf"),
        (with_vf(ifname="../eth0"), "containers.train.vfs[0].ifname"),
        (with_vf(ifname=7), "containers.train.vfs[0].ifname"),
        (with_vf(netdev=1), "containers.train.vfs[0].netdev"),
        (with_vf(netdev=False, vlan=7), "containers.train.vfs[0].netdev"),
        (with_vf(vlan=4095), "containers.train.vfs[0].vlan is 4095"),
        (with_vf(addresses=["10.0.0.2"]), "containers.train.vfs[0].addresses[0]"),
        (with_vf(routes=[{"to": "10.1.0.1/16"}]), "containers.train.vfs[0].routes[0].to"),
        (with_vf(min_tx_rate=2, max_tx_rate=1), "containers.train.vfs[0]: min_tx_rate"),
    ],
)
def test_the_refusal_names_the_path(value: Any, path: str) -> None:
    assert path in refused(value)


@pytest.mark.parametrize("key", ["pod", "node", "gen", "containers"])
def test_a_missing_key(key: str) -> None:
    value = assignment()
    del value[key]
    assert f"{key} is missing" in refused(value)


def test_one_device_twice_in_one_container() -> None:
    value = with_gpu()
    value["containers"]["train"]["gpus"].append({"uuid": UUID.lower(), "memory_mib": 5})
    assert "gpus[1]" in refused(value)
    value = with_vf()
    value["containers"]["train"]["vfs"].append({"bdf": "00000000:18:00.2"})
    assert "vfs[1]" in refused(value)
    value = with_gpu()
    value["containers"]["other"] = value["containers"]["train"]
    assert isinstance(parse(value), Assignment)  # containers of one pod may share


def around(text: str) -> str:
    """Return a valid assignment with this as the value of an unknown key."""
    return json.dumps(assignment(x="@")).replace('"@"', text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "\ufeff{}",
        json.dumps(assignment()) + "{}",
        around("NaN"),
        around("-Infinity"),
        around("1e309"),
        around("[" + "9" * 5000 + "]"),
        around("1" * 20),
        around('{"a":1,"a":2}'),
        around('"\\ud800"'),
        around('{"\\udfff":1}'),
        around('"\ud800"'),
        around("[" * MAX_DEPTH + "]" * MAX_DEPTH),
        json.dumps(assignment())[:-1] + ',"gen":8}',
    ],
)
def test_what_two_readers_could_understand_differently(text: str) -> None:
    refused(text)


def test_brackets_in_strings_are_no_depth_and_surrogate_pairs_are_text() -> None:
    assert isinstance(parse(around('"\\ud83d\\ude00"')), Assignment)
    assert isinstance(parse(around(json.dumps('\\"[[' + "[{" * 500))), Assignment)
    assert isinstance(parse(around("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))), Assignment)


def test_the_size_is_bounded_in_bytes_to_the_byte() -> None:
    def padded(size: int) -> str:
        text = around('"é"')
        return text.replace("é", "é" + "x" * (size - len(text.encode())))

    assert isinstance(parse(padded(MAX_BYTES - 1)), Assignment)
    assert isinstance(parse(padded(MAX_BYTES)), Assignment)
    refused(padded(MAX_BYTES + 1))


def with_two_vfs(one: dict[str, Any], other: dict[str, Any], *, containers: tuple[str, str]) -> dict[str, Any]:
    entries: dict[str, Any] = {name: {"vfs": []} for name in containers}
    for name, vf in zip(containers, (one, other), strict=True):
        entries[name]["vfs"].append(vf)
    return assignment(containers=entries)


@pytest.mark.parametrize("containers", [("train", "train"), ("init", "train")])
def test_a_name_in_a_pod_is_one_vfs(containers: tuple[str, str]) -> None:
    one, other = {"bdf": "0000:18:00.2", "ifname": "rdma0"}, {"bdf": "0000:18:00.3", "ifname": "rdma0"}
    message = refused(with_two_vfs(one, other, containers=containers))
    assert f"containers.{containers[1]}.vfs" in message
    assert isinstance(parse(with_two_vfs(one, other | {"ifname": "rdma1"}, containers=containers)), Assignment)
    assert isinstance(parse(with_two_vfs({"bdf": one["bdf"]}, {"bdf": other["bdf"]}, containers=containers)), Assignment)


@pytest.mark.parametrize("otherwise", [{"ifname": "rdma1"}, {"mtu": 9000}, {"netdev": False}])
def test_a_vf_that_containers_share_is_one_and_the_same(otherwise: dict[str, Any]) -> None:
    """Check both orders in which containers may be created: the pod's device is the same."""
    vf = {"bdf": "0000:18:00.2", "pf": "0000:18:00.0", "ifname": "rdma0"}
    assert isinstance(parse(with_two_vfs(vf, dict(vf), containers=("init", "train"))), Assignment)
    assert "containers.train.vfs[0]" in refused(with_two_vfs(vf, vf | otherwise, containers=("init", "train")))


def test_many_devices_are_read_in_bounded_time() -> None:
    gpus = [{"uuid": f"GPU-{i:08x}-2222-3333-4444-555555555555"} for i in range(4000)]
    started = time.process_time()
    assert isinstance(parse(assignment(containers={"train": {"gpus": gpus}})), Assignment)
    assert time.process_time() - started < 1
