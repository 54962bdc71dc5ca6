"""Test pods that bypass central: admission denies them; without the policies, the node refuses them or central notices them."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lading.log import Event
from lading.reasons import Reason
from lading.signature import sign
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, MANUAL_GPUS, TOPOLOGY
from simnode.kube_api import KubeError
from simnode.scheduling import KEY_ID, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import Seen, World, asks

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
OURS: Final = (
    *("lading-requests", "lading-assignments", "lading-bindings", "lading-manual", "lading-costly", "lading-privileged"),
)


@contextlib.contextmanager
def without_policies(world: World) -> Iterator[None]:
    """Remove the admission policies from the cluster. The API server needs a moment to notice their removal and their
    return."""
    for name in OURS:
        world.api.call("DELETE", f"{POLICIES}/{name}")
    world.cluster.eventually(lambda: not denied(world), "a pod that is let through")
    try:
        yield
    finally:
        install(world.cluster.control_plane, DEPLOY, parts=["admission"])
        world.cluster.eventually(lambda: denied(world), "a pod that is denied")


def denied(world: World) -> bool:
    """Say whether each of the policies about pods denies a pod."""
    return all(
        _denied(world, annotations, resources)
        for annotations, resources in (({}, asks(gpu=1)), ({ASSIGNMENT: "{}"}, {}), ({MANUAL_GPUS: "0"}, {}))
    )


def _denied(world: World, annotations: Mapping[str, str], resources: Mapping[str, Any]) -> bool:
    metadata = {"name": "probe", "annotations": annotations}
    spec = {"containers": [container(resources=resources)]}
    try:
        world.api.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", {"metadata": metadata, "spec": spec})
    except KubeError:
        return True
    return False


def refused(pods: Pods, name: str) -> Reason:
    """Return the reason why the node refuses the pod, from the pod's events."""
    event = pods.wait_event(name, "lading: ")
    return Reason(event.split("lading: ", 1)[1].split(": ", 1)[0])


# ---- with the policies of deploy/


def test_another_scheduler_is_denied_with_an_explanation(world: World, pods: Pods) -> None:
    with pytest.raises(KubeError, match="set schedulerName: lading"):
        world.create(pods, "wrong", gpu=1, schedulerName="default-scheduler")
    with pytest.raises(KubeError, match=r"spec\.nodeName"):
        world.create(pods, "placed", gpu=1, nodeName=world.node)


def test_a_copied_assignment_is_denied(world: World, pods: Pods) -> None:
    world.run(pods, "owner", gpu=1)
    annotations = world.api.pod("owner")["metadata"]["annotations"]
    with pytest.raises(KubeError, match="only lading-central assigns devices"):
        world.create(pods, "thief", gpu=1, annotations=annotations)


# ---- without them


def test_for_another_scheduler_no_node_has_what_is_asked(world: World, pods: Pods) -> None:
    with without_policies(world):
        world.create(pods, "wrong", gpu=1, schedulerName="default-scheduler")
        assert "Insufficient lading.dev/gpu" in world.await_refused("wrong")
    assert not world.bound("wrong")


def test_a_pod_that_was_placed_by_hand_is_refused_or_observed(world: World, pods: Pods) -> None:
    """Check a pod that names its node itself. CRI does not carry resource limits, so the node knows of the request only by an
    annotation."""
    with without_policies(world):
        world.create(pods, "quiet", gpu=1, nodeName=world.node)
        world.create(pods, "refined", gpu=1, nodeName=world.node, annotations={TOPOLOGY: "switch"})
    pods.wait_ready("quiet")
    assert world.inside(pods, "quiet") == Seen()
    assert refused(pods, "refined") is Reason.ASSIGNMENT_MISSING
    for name in ("quiet", "refined"):
        world.cluster.eventually(partial(said, world, Event.POD_UNASSIGNED, name), f"a word of central on {name}")


def said(world: World, event: Event, name: str) -> bool:
    lines = world.scheduling.leader.log.read_text().splitlines()
    return any(f"event={event} " in line and f" pod={name} " in line for line in lines)


def test_forged_and_copied_assignments_are_refused_by_the_node(world: World, pods: Pods) -> None:
    world.run(pods, "owner", gpu=1)
    annotations = dict(world.api.pod("owner")["metadata"]["annotations"])
    text, key = annotations[ASSIGNMENT], Ed25519PrivateKey.generate()
    with without_policies(world):
        copied = {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: annotations[ASSIGNMENT_SIGNATURE]}
        world.create(pods, "copied", gpu=1, nodeName=world.node, annotations=copied)
        forged = {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: sign(key, KEY_ID, text)}
        world.create(pods, "forged", gpu=1, nodeName=world.node, annotations=forged)
        world.create(pods, "unsigned", gpu=1, nodeName=world.node, annotations={ASSIGNMENT: text})
        world.create(pods, "by-hand", nodeName=world.node, annotations={MANUAL_GPUS: "7"})
    assert refused(pods, "copied") is Reason.ASSIGNMENT_OTHER_POD
    assert refused(pods, "forged") is Reason.SIGNATURE_INVALID
    assert refused(pods, "unsigned") is Reason.SIGNATURE_MISSING
    assert refused(pods, "by-hand") is Reason.FORM_NOT_ACCEPTED
    assert set(world.ledger()) == {world.uid("owner")}
    world.run(pods, *(f"rest-{n}" for n in range(7)), gpu=1)  # none of them holds anything in central's books
    world.check(pods, "owner", "rest-6")


def test_a_static_pod_with_devices_by_hand_holds_them(world: World, pods: Pods) -> None:
    """Check a static pod on a node that accepts devices by hand. The API server has a mirror of the pod, under another uid than
    the node."""
    world.lading.reconfigure_hooks(assignments=["manual"])
    static = world.cluster.static_pods / "static.json"
    name = f"static-{world.node}"
    try:
        metadata = {"name": "static", "namespace": "default", "annotations": {MANUAL_GPUS: "0,1"}}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container()]}
        static.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
        world.cluster.eventually(lambda: name in {pod["metadata"]["name"] for pod in world.api.pods()}, "its mirror")
        pods.wait_ready(name)
        assert world.inside(pods, name).gpus == tuple(sorted(world.gpus[:2]))
        world.cluster.eventually(lambda: len(world.reported()) == 1, "a report of its grant")
        assert world.uid(name) not in world.reported()
        world.lading.reconfigure_hooks(assignments=["signed"])
        world.create(pods, "all", gpu=8)
        world.await_refused("all")
        world.run(pods, "rest", gpu=6)
        assert not set(world.assigned("rest")["main"].gpus) & set(world.gpus[:2])
        world.check(pods, "rest")
        assert not world.bound("all")
        pods.delete("rest")
    finally:
        static.unlink(missing_ok=True)
        world.lading.reconfigure_hooks(assignments=["signed"])
    world.await_bound("all", within_s=60.0)
