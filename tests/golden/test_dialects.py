"""Read the pods of other systems in tests/golden/dialects as central does, and compare with each system's expect.yaml.

The verdict of a file is `accept`, `setting` (accepted with the file's settings), `refuse` (by name) or `none` (no request).
CONTRADICTED lists where central differs on purpose: such a pod is refused by name.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from central.request.dialects.options import DialectName, DialectOptions
from central.request.model import ContainerRequest, DeviceRequest, MalformedRequest, RdmaPolicy, Scope
from central.request.parse import Dialects, Request, mentions_devices, parse_request
from central.request.pod import Pod, roles_of
from central.state.observed_pods import ObservedPods
from lading.vocabulary import PodUid

FOLDER: Final = Path(__file__).parent / "dialects"
NO_CARD_FILTER: Final = "central has no choice of cards by parts of a model's name, by exclusion or by UUID"
# File → why central refuses the pod although the file expects a request.
CONTRADICTED: Final = {
    "hami/h08-types.yaml": NO_CARD_FILTER,
    "hami/h09-one-uuid.yaml": NO_CARD_FILTER,
    "hami/h12-mig-mode.yaml": "an amount of memory does not say which MIG profile; the file has this as its alternative",
    "kubeshare/s07-model.yaml": NO_CARD_FILTER,
}
# File → why central reads the pod although the file expects a refusal.
READ_ANYWAY: Final = {
    "hami/hx3-node-name.yaml": "a bound pod looks the same; the policy lading-requests refuses nodeName when a pod is created",
}
OPTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "nvidia": {},
    "hami": {},
    "gpushare": {},
    "koordinator": {},
    "volcano": {},
    "kai": {"enabled": ["kai", "nvidia"]},
    "kubeshare": {},
    "sriov-multus": {"enabled": ["vf-pools"], "vf_pools": ["nvidia.com/sriov_rdma"]},
}
SETTINGS: Final = {
    "nvidia.replicas": "nvidia_replicas",
    "gpushare.unit": "gpushare_unit",
    "gpushare.ack": "gpushare_ack",
    "sriov.pools": "vf_pools",
}


def files() -> Iterator[tuple[str, dict[str, Any]]]:
    for expected in sorted(FOLDER.glob("*/expect.yaml")):
        for file, expect in yaml.safe_load(expected.read_text()).items():
            yield f"{expected.parent.name}/{file}", expect


CASES: Final = dict(files())
PODS: Final = {name: expect for name, expect in CASES.items() if expect["verdict"] != "not-a-pod"}


def read(file: str) -> Pod:
    return msgspec.convert(yaml.safe_load((FOLDER / file).read_text()), Pod, strict=False)


def dialects(system: str, settings: Mapping[str, Any]) -> Dialects:
    options: dict[str, Any] = {"enabled": [system], **OPTIONS[system]}
    for key, value in settings.items():
        if key in SETTINGS:
            options[SETTINGS[key]] = list(value) if key == "sriov.pools" else value
        elif key == "nvidia.com/gpu":
            options["nvidia_gpu"] = {"*": value}
    return Dialects(msgspec.convert(options, DialectOptions))


def parsed(file: str, expect: Mapping[str, Any]) -> Request:
    return parse_request(read(file), dialects(file.partition("/")[0], expect.get("settings", {})))


def shown(one: ContainerRequest, profile: str) -> dict[str, Any]:
    """Return the request of a container as expect.yaml writes it."""
    result: dict[str, Any] = {"mig": {"profile": profile, "count": one.gpus}} if profile and one.gpus else {}
    result |= {"gpus": one.gpus} if one.gpus and not profile else {}
    if one.share is not None:
        amounts = msgspec.to_builtins(one.share)
        result["share"] = {key: amount for key, amount in amounts.items() if amount is not None}
    return result | ({"vfs": one.vfs} if one.vfs else {})


def test_every_file_is_listed() -> None:
    on_disk = {f"{one.parent.name}/{one.name}" for one in FOLDER.glob("*/*.yaml") if one.name != "expect.yaml"}
    assert on_disk == CASES.keys()
    assert {*CONTRADICTED, *READ_ANYWAY} <= PODS.keys()
    assert len(PODS) > 90


@pytest.mark.parametrize("file", PODS)
def test_a_pod_of_another_system(file: str) -> None:
    expect = PODS[file]
    request = parsed(file, expect)
    refused = expect["verdict"] == "refuse" if file not in READ_ANYWAY else False
    if refused or file in CONTRADICTED:
        assert isinstance(request, MalformedRequest), request
        assert "cannot use" in request.message
        assert len(request.message) < 400
    elif expect["verdict"] == "none":
        assert request is None
    elif file in READ_ANYWAY:
        assert isinstance(request, DeviceRequest), request
    else:
        assert isinstance(request, DeviceRequest), request
        check_request(file, request, expect)


def check_request(file: str, request: DeviceRequest, expect: Mapping[str, Any]) -> None:
    wanted = {name: amounts for name, amounts in expect["containers"].items() if amounts}
    assert {one.name: shown(one, request.mig_profile) for one in request.containers} == wanted
    roles = dict(roles_of(read(file)))
    assert {one.name: roles[one.name] for one in request.containers} == {one.name: one.role for one in request.containers}
    pod = expect.get("pod", {})
    assert (request.isolation or "") == pod.get("isolation", "")
    assert request.scope == (pod.get("scope") or Scope.ANY)
    assert request.rdma_policy == pod.get("rdma_policy", RdmaPolicy.NEAREST)
    assert (request.partition or "") == pod.get("partition", "")
    assert request.same_card is pod.get("same_card", False)


@pytest.mark.parametrize("file", PODS)
def test_central_keeps_what_the_dialect_reads_of_a_waiting_pod(file: str) -> None:
    """Read the pod as the watch keeps it: without the annotations that no dialect reads."""
    found, pod = dialects(file.partition("/")[0], PODS[file].get("settings", {})), read(file)
    observed = ObservedPods(lambda uid: False, found)
    annotations = {**pod.metadata.annotations, "other.example/large": "x"}
    spec = msgspec.structs.replace(pod.spec, node_name="")
    metadata = msgspec.structs.replace(pod.metadata, uid=PodUid("u"), annotations=annotations)
    observed.changed(msgspec.structs.replace(pod, metadata=metadata, spec=spec))
    kept = observed.get(PodUid("u"))
    assert kept is not None
    assert "other.example/large" not in kept.metadata.annotations
    request = parse_request(kept, found)
    assert request == parse_request(pod, found)
    assert mentions_devices(kept, found) or not isinstance(request, DeviceRequest)


def test_a_file_that_is_no_pod() -> None:
    assert [file for file, expect in CASES.items() if expect["verdict"] == "not-a-pod"] == ["kubeshare/s11-sharepod.yaml"]


# ---- dialects beside one another


def with_limits(*limits: dict[str, Any], scheduler: str = "lading", **metadata: Any) -> Pod:
    containers = [{"name": f"c{number}", "resources": {"limits": one}} for number, one in enumerate(limits)]
    spec = {"schedulerName": scheduler, "containers": containers}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "n", **metadata}, "spec": spec}, Pod)


def enabled(*names: str, **options: Any) -> Dialects:
    return Dialects(msgspec.convert({"enabled": names, **options}, DialectOptions))


def message(pod: Pod, found: Dialects) -> str:
    request = parse_request(pod, found)
    assert isinstance(request, MalformedRequest), request
    return request.message


def test_two_dialects_in_one_pod_are_refused_and_named() -> None:
    both = enabled("hami", "gpushare")
    refused = message(with_limits({"nvidia.com/gpu": 1}, {"aliyun.com/gpu-mem": 2}), both)
    for named in ("nvidia.com/gpu (hami)", "aliyun.com/gpu-mem (gpushare)"):
        assert named in refused
    own = message(with_limits({"nvidia.com/gpu": 1}, {"lading.dev/gpu-memory": "8Gi"}), both)
    assert "lading.dev/gpu-memory (lading)" in own
    refining = message(with_limits({"nvidia.com/gpu": 1}, annotations={"lading.dev/topology": "numa"}), both)
    assert "lading.dev/topology (lading)" in refining
    zero = parse_request(with_limits({"nvidia.com/gpu": 0}, {"lading.dev/gpu": 1}), both)
    assert isinstance(zero, DeviceRequest)


def test_one_setting_says_who_reads_the_shared_name() -> None:
    owners = {"koord-scheduler": "koordinator", "*": "nvidia"}
    found = enabled("nvidia", "koordinator", "hami", nvidia_gpu=owners)
    for scheduler, name in (("koord-scheduler", DialectName.KOORDINATOR), ("lading", DialectName.NVIDIA)):
        pod = with_limits({"nvidia.com/gpu": 1}, scheduler=scheduler)
        assert [one.name for one in found.claims(pod)] == [name]
    conflict = message(with_limits({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}), found)
    assert "nvidia.com/gpumem (hami)" in conflict


def test_vfs_of_a_pool_may_come_beside_cards() -> None:
    found = enabled("nvidia", "vf-pools", vf_pools=["nvidia.com/sriov_rdma"])
    request = parse_request(with_limits({"nvidia.com/gpu": 2, "nvidia.com/sriov_rdma": 2}, {"nvidia.com/sriov_rdma": 1}), found)
    assert isinstance(request, DeviceRequest)
    assert [(one.name, one.gpus, one.vfs) for one in request.containers] == [("c0", 2, 2), ("c1", 0, 1)]
    twice = message(with_limits({"lading.dev/rdma": 1, "nvidia.com/sriov_rdma": 2}), found)
    assert "nvidia.com/sriov_rdma" in twice


@pytest.mark.parametrize("file", [file for file, one in PODS.items() if file.startswith(("kubeshare/s0", "kai/a01"))])
def test_without_any_dialect_a_pod_that_would_start_without_its_card_is_refused(file: str) -> None:
    assert "central does not read pods of" in message(read(file), Dialects())


def test_without_any_dialect_resources_are_those_of_device_plugins() -> None:
    for limits in ({"nvidia.com/gpu": 1}, {"amd.com/gpu": 1}, {"aliyun.com/gpu-mem": 1}):
        assert parse_request(with_limits(limits)) is None
    beside = with_limits({"lading.dev/gpu": 1}, labels={"sharedgpu/gpu_limit": "1.0"})
    assert isinstance(parse_request(beside), DeviceRequest)


def test_a_system_that_is_not_enabled_is_refused_with_what_to_write() -> None:
    found = enabled("gpushare")
    for limits in ({"nvidia.com/gpumem": 3000}, {"koordinator.sh/gpu": 100}, {"volcano.sh/vgpu-number": 1}):
        assert "lading.dev/" in message(with_limits(limits), found)
    assert "of this maker" in message(with_limits({"huawei.com/Ascend910": 1}), found)
