"""Test the admission policies of deploy/ on a real API server: which requests each of them denies, and which it must allow.

Every case runs twice: while the policies are away, when each is let through, and while they are there. So a case that would be
refused anyway (by RBAC, by the API's own validation) fails here, and a denial is the policy's. Requests are dry runs, which are
admitted like others; who asks has real credentials: an administrator's certificate, a node's, service accounts' tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pytest

from central.quota.model import LABEL_PREEMPTIBLE, LABEL_QUOTA
from central.request.pod import DEVICES_HEALTHY
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, ATTACHMENTS, GRANT, NOT_READY, REQUEST_ANNOTATIONS
from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeApi, KubeError
from tests.cluster.conftest import DEPLOY

NODE: Final = "n1"
BY_HAND: Final = "by-hand"
PRIVILEGED: Final = "privileged-allowed"
COSTLY: Final = "costly-allowed"
QUOTAS: Final = "quotas-listed"
TAINT: Final = {"key": NOT_READY, "effect": "NoSchedule"}
OTHER_TAINT: Final = {"key": "example.com/other", "effect": "NoSchedule"}  # a taint that every node here has
MERGE: Final = "application/merge-patch+json"
NODE_DEVICES: Final = "/apis/devices.lading.dev/v1alpha1/nodedevices"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Hold clients of the API server and pods: `plain` and `asking` wait, `assigned` is bound and has an assignment."""

    admin: KubeApi
    central: KubeApi
    node: KubeApi
    node_uid: str
    other_node: KubeApi
    new_node: KubeApi  # has no NodeDevices yet
    reporter: KubeApi  # a token bound to NODE
    tainted_reporter: KubeApi  # a token bound to a node that has the taint
    unbound_reporter: KubeApi

    def create(
        self,
        annotations: Mapping[str, str] | None = None,
        *,
        by: KubeApi | None = None,
        namespace: str = "default",
        **spec: Any,
    ) -> None:
        (by or self.admin).call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod("new", annotations, **spec))

    def annotate(
        self, name: str, annotations: Mapping[str, str | None], *, subresource: str = "", by: KubeApi | None = None
    ) -> None:
        path = f"/api/v1/namespaces/default/pods/{name}{subresource}?dryRun=All"
        (by or self.admin).call("PATCH", path, {"metadata": {"annotations": annotations}}, content_type=MERGE)

    def create_in_quota(self, quota: str, *, namespace: str = "default", scheduler: str = "lading") -> None:
        self.create_labelled({LABEL_QUOTA: quota}, namespace=namespace, schedulerName=scheduler)

    def create_labelled(self, labels: Mapping[str, str], *, namespace: str = "default", **spec: Any) -> None:
        made = pod("new", **spec)
        made["metadata"]["labels"] = dict(labels)
        self.admin.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", made)

    def label(self, name: str, labels: Mapping[str, str | None]) -> None:
        path = f"/api/v1/namespaces/default/pods/{name}?dryRun=All"
        self.admin.call("PATCH", path, {"metadata": {"labels": labels}}, content_type=MERGE)

    def debug(self, name: str, security: Any) -> None:
        """Add a debug container to a pod, as `kubectl debug` does."""
        debugger = {"name": "debugger", "image": "x", "securityContext": security}
        path = f"/api/v1/namespaces/default/pods/{name}/ephemeralcontainers?dryRun=All"
        self.admin.call("PATCH", path, {"spec": {"ephemeralContainers": [debugger]}}, content_type=MERGE)

    def mirror(self, annotations: Mapping[str, str], **spec: Any) -> None:
        """Create a static pod's mirror, as its kubelet does."""
        manifest = pod("static", {"kubernetes.io/config.mirror": "x", **annotations}, nodeName=NODE, **spec)
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": self.node_uid, "controller": True}
        manifest["metadata"]["ownerReferences"] = [owner]
        self.node.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", manifest)

    def bind(self, annotations: Mapping[str, str], *, by: KubeApi, legacy: bool = False) -> None:
        path = "bindings" if legacy else "pods/plain/binding"
        by.call("POST", f"/api/v1/namespaces/default/{path}?dryRun=All", binding("plain", annotations))

    def report(self, name: str, *, by: KubeApi) -> None:
        status = {"apiVersion": "devices.lading.dev/v1alpha1", "kind": "NodeDevices", "status": {"reporter": "x"}}
        path = f"{NODE_DEVICES}/{name}/status?dryRun=All&fieldManager=test&force=true"
        by.call("PATCH", path, {**status, "metadata": {"name": name}}, content_type="application/apply-patch+yaml")

    def register(self, name: str, *, by: KubeApi) -> None:
        body = {"apiVersion": "devices.lading.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name}}
        by.call("POST", f"{NODE_DEVICES}?dryRun=All", body)

    def cordon(self, *, by: KubeApi) -> None:
        change = {"metadata": {"annotations": {"lading.dev/cordon": "all"}}}
        by.call("PATCH", f"{NODE_DEVICES}/{NODE}?dryRun=All", change, content_type=MERGE)

    def change_node(self, change: Any, *, name: str = NODE, by: KubeApi | None = None) -> None:
        path = f"/api/v1/nodes/{name}?dryRun=All"
        (by or self.reporter).call("PATCH", path, change, content_type=MERGE)

    def taint(self, *taints: Any, name: str = NODE, by: KubeApi | None = None, without: Any = TAINT) -> None:
        """Add taints to those that the node has; one is taken away."""
        there = [taint for taint in self.admin.node(name)["spec"]["taints"] if taint != without]
        self.change_node({"spec": {"taints": [*there, *taints]}}, name=name, by=by)


def pod(
    name: str, annotations: Mapping[str, str] | None = None, *, limits: Mapping[str, Any] | None = None, **spec: Any
) -> Any:
    main = {"name": "main", "image": "x", "resources": {"limits": limits or {}}}
    whole = {"automountServiceAccountToken": False, "containers": [main], **spec}
    return {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": whole}


def binding(name: str, annotations: Mapping[str, str]) -> Any:
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    return {"metadata": {"name": name, "annotations": annotations}, "target": target}


def opening(security: Any, name: str = "main", limits: Mapping[str, Any] = MappingProxyType({"lading.dev/gpu": 1})) -> Any:
    return {"name": name, "image": "x", "resources": {"limits": dict(limits)}, "securityContext": security}


ONE_GPU: Final = {"lading.dev/gpu": 1}
KUBESHARE: Final = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"}
ASSIGNED: Final = {ASSIGNMENT: '{"v":1}', ASSIGNMENT_SIGNATURE: "ed25519:k:x"}
SHARE: Final[Any] = {"limits": {"lading.dev/gpu-core": 1}, "schedulerName": "lading"}
ASKING: Final[Any] = {"limits": ONE_GPU, "schedulerName": "lading"}
INIT_ASKS: Final[Any] = {"initContainers": [{"name": "prepare", "image": "x", "resources": {"limits": ONE_GPU}}]}

Case = Callable[[World], object]

# Each with what its denial has to name: the key or field that is wrong.
FORBIDDEN: Final[dict[str, tuple[str, Case]]] = {
    # Assignments
    "create-with-assignment": (ASSIGNMENT, lambda w: w.create({ASSIGNMENT: "{}"}, **ASKING)),
    "create-with-signature": (ASSIGNMENT_SIGNATURE, lambda w: w.create({ASSIGNMENT_SIGNATURE: "x"}, **ASKING)),
    "add-assignment": (ASSIGNMENT, lambda w: w.annotate("asking", {ASSIGNMENT: "{}"})),
    "add-assignment-by-status": (ASSIGNMENT, lambda w: w.annotate("asking", {ASSIGNMENT: "{}"}, subresource="/status")),
    "add-assignment-by-central": (
        ASSIGNMENT,
        lambda w: w.annotate("asking", {ASSIGNMENT: "{}"}, subresource="/status", by=w.central),
    ),
    "change-assignment": (ASSIGNMENT, lambda w: w.annotate("assigned", {ASSIGNMENT: "{}"})),
    "change-assignment-by-status": (ASSIGNMENT, lambda w: w.annotate("assigned", {ASSIGNMENT: "{}"}, subresource="/status")),
    "change-assignment-by-its-node": (
        ASSIGNMENT,
        lambda w: w.annotate("assigned", {ASSIGNMENT: "{}"}, subresource="/status", by=w.node),
    ),
    "remove-assignment": (ASSIGNMENT, lambda w: w.annotate("assigned", {ASSIGNMENT: None})),
    "remove-signature": (ASSIGNMENT_SIGNATURE, lambda w: w.annotate("assigned", {ASSIGNMENT_SIGNATURE: None})),
    "mirror-with-assignment": (ASSIGNMENT, lambda w: w.mirror({ASSIGNMENT: "{}"})),
    "create-with-grant": (GRANT, lambda w: w.create({GRANT: "{}"})),
    "add-grant": (GRANT, lambda w: w.annotate("plain", {GRANT: "{}"})),
    "add-grant-where-by-hand": (GRANT, lambda w: w.create({GRANT: "{}"}, namespace=BY_HAND)),
    "create-with-attachments": (ATTACHMENTS, lambda w: w.create({ATTACHMENTS: "[]"})),
    "add-attachments": (ATTACHMENTS, lambda w: w.annotate("plain", {ATTACHMENTS: "[]"})),
    # Bindings
    "bind-with-assignment": (ASSIGNMENT, lambda w: w.bind(ASSIGNED, by=w.admin)),
    "bind-with-assignment-legacy": (ASSIGNMENT, lambda w: w.bind(ASSIGNED, by=w.admin, legacy=True)),
    "bind-with-devices-by-hand": ("lading.dev/gpus", lambda w: w.bind({"lading.dev/gpus": "0"}, by=w.admin)),
    "bind-with-grant-by-central": (GRANT, lambda w: w.bind({**ASSIGNED, GRANT: "{}"}, by=w.central)),
    # Quotas
    "quota-of-another-team": (LABEL_QUOTA, lambda w: w.create_in_quota("speech")),
    "quota-that-the-namespace-does-not-list": ("vision", lambda w: w.create_in_quota("speech", namespace=QUOTAS)),
    "quota-of-a-pod-that-waits": (LABEL_QUOTA, lambda w: w.label("asking", {LABEL_QUOTA: "speech"})),
    "quota-of-a-bound-pod": (LABEL_QUOTA, lambda w: w.label("assigned", {LABEL_QUOTA: "default"})),
    "preemptible-of-a-bound-pod": (LABEL_PREEMPTIBLE, lambda w: w.label("assigned", {LABEL_PREEMPTIBLE: "false"})),
    # Devices that are asked for by hand
    "gpus-by-hand": ("lading.dev/gpus", lambda w: w.create({"lading.dev/gpus": "0"})),
    "gpus-by-hand-for-one": ("lading.dev/gpus.main", lambda w: w.create({"lading.dev/gpus.main": "0"})),
    "vfs-by-hand": ("lading.dev/vfs", lambda w: w.create({"lading.dev/vfs": "1"})),
    "vfs-by-hand-later": ("lading.dev/vfs", lambda w: w.annotate("plain", {"lading.dev/vfs": "1"})),
    "gpus-by-hand-by-status": (
        "lading.dev/gpus",
        lambda w: w.annotate("plain", {"lading.dev/gpus": "0"}, subresource="/status"),
    ),
    # Requests
    "another-scheduler": ("default-scheduler", lambda w: w.create(limits=ONE_GPU)),
    "another-scheduler-for-init": ("prepare", lambda w: w.create(**INIT_ASKS)),
    "node-preset": ("nodeName", lambda w: w.create(**ASKING, nodeName=NODE)),
    **{f"{key}-without-request": (key, partial(World.create, annotations={key: "x"})) for key in sorted(REQUEST_ANNOTATIONS)},
    "limit-of-a-container-without-request": (
        "lading.dev/gpu-core-limit.main",
        lambda w: w.create({"lading.dev/gpu-core-limit.main": "60"}),
    ),
    "zero-and-refining": (
        "lading.dev/policy",
        lambda w: w.create({"lading.dev/policy": "spread"}, limits={"lading.dev/gpu": 0}),
    ),
    "misspelt": ("lading.dev/toplogy", lambda w: w.create({"lading.dev/toplogy": "switch"}, **ASKING)),
    "misspelt-later": ("lading.dev/polcy", lambda w: w.annotate("asking", {"lading.dev/polcy": "spread"})),
    "policy-later-without-request": ("lading.dev/policy", lambda w: w.annotate("plain", {"lading.dev/policy": "spread"})),
    # Requests to other systems that central does not read
    "labels-of-kubeshare": ("sharedgpu/gpu_limit", lambda w: w.create_labelled(KUBESHARE, schedulerName="lading")),
    "fraction-of-kai": ("gpu-fraction", lambda w: w.create({"gpu-fraction": "0.5"}, schedulerName="lading")),
    # Containers that open every device
    "privileged": ("main", lambda w: w.create(**ASKING, containers=[opening({"privileged": True})])),
    **{
        f"adds-{name}": ("main", partial(World.create, **ASKING, containers=[opening({"capabilities": {"add": [name]}})]))
        for name in ("SYS_ADMIN", "CAP_SYS_ADMIN", "sys_admin", "ALL")
    },
    "privileged-beside-the-one-that-asks": (
        "side",
        lambda w: w.create(schedulerName="lading", **INIT_ASKS, containers=[opening({"privileged": True}, "side", {})]),
    ),
    "privileged-for-a-debugger": ("debugger", lambda w: w.debug("asking", {"privileged": True})),
    # Annotations by which a pod keeps more devices than it asks for
    **{
        f"costly-{key}": (key, partial(World.create, annotations={f"lading.dev/{key}": value}, **SHARE))
        for key, value in (("share-exclusion", "x"), ("share-anti-affinity", "x"), ("policy", "spread"))
    },
    "costly-per-pf": ("rdma-policy", lambda w: w.create({"lading.dev/rdma-policy": "per-pf"}, **ASKING)),
    "costly-later": ("rdma-policy", lambda w: w.annotate("asking", {"lading.dev/rdma-policy": "per-pf"})),
    # NodeDevices
    "another-nodes-report": (NODE, lambda w: w.report(NODE, by=w.other_node)),
    "another-nodes-report-by-token": ("n2", lambda w: w.report("n2", by=w.reporter)),
    "report-by-an-administrator": (NODE, lambda w: w.report(NODE, by=w.admin)),
    "report-by-an-unbound-token": (NODE, lambda w: w.report(NODE, by=w.unbound_reporter)),
    "another-nodes-object": ("n3", lambda w: w.register("n3", by=w.node)),
    # Taints
    "taint-another-node": ("Node n2 is not yours", lambda w: w.taint(TAINT, name="n2")),
    "taint-without-a-bound-token": (f"Node {NODE} is not yours", lambda w: w.taint(TAINT, by=w.unbound_reporter)),
    "taint-with-another-key": (NOT_READY, lambda w: w.taint({**TAINT, "key": "lading.dev/other"})),
    "taint-that-evicts": (NOT_READY, lambda w: w.taint({**TAINT, "effect": "NoExecute"})),
    "take-another-taint-away": (NOT_READY, lambda w: w.taint(without=OTHER_TAINT)),
    "make-a-node-unschedulable": ("nothing of a Node but", lambda w: w.change_node({"spec": {"unschedulable": True}})),
    "label-a-node": ("nothing of a Node but", lambda w: w.change_node({"metadata": {"labels": {"a": "b"}}})),
    "annotate-a-node": ("nothing of a Node but", lambda w: w.change_node({"metadata": {"annotations": {"a": "b"}}})),
    "keep-a-node-from-being-deleted": (
        "nothing of a Node but",
        lambda w: w.change_node({"metadata": {"finalizers": ["example.com/a"]}}),
    ),
}

# One for each policy.
CANARIES: Final = (
    *("create-with-assignment", "bind-with-assignment", "gpus-by-hand", "node-preset", "privileged"),
    "report-by-an-administrator",
    "costly-per-pf",
    "quota-of-another-team",
)

ALLOWED: Final[dict[str, Case]] = {
    "labels-of-kubeshare-for-its-scheduler": lambda w: w.create_labelled(KUBESHARE, schedulerName="kubeshare-scheduler"),
    "labels-of-kubeshare-beside-a-request": lambda w: w.create_labelled(KUBESHARE, **ASKING),
    "zero-of-kubeshare": lambda w: w.create_labelled(dict.fromkeys(KUBESHARE, "0.0"), schedulerName="lading"),
    "fraction-of-kai-for-its-scheduler": lambda w: w.create({"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
    "plain": lambda w: w.create(),
    "plain-with-other-annotations": lambda w: w.create({"example.com/gpus": "0"}),
    "plain-bound-by-its-creator": lambda w: w.create(nodeName=NODE),
    "asking": lambda w: w.create(**ASKING),
    "zero-is-not-asking": lambda w: w.create(limits={"lading.dev/gpu": 0, "lading.dev/gpu-memory": "0Gi"}),
    "asking-and-refining": lambda w: w.create(dict.fromkeys(REQUEST_ANNOTATIONS, "x"), namespace=COSTLY, **ASKING),
    "limit-of-a-container": lambda w: w.create({"lading.dev/gpu-core-limit.main": "60"}, **SHARE),
    "asking-in-an-init-container": lambda w: w.create({"lading.dev/policy": "spread"}, schedulerName="lading", **INIT_ASKS),
    "unknown-and-not-asking": lambda w: w.create({"lading.dev/toplogy": "switch"}),
    "spread-of-whole-cards": lambda w: w.create({"lading.dev/policy": "spread"}, **ASKING),
    "costly-where-allowed": lambda w: w.create(
        {"lading.dev/share-exclusion": "x", "lading.dev/rdma-policy": "per-pf"}, namespace=COSTLY, **SHARE
    ),
    "nearest-and-affinity": lambda w: w.create(
        {"lading.dev/rdma-policy": "nearest", "lading.dev/share-affinity": "x"}, **SHARE
    ),
    "quota-with-the-namespaces-name": lambda w: w.create_in_quota("default"),
    "quota-that-the-namespace-lists": lambda w: w.create_in_quota("shared", namespace=QUOTAS),
    "quota-of-another-scheduler": lambda w: w.create_in_quota("speech", scheduler="koord-scheduler"),
    "other-label-on-assigned": lambda w: w.label("assigned", {"example.com/a": "b"}),
    "refine-later": lambda w: w.annotate("asking", {"lading.dev/policy": "spread"}),
    "other-annotation-on-assigned": lambda w: w.annotate("assigned", {"example.com/a": "b"}),
    "status-of-assigned-by-its-node": lambda w: w.node.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/assigned/status?dryRun=All",
        {"status": {"phase": "Running"}},
        content_type=MERGE,
    ),
    "wake-by-central": lambda w: w.central.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/asking/status?dryRun=All",
        {"status": {"conditions": [{"type": "lading.dev/Room", "status": "True", "message": "m"}]}},
        content_type="application/strategic-merge-patch+json",
    ),
    "health-of-assigned-by-central": lambda w: w.central.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/assigned/status?dryRun=All",
        {"status": {"conditions": [{"type": DEVICES_HEALTHY, "status": "False", "reason": "DeviceUnhealthy", "message": "m"}]}},
        content_type="application/strategic-merge-patch+json",
    ),
    "bind-by-central": lambda w: w.bind(ASSIGNED, by=w.central),
    "bind-without-ours-legacy": lambda w: w.bind({}, by=w.admin, legacy=True),
    "bind-without-ours": lambda w: w.bind({"example.com/a": "b"}, by=w.admin),
    "by-hand-where-allowed": lambda w: w.create({"lading.dev/gpus": "0", "lading.dev/vfs.main": "1"}, namespace=BY_HAND),
    "a-key-like-ours-by-hand": lambda w: w.create({"lading.dev/gpusomething": "0"}),
    "privileged-without-devices": lambda w: w.create(containers=[opening({"privileged": True}, limits={})]),
    "privileged-where-allowed": lambda w: w.create(**ASKING, namespace=PRIVILEGED, containers=[opening({"privileged": True})]),
    "other-capabilities": lambda w: w.create(**ASKING, containers=[opening({"capabilities": {"add": ["IPC_LOCK"]}})]),
    "debugger": lambda w: w.debug("asking", {}),
    "mirror-that-asks": lambda w: w.mirror({"lading.dev/gpus": "0", "lading.dev/policy": "spread"}, limits=ONE_GPU),
    "mirror-with-devices-by-hand": lambda w: w.mirror({"lading.dev/gpus": "0"}),
    "own-report": lambda w: w.report(NODE, by=w.node),
    "own-report-by-token": lambda w: w.report(NODE, by=w.reporter),
    "own-object": lambda w: w.register("n3", by=w.new_node),
    "cordon-by-an-administrator": lambda w: w.cordon(by=w.admin),
    "taint-of-its-own-node": lambda w: w.taint(TAINT),
    "take-the-taint-away": lambda w: w.taint(name="n4", by=w.tainted_reporter),
    "taints-by-an-administrator": lambda w: w.change_node({"spec": {"taints": None, "unschedulable": True}}, by=w.admin),
}


@pytest.fixture(scope="module")
def world(deployed: ControlPlane) -> World:
    """Create the objects while the policies are in force, with the rights that deploy/ gives."""
    api = deployed.api
    deployed.create_namespace(PRIVILEGED, labels={"lading.dev/privileged": "allowed"})
    deployed.create_namespace(COSTLY, labels={"lading.dev/costly-placement": "allowed"})
    deployed.create_namespace(BY_HAND, labels={"lading.dev/manual": "allowed"})
    deployed.create_namespace(QUOTAS)
    listed = {"metadata": {"annotations": {"lading.dev/quotas": "vision, shared"}}}
    api.call("PATCH", f"/api/v1/namespaces/{QUOTAS}", listed, content_type=MERGE)
    for name in (NODE, "n2"):
        api.call("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": {"taints": [OTHER_TAINT]}})
    api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n4"}, "spec": {"taints": [TAINT, OTHER_TAINT]}})
    nodes = {name: deployed.api_of(f"system:node:{name}", group="system:nodes") for name in (NODE, "n2", "n3")}
    world = World(
        admin=api,
        central=deployed.api_of_account("lading-system", "lading-central"),
        node=nodes[NODE],
        node_uid=api.node(NODE)["metadata"]["uid"],
        other_node=nodes["n2"],
        new_node=nodes["n3"],
        reporter=deployed.api_of_account("lading-system", "lading-reporter", bound_to=api.node(NODE)),
        tainted_reporter=deployed.api_of_account("lading-system", "lading-reporter", bound_to=api.node("n4")),
        unbound_reporter=deployed.api_of_account("lading-system", "lading-reporter"),
    )
    body = {"apiVersion": "devices.lading.dev/v1alpha1", "kind": "NodeDevices"}
    for name in (NODE, "n2"):
        nodes[name].call("POST", NODE_DEVICES, {**body, "metadata": {"name": name}})
    api.create_pod(pod("plain"))
    api.create_pod(pod("asking", **ASKING))
    api.create_pod(pod("assigned", **ASKING))
    world.central.call("POST", "/api/v1/namespaces/default/pods/assigned/binding", binding("assigned", ASSIGNED))
    assert api.pod("assigned")["metadata"]["annotations"] == ASSIGNED
    return world


