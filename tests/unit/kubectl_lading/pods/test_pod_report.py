"""Test what is said of one pod: its assignment beside its node's grant, and what its signature is worth."""

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from central.request.parse import parse_request
from central.request.pod import DEVICES_HEALTHY
from central.search.topology import Distance
from kubectl_lading.objects import FullPod
from kubectl_lading.pods.pod_report import PodReport, SignatureState, report_pod
from kubectl_lading.pods.situation import Stand
from kubectl_lading.terminal.format import DISTANCES
from lading.kube.resource import NODE_DEVICES
from lading.nodedevices import NodeDevices
from lading.signature import load_public_keys
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, MANUAL_GPUS
from tests.fakes.small_cluster import KEY_ID, PUBLIC_PEM, Json, SmallCluster

OURS = load_public_keys({KEY_ID: PUBLIC_PEM})
OTHERS = {KEY_ID: Ed25519PrivateKey.generate().public_key()}


@pytest.fixture(scope="module")
def cluster() -> SmallCluster:
    return SmallCluster()


def report(
    cluster: SmallCluster, pod: Json, *, keys: dict[str, Ed25519PublicKey] | None = None, granted: bool = True, **status: Any
) -> PodReport:
    node = pod["spec"].get("nodeName", "")
    devices = msgspec.convert(cluster.objects[NODE_DEVICES.path(name=node)], NodeDevices) if node else None
    if devices is not None and not granted:
        devices = msgspec.structs.replace(devices, status=msgspec.structs.replace(devices.status, grants=()))
    text = pod | {"status": pod["status"] | status}
    decoded = msgspec.convert(text, FullPod)
    return report_pod(decoded, parse_request(decoded), devices, (), keys or {})


def annotated(pod: Json, **changes: str) -> Json:
    metadata = pod["metadata"]
    return pod | {"metadata": metadata | {"annotations": metadata["annotations"] | changes}}


def without(pod: Json, key: str) -> Json:
    metadata = pod["metadata"]
    kept = {name: value for name, value in metadata["annotations"].items() if name != key}
    return pod | {"metadata": metadata | {"annotations": kept}}


def test_a_running_pod_has_its_assigned_and_granted_devices(cluster: SmallCluster) -> None:
    text = report(cluster, cluster.pod("train-0"))
    (train,) = text.containers
    assert (train.name, len(train.gpus), len(train.vfs)) == ("train", 2, 2)
    assert train.gpus == train.granted_gpus
    assert set(train.vfs) == set(train.granted_vfs)
    assert sorted(train.ifnames.values()) == ["rdma0", "rdma1"]
    assert {pair.said for pair in train.pairs} == {"18 NVLinks", DISTANCES[Distance.SWITCH]}
    assert (text.stand, text.node, text.gen, text.problem) == (Stand.RUNNING, "h100-1", 1, "")


def test_assigned_devices_are_shown_before_they_are_granted(cluster: SmallCluster) -> None:
    (train,) = report(cluster, cluster.pod("train-0"), granted=False).containers
    assert len(train.gpus) == 2
    assert (train.granted_gpus, train.granted_vfs) == ((), ())


@pytest.mark.parametrize(
    ("keys", "state"), [({}, SignatureState.UNCHECKED), (OURS, SignatureState.VALID), (OTHERS, SignatureState.INVALID)]
)
def test_a_signature_is_worth_what_the_reader_can_know(
    cluster: SmallCluster, keys: dict[str, Ed25519PublicKey], state: SignatureState
) -> None:
    signature = report(cluster, cluster.pod("train-0"), keys=keys).signature
    assert signature is not None
    assert (signature.state, signature.key_id) == (state, KEY_ID)


def test_a_changed_assignment_is_not_what_was_signed(cluster: SmallCluster) -> None:
    pod = cluster.pod("train-0")
    changed = annotated(pod, **{ASSIGNMENT: pod["metadata"]["annotations"][ASSIGNMENT] + " "})
    signature = report(cluster, changed, keys=OURS).signature
    assert signature is not None
    assert signature.state is SignatureState.INVALID


def test_no_signature_and_one_that_is_none(cluster: SmallCluster) -> None:
    pod = cluster.pod("train-0")
    absent = report(cluster, without(pod, ASSIGNMENT_SIGNATURE), keys=OURS).signature
    malformed = report(cluster, annotated(pod, **{ASSIGNMENT_SIGNATURE: "ed25519:x"}), keys=OURS).signature
    assert absent is not None
    assert malformed is not None
    assert (absent.state, malformed.state) == (SignatureState.ABSENT, SignatureState.MALFORMED)


def test_an_assignment_for_another_node_is_a_problem(cluster: SmallCluster) -> None:
    pod = cluster.pod("train-0")
    moved = pod | {"spec": pod["spec"] | {"nodeName": "h100-2"}}
    assert "h100-1" in report(cluster, moved).problem
    assert report(cluster, annotated(pod, **{ASSIGNMENT: "{"})).problem


def test_a_waiting_pod_has_no_devices(cluster: SmallCluster) -> None:
    text = report(cluster, cluster.pod("next-run"))
    assert (text.stand, text.containers, text.signature) == (Stand.WAITING, (), None)
    assert "8 whole GPUs" in text.asks


def test_devices_by_hand_are_what_the_node_granted(cluster: SmallCluster) -> None:
    pod = without(without(cluster.pod("train-0"), ASSIGNMENT), ASSIGNMENT_SIGNATURE)
    text = report(cluster, annotated(pod, **{MANUAL_GPUS: "0,1"}))
    (train,) = text.containers
    assert text.by_hand == {MANUAL_GPUS: "0,1"}
    assert (train.gpus, len(train.granted_gpus)) == ((), 2)
    assert len(train.pairs) == 5


def test_the_condition_of_its_devices(cluster: SmallCluster) -> None:
    ill = {"type": DEVICES_HEALTHY, "status": "False", "message": "GPU is lost"}
    text = report(cluster, cluster.pod("train-0"), conditions=[ill])
    assert (text.healthy, text.healthy_said) == ("False", "GPU is lost")


def test_an_annotation_for_an_unknown_container_has_no_effect(cluster: SmallCluster) -> None:
    text = report(cluster, annotated(cluster.pod("train-0"), **{f"{MANUAL_GPUS}.trian": "0", f"{MANUAL_GPUS}.train": "1"}))
    assert text.without_effect == (f"{MANUAL_GPUS}.trian",)
