from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.request.model import ContainerRequest, DeviceRequest, Policy, Role, Share
from central.request.parse import parse_request
from central.request.pod import Pod, roles_of

FILTER = msgspec.json.decode((Path(__file__).parents[3] / "golden/central/filter.json").read_bytes())


def test_a_pod_as_kube_scheduler_sends_it() -> None:
    pod = msgspec.convert(FILTER["Pod"], Pod)
    assert (pod.metadata.name, pod.metadata.namespace) == ("g2", "default")
    assert pod.metadata.uid == "72d1072d-55fb-4f4c-8b65-8cba2123c271"
    assert pod.metadata.resource_version == "357"
    assert pod.metadata.creation_timestamp == "2026-11-20T23:05:51Z"
    assert pod.metadata.deletion_timestamp is None
    assert (pod.spec.scheduler_name, pod.spec.node_name, pod.spec.priority) == ("lading", "", 0)
    assert pod.spec.preemption_policy == "PreemptLowerPriority"
    assert pod.status.phase == "Pending"
    assert roles_of(pod) == (("init", Role.INIT), ("train", Role.APP))
    share = Share(memory_mib=8192)
    assert parse_request(pod) == DeviceRequest(containers=(ContainerRequest(name="train", share=share),), policy=Policy.BINPACK)


def test_every_field_is_read() -> None:
    """Check every field under the name that Kubernetes gives it."""
    pod = msgspec.json.decode(
        b"""{"metadata": {"deletionTimestamp": "2026-11-20T23:05:51Z", "creationTimestamp": null},
             "spec": {"nodeName": "n1", "priority": -5, "preemptionPolicy": "Never",
                      "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
                      "containers": [{"name": "a", "resources": {"claims": [], "limits": {"cpu": 0.5, "x": 1, "y": "1"}}}]},
             "status": {"phase": "Failed"}}""",
        type=Pod,
    )
    assert pod.metadata.deletion_timestamp == "2026-11-20T23:05:51Z"
    assert (pod.spec.node_name, pod.spec.priority, pod.spec.preemption_policy) == ("n1", -5, "Never")
    assert roles_of(pod) == (("i", Role.INIT), ("s", Role.SIDECAR), ("a", Role.APP))
    assert pod.spec.containers[0].resources.limits == {"cpu": 0.5, "x": 1, "y": "1"}
    assert pod.status.phase == "Failed"


@pytest.mark.parametrize(
    ("condition", "unschedulable"),
    [
        ({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}, True),
        ({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}, False),
        ({"type": "PodScheduled", "status": "True"}, False),
        ({"type": "Ready", "status": "False", "reason": "Unschedulable"}, False),
    ],
)
def test_whether_kube_scheduler_found_a_node(condition: dict[str, str], unschedulable: bool) -> None:
    pod = msgspec.convert({"metadata": {}, "status": {"conditions": [condition]}}, Pod)
    assert pod.status.unschedulable == unschedulable


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"metadata": None},
        {"metadata": {"annotations": {"lading.dev/policy": 1}}},
        {"metadata": {"annotations": []}},
        {"metadata": {}, "spec": {"containers": {"name": "a"}}},
        {"metadata": {}, "spec": {"containers": [{"resources": {}}]}},
        {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"lading.dev/gpu": {"value": 1}}}}]}},
        {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"lading.dev/gpu": True}}}]}},
        {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"lading.dev/gpu": None}}}]}},
        {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": [1]}}]}},
        {"metadata": {}, "spec": {"priority": "high"}},
    ],
)
def test_a_malformed_pod_is_a_validation_error(wrong: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(wrong), type=Pod)
