"""Test central's assignments, signed with a test key: each is valid only unchanged, for its own pod and its containers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from central.assignment.annotation import render_assignment
from central.request.model import Policy, Role
from central.search.fit import fit
from central.search.placement import Placement
from lading.reasons import Reason
from lading.signature import sign
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, PodUid
from simnode.cri import Pod
from simnode.daemons import LadingNode
from simnode.reported import read_status
from tests.fakes.capacities import reported_capacity, request, whole
from tests.node.conftest import StartLading, StartSite
from tests.node.site import Site, granted_in

pytestmark = pytest.mark.node

KEY_ID = "k1"
KEY = Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def running(share_lading: StartLading, tmp_path_factory: pytest.TempPathFactory) -> LadingNode:
    """Start a node with the default settings: it accepts only assignments that central signed."""
    return share_lading(hooks=trusting(tmp_path_factory.mktemp("keys")))


def trusting(folder: Path) -> dict[str, object]:
    pem = folder / "k1.pem"
    pem.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return {"assignments": ["signed"], "node_name": "n1", f"keys.{KEY_ID}": str(pem)}


def signed(text: str, *, key: Ed25519PrivateKey = KEY, key_id: str = KEY_ID) -> dict[str, str]:
    return {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: sign(key, key_id, text)}


def assignment(containers: Mapping[str, object], uid: str, /, **changes: object) -> str:
    return json.dumps({"v": 1, "pod": uid, "node": "n1", "gen": 7, "containers": containers, **changes})


def gpus(*uuids: str) -> dict[str, object]:
    return {"gpus": [{"uuid": uuid} for uuid in uuids]}


def run_assigned(site: Site, containers: Mapping[str, object], /, **changes: object) -> Pod:
    uid = str(uuid4())
    return site.kubelet.run_pod("assigned", uid=uid, annotations=signed(assignment(containers, uid, **changes)))


def test_each_container_gets_what_the_assignment_names_for_it(site: Site) -> None:
    train = {
        "gpus": [{"uuid": site.gpu(0), "bdf": "0000:1a:00.0", "of-a-newer-central": 1}, {"uuid": site.gpu(5)}],
        "vfs": [{"bdf": "0000:18:00.3", "pf": "0000:18:00.0", "ifname": "rdma0"}],
    }
    side = {"gpus": [{"uuid": site.gpu(3), "memory_mib": 8138, "core_percent": 30}]}
    pod = run_assigned(site, {"train": train, "side": side}, comment="unknown keys are ignored")
    container = pod.run_container("train")
    sight = site.see(container)
    assert sight.gpus == (site.gpu(0), site.gpu(5))
    assert sight.vfs == ("0000:18:00.3",)
    assert granted_in(container) == (sight.gpus, sight.vfs)
    shared = site.see(pod.run_container("side"))
    assert shared.gpus == (site.gpu(3),)
    assert shared.env["LADING_GPU_MEMORY_MIB"] == "8138"
    unnamed = site.see(pod.run_container("unnamed", env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert unnamed.nodes == frozenset()
    assert unnamed.env["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("profile", "divided", "instance", "capability"),
    [
        ("mig", (), "MIG-00000052-4c61-5d69-8e67-0000000a0002", "nvidia-cap183"),
        ("mig-on-demand", ("all",), "MIG-GPU-00000060-4c61-6469-6e67-00000009aabd/2g.20gb@4", "nvidia-cap35"),
    ],
)
def test_an_instance_that_central_chose_by_its_profile(
    start_site: StartSite, tmp_path: Path, profile: str, divided: tuple[str, ...], instance: str, capability: str
) -> None:
    pod = replace(request(whole("train")), mig_profile="2g.20gb")
    result = fit(reported_capacity(read_status(profile)), pod, policy=Policy.BINPACK)
    assert isinstance(result, Placement)
    hooks = {**trusting(tmp_path), "mig_cards": divided}
    site, uid = start_site(profile, hooks=hooks), str(uuid4())
    text = render_assignment(PodUid(uid), "n1", 1, result.containers, [("train", Role.APP)])
    container = site.kubelet.run_pod("instance", uid=uid, annotations=signed(text)).run_container("train")
    assert granted_in(container) == ((instance,), ())
    assert {"/dev/nvidia1", f"/dev/nvidia-caps/{capability}"} <= site.see(container).nodes


def test_a_pod_of_no_assignment_runs_without_devices(site: Site) -> None:
    with site.kubelet.pod("plain") as pod:
        assert site.see(pod.run_container()).nodes == frozenset()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"v": 2}, Reason.ASSIGNMENT_VERSION, id="version"),
        pytest.param(
            {"pod": "6c4e5a4e-0000-4000-8000-000000000000"}, Reason.ASSIGNMENT_OTHER_POD, id="copied-from-another-pod"
        ),
        pytest.param({"node": "n2"}, Reason.ASSIGNMENT_OTHER_NODE, id="other-node"),
        pytest.param({"gen": -1}, Reason.ANNOTATION_MALFORMED, id="generation"),
        pytest.param({"containers": {"main": gpus("GPU-0")}}, Reason.ANNOTATION_MALFORMED, id="half-a-uuid"),
        pytest.param({"containers": {"main": {"vfs": [{"bdf": "/dev/sda"}]}}}, Reason.ANNOTATION_MALFORMED, id="path"),
        pytest.param(
            {"containers": {"main": gpus("GPU-deadbeef-4c61-6469-6e67-000000000000")}}, Reason.DEVICE_UNKNOWN, id="no-such-gpu"
        ),
        pytest.param({"containers": {"main": {"vfs": [{"bdf": "0000:18:00.7"}]}}}, Reason.DEVICE_UNKNOWN, id="no-such-vf"),
        pytest.param(
            {"containers": {"main": {"gpus": [{"uuid": "GPU-00000001-4c61-6469-6e67-000000001efc", "bdf": "0000:1b:00.0"}]}}},
            Reason.DEVICE_UNKNOWN,
            id="a-card-that-moved",
        ),
    ],
)
def test_what_central_says_must_be_for_this_pod_on_this_node(site: Site, changes: dict[str, object], reason: Reason) -> None:
    assert site.refused(run_assigned(site, {"main": gpus(site.gpu(0))}, **changes)).reason is reason


def forge(text: str) -> dict[str, str]:
    return signed(text, key=Ed25519PrivateKey.generate())


@pytest.mark.parametrize(
    ("annotate", "reason"),
    [
        pytest.param(lambda text: {ASSIGNMENT: text}, Reason.SIGNATURE_MISSING, id="unsigned"),
        pytest.param(forge, Reason.SIGNATURE_INVALID, id="forged"),
        pytest.param(lambda text: {**signed(text), ASSIGNMENT: text + " "}, Reason.SIGNATURE_INVALID, id="edited"),
        pytest.param(lambda text: {**signed(text), ASSIGNMENT_SIGNATURE: "yes"}, Reason.SIGNATURE_INVALID, id="no-signature"),
        pytest.param(lambda text: signed(text, key_id="k2"), Reason.SIGNATURE_KEY_UNKNOWN, id="unknown-key"),
        pytest.param(lambda text: {"lading.dev/gpus": "0"}, Reason.FORM_NOT_ACCEPTED, id="by-hand"),
        pytest.param(lambda text: {**signed(text), "lading.dev/gpus": "0"}, Reason.ANNOTATION_CONFLICT, id="both-forms"),
        pytest.param(lambda text: {"lading.dev/topology": "switch"}, Reason.ASSIGNMENT_MISSING, id="bound-without-one"),
        pytest.param(
            lambda text: {ASSIGNMENT_SIGNATURE: signed(text)[ASSIGNMENT_SIGNATURE]}, Reason.ANNOTATION_MALFORMED, id="half"
        ),
    ],
)
def test_only_what_central_signed_is_believed(site: Site, annotate: Callable[[str], dict[str, str]], reason: Reason) -> None:
    uid = str(uuid4())
    text = assignment({"main": gpus(site.gpu(0))}, uid)
    pod = site.kubelet.run_pod("not-believed", uid=uid, annotations=annotate(text))
    assert site.refused(pod).reason is reason


def test_an_assignment_older_than_what_the_pod_was_granted_is_stale(site: Site) -> None:
    uid = str(uuid4())
    containers = {"first": gpus(site.gpu(0)), "second": gpus(site.gpu(1))}
    pod = site.kubelet.run_pod("stale", uid=uid, annotations=signed(assignment(containers, uid, gen=7)))
    pod.run_container("first")
    pod.config.annotations.update(signed(assignment(containers, uid, gen=6)))
    assert site.refused(pod, "second").reason is Reason.ASSIGNMENT_STALE
    pod.config.annotations.update(signed(assignment(containers, uid, gen=8)))
    assert site.see(pod.run_container("second")).gpus == (site.gpu(1),)


def test_an_existing_grant_wins_over_a_changed_assignment(site: Site) -> None:
    uid = str(uuid4())
    pod = site.kubelet.run_pod("changed", uid=uid, annotations=signed(assignment({"main": gpus(site.gpu(0))}, uid)))
    first = pod.run_container()
    pod.config.annotations.update(signed(assignment({"main": gpus(site.gpu(1))}, uid, gen=8)))
    refused = site.refused(pod, attempt=1)
    assert refused.reason is Reason.ASSIGNMENT_CHANGED
    assert site.gpu(0) in refused.message  # the card that the pod holds
    assert site.see(first).gpus == (site.gpu(0),)


def test_two_pods_are_never_given_one_card(site: Site) -> None:
    run_assigned(site, {"main": gpus(site.gpu(2))}).run_container()
    assert site.refused(run_assigned(site, {"main": gpus(site.gpu(2))})).reason is Reason.DEVICE_HELD


def test_an_assignment_without_a_signature_where_the_node_takes_those(start_site: StartSite) -> None:
    site = start_site("workstation", hooks={"assignments": ["unsigned"], "node_name": "n1"})
    uid = str(uuid4())
    text = assignment({"main": gpus(site.gpu(0))}, uid)
    with site.kubelet.pod("unsigned", uid=uid, annotations={ASSIGNMENT: text}) as pod:
        assert site.see(pod.run_container()).gpus == (site.gpu(0),)