@pytest.fixture(scope="module", params=["away", "there"])
def policies(request: pytest.FixtureRequest, deployed: ControlPlane, world: World) -> bool:
    """Install or remove the policies, and wait until the API server applies the change."""
    there = bool(request.param == "there")
    verb = ["apply", "--server-side"] if there else ["delete"]
    done = deployed.kubectl(*verb, "-k", str(DEPLOY / "admission"))
    assert done.returncode == 0, done.stderr
    for name in CANARIES:
        deployed.eventually(partial(_is_in_force, FORBIDDEN[name][1], world, there), f"the policy on {name}", within_s=20.0)
    return there


def _is_in_force(case: Case, world: World, there: bool) -> bool:
    return isinstance(denial(case, world), str) == there


def denial(case: Case, world: World) -> str | None:
    """Return what the API server said to the case; None if it let the case through."""
    try:
        case(world)
    except KubeError as e:
        return e.text
    return None


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(name: str, policies: bool, world: World) -> None:
    names, case = FORBIDDEN[name]
    text = denial(case, world)
    if policies:
        assert text is not None
        assert "ValidatingAdmissionPolicy 'lading-" in text
        assert names in text.split("denied request: ")[1]
    else:
        assert text is None


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str, policies: bool, world: World) -> None:
    assert denial(ALLOWED[name], world) is None


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
def test_the_other_subresources_change_no_annotations(subresource: str, world: World) -> None:
    """Check that annotations do not change: the API server drops them there, or, in a later version, the rule on pods/* denies
    them."""
    path = f"/api/v1/namespaces/default/pods/assigned/{subresource}?dryRun=All"
    changed = world.admin.call("PATCH", path, {"metadata": {"annotations": {ASSIGNMENT: "{}"}}}, content_type=MERGE)
    assert changed["metadata"]["annotations"] == ASSIGNED
