"""Test deploy/ on a real API server: every manifest applies, the pods of its Deployments are admitted, each account has the
rights that it needs and no others, and a real kube-scheduler with the rendered configuration calls an extender as
configured."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
import yaml

from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeApi, KubeError
from tests.cluster.conftest import DEPLOY

SYSTEM: Final = "lading-system"
CENTRAL, SCHEDULER, REPORTER = "lading-central", "lading-scheduler", "lading-reporter"
ASSIGNED: Final = {ASSIGNMENT: '{"v":1}', ASSIGNMENT_SIGNATURE: "ed25519:k:x"}
STRATEGIC: Final = "application/strategic-merge-patch+json"


@pytest.mark.parametrize("base", ["", "admission", "central", "crds", "flavors", "rbac", "scheduler"])
def test_every_base_applies_again_without_a_warning(base: str, deployed: ControlPlane) -> None:
    again = deployed.kubectl("apply", "--server-side", "--dry-run=server", "-k", str(DEPLOY / base))
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.parametrize("name", [CENTRAL, SCHEDULER])
def test_the_pods_of_a_deployment_are_admitted_in_a_restricted_namespace(name: str, deployed: ControlPlane) -> None:
    template = deployed.api.call("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{name}")["spec"]["template"]
    template["metadata"]["name"] = name
    pods = f"/api/v1/namespaces/{SYSTEM}/pods?dryRun=All"
    deployed.api.call("POST", pods, template)
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(KubeError, match="PodSecurity"):
        deployed.api.call("POST", pods, template)


def test_the_samples_apply_and_wait_for_the_scheduler(deployed: ControlPlane) -> None:
    deployed.create_namespace("samples")
    applied = deployed.kubectl("apply", "-n", "samples", "-k", str(DEPLOY / "samples"))
    assert (applied.returncode, applied.stderr) == (0, "")
    pods = deployed.api.call("GET", "/api/v1/namespaces/samples/pods")["items"]
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"lading"}
    deployed.api.call("DELETE", "/api/v1/namespaces/samples/pods", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize("pods", ["pair", "nccl", "shares"])
def test_the_pods_of_the_acceptance_test_are_admitted(pods: str, deployed: ControlPlane) -> None:
    file = str(DEPLOY / f"acceptance/{pods}.yaml")
    strict = deployed.kubectl("apply", "--dry-run=server", "--validate=strict", "-n", "default", "-f", file)
    assert (strict.returncode, strict.stderr) == (0, "")


def test_the_sample_quota_counts_what_pods_ask_for(deployed: ControlPlane) -> None:
    deployed.create_namespace("quota")
    applied = deployed.kubectl("apply", "-n", "quota", "-f", str(DEPLOY / "samples/quota.yaml"))
    assert applied.returncode == 0, applied.stderr
    path = "/api/v1/namespaces/quota/resourcequotas/lading"
    quota = deployed.api.call("GET", path)
    quota["status"] = {"hard": quota["spec"]["hard"], "used": dict.fromkeys(quota["spec"]["hard"], "0")}
    deployed.api.call("PUT", f"{path}/status", quota)  # the controller manager does this first

    def ask(gpus: int) -> None:
        deployed.api.call("POST", "/api/v1/namespaces/quota/pods?dryRun=All", asking(f"asks-{gpus}", gpus=gpus))

    deployed.eventually(lambda: accepted(lambda: ask(8)), "a quota that has been counted", within_s=20.0)
    with pytest.raises(KubeError, match="exceeded quota"):
        ask(9)


def accepted(call: Any) -> bool:
    try:
        call()
    except KubeError:
        return False
    return True


# ---- rights

YES: Final = [
    (CENTRAL, "watch pods"),
    (CENTRAL, "watch nodes"),
    (CENTRAL, "watch nodedevices.devices.lading.dev"),
    (CENTRAL, "create pods/binding"),
    (CENTRAL, "create pods/eviction"),
    (CENTRAL, "list poddisruptionbudgets.policy"),
    (CENTRAL, "watch poddisruptionbudgets.policy"),
    (CENTRAL, "patch pods/status"),
    (CENTRAL, "create events"),
    (CENTRAL, "patch events.events.k8s.io"),
    (CENTRAL, f"create leases.coordination.k8s.io -n {SYSTEM}"),
    (CENTRAL, f"update leases.coordination.k8s.io/{CENTRAL} -n {SYSTEM}"),
    (SCHEDULER, "create pods/binding"),
    (SCHEDULER, "list persistentvolumes"),
    (SCHEDULER, f"update leases.coordination.k8s.io/{SCHEDULER} -n {SYSTEM}"),
    (REPORTER, "get nodedevices.devices.lading.dev"),
    (REPORTER, "create nodedevices.devices.lading.dev"),
    (REPORTER, "patch nodedevices.devices.lading.dev/status"),
    (REPORTER, "get nodes"),
    (REPORTER, "patch nodes"),
]
NO: Final = [
    *((CENTRAL, "patch pods"), (CENTRAL, "delete pods"), (CENTRAL, "create pods"), (CENTRAL, "create bindings")),
    *((CENTRAL, "get secrets"), (CENTRAL, "patch nodes")),
    (CENTRAL, "patch nodedevices.devices.lading.dev/status"),
    (CENTRAL, f"update leases.coordination.k8s.io/{SCHEDULER} -n {SYSTEM}"),
    (CENTRAL, "create leases.coordination.k8s.io -n kube-system"),
    (SCHEDULER, "patch nodedevices.devices.lading.dev"),
    (SCHEDULER, f"update leases.coordination.k8s.io/{CENTRAL} -n {SYSTEM}"),
    (REPORTER, "get pods"),
    (REPORTER, "update nodedevices.devices.lading.dev"),
    (REPORTER, "delete nodedevices.devices.lading.dev"),
    (REPORTER, "list nodes"),
    (REPORTER, "update nodes"),
    (REPORTER, "patch nodes/status"),
]


def may(deployed: ControlPlane, account: str, text: str) -> bool:
    """Return whether the account may do this: `verb resource[.group][/name or subresource] [-n namespace]`; after the slash is
    a name for leases."""
    asked, _, namespace = text.partition(" -n ")
    verb, _, rest = asked.partition(" ")
    what, _, part = rest.partition("/")
    resource, _, group = what.partition(".")
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace or "default"}
    attributes["name" if resource == "leases" else "subresource"] = part
    spec = {"user": f"system:serviceaccount:{SYSTEM}:{account}", "resourceAttributes": attributes}
    review = deployed.api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(review["status"]["allowed"])


@pytest.mark.parametrize(("account", "words"), YES)
def test_an_account_may(account: str, words: str, deployed: ControlPlane) -> None:
    assert may(deployed, account, words)


@pytest.mark.parametrize(("account", "words"), NO)
def test_an_account_may_not(account: str, words: str, deployed: ControlPlane) -> None:
    assert not may(deployed, account, words)


# ---- the second scheduler


@dataclass
class Extender:
    """Answer kube-scheduler: nodes pass if `fits`, node `b` is best, and bind creates a Binding as central does. Unless
    `leads`, answer 503."""

    central: KubeApi
    asked: list[tuple[str, Any]] = field(default_factory=list)
    fits: bool = True
    leads: bool = True

    def answer(self, verb: str, body: Any) -> Any:
        """Return the answer to a call; None stands for status 503."""
        self.asked.append((verb, body))
        match verb:
            case _ if not self.leads:
                return None
            case "filter" if self.fits:
                return {"NodeNames": body["NodeNames"]}
            case "filter":
                return {"NodeNames": [], "FailedNodes": dict.fromkeys(body["NodeNames"], "no room")}
            case "prioritize":
                return [{"Host": name, "Score": 10 if name == "b" else 0} for name in body["NodeNames"]]
            case _:
                path = f"/api/v1/namespaces/{body['PodNamespace']}/pods/{body['PodName']}/binding"
                metadata = {"name": body["PodName"], "uid": body["PodUID"], "annotations": ASSIGNED}
                self.central.call("POST", path, {"metadata": metadata, "target": {"kind": "Node", "name": body["Node"]}})
                return {"Error": ""}

    def verbs(self, pod: str) -> list[str]:
        """Return the verbs that were asked about one pod, in order."""
        return [
            verb
            for verb, body in self.asked
            if pod in (body.get("PodName"), body.get("Pod", {}).get("metadata", {}).get("name"))
        ]


@pytest.fixture(scope="module")
def extender(deployed: ControlPlane) -> Iterator[Extender]:
    """Start an extender, and the scheduler of deploy/ with its own account, lease and configuration, except for the extender's
    address."""
    extender = Extender(deployed.api_of_account(SYSTEM, CENTRAL))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = extender.answer(self.path.strip("/"), body)
            answer = json.dumps(text).encode()
            self.send_response(503 if text is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("a", "b"):
            add_node(deployed.api, name)
        config = rendered_config(deployed)
        for each in config["extenders"]:
            each["urlPrefix"] = f"http://127.0.0.1:{server.server_port}"
            del each["enableHTTPS"], each["tlsConfig"]
        config["clientConnection"]["kubeconfig"] = str(deployed.sign_in_account(SCHEDULER, SYSTEM, SCHEDULER))
        scheduler = deployed.start_scheduler(config, name=SCHEDULER)
        yield extender
        scheduler.stop()
        server.shutdown()


def rendered_config(deployed: ControlPlane) -> Any:
    rendered = deployed.kubectl("kustomize", str(DEPLOY / "scheduler"))
    assert rendered.returncode == 0, rendered.stderr
    result = next(one for one in yaml.safe_load_all(rendered.stdout) if one["kind"] == "ConfigMap")
    return yaml.safe_load(result["data"]["config.yaml"])


def add_node(api: KubeApi, name: str) -> None:
    """Create a Node that is ready and does not have the taint that the API server gives a new node."""
    node = api.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    node["spec"].pop("taints")
    node = api.call("PUT", f"/api/v1/nodes/{name}", node)
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    node["status"] = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    api.call("PUT", f"/api/v1/nodes/{name}/status", node)


def asking(name: str, *, gpus: int = 1) -> dict[str, Any]:
    main = {"name": "main", "image": "x", "resources": {"limits": {"lading.dev/gpu": gpus}}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "lading", "containers": [main]}}


def await_bound(deployed: ControlPlane, name: str) -> Any:
    deployed.eventually(lambda: "nodeName" in deployed.api.pod(name)["spec"], f"pod {name}, bound")
    return deployed.api.pod(name)


def test_a_pod_that_asks_is_filtered_by_name_prioritized_and_bound_with_its_assignment(
    extender: Extender, deployed: ControlPlane
) -> None:
    everything = {f"lading.dev/{kind}": 1 for kind in ("gpu", "gpu-memory", "gpu-core", "rdma")}
    manifest = asking("placed")
    manifest["spec"]["containers"][0]["resources"]["limits"] = everything
    deployed.api.create_pod(manifest)
    pod = await_bound(deployed, "placed")
    assert extender.verbs("placed") == ["filter", "prioritize", "prioritize", "bind"]  # one for each entry
    body = next(body for verb, body in extender.asked if verb == "filter")
    assert sorted(body["NodeNames"]) == ["a", "b"]
    assert body["Nodes"] is None
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"]) == ("b", ASSIGNED)


def asking_nothing(name: str) -> dict[str, Any]:
    manifest = asking(name)
    del manifest["spec"]["containers"][0]["resources"]
    return manifest


def test_for_a_pod_that_asks_for_nothing_the_extender_names_the_node_and_no_more(
    extender: Extender, deployed: ControlPlane
) -> None:
    names = [f"unaware-{number}" for number in range(4)]  # chance alone would send all of them there once in 16 times
    for name in names:
        deployed.api.create_pod(asking_nothing(name))
    pods = [await_bound(deployed, name) for name in names]
    assert [extender.verbs(name) for name in names] == [["prioritize"]] * 4
    assert [(pod["spec"]["nodeName"], pod["metadata"].get("annotations", {})) for pod in pods] == [("b", {})] * 4


def test_no_one_leads_and_only_a_pod_that_asks_for_devices_waits(extender: Extender, deployed: ControlPlane) -> None:
    extender.leads = False
    try:
        for manifest in (asking("waits"), asking_nothing("goes")):
            deployed.api.create_pod(manifest)
        await_bound(deployed, "goes")
        deployed.eventually(lambda: "filter" in extender.verbs("waits"), "a question")
        assert "nodeName" not in deployed.api.pod("waits")["spec"]
    finally:
        extender.leads = True
    await_bound(deployed, "waits")


def test_a_condition_that_changes_wakes_a_pod_that_was_refused(extender: Extender, deployed: ControlPlane) -> None:
    """Check that kube-scheduler's own write of PodScheduled requeues the pod once, and then not for 5 minutes."""
    extender.fits = False
    deployed.api.create_pod(asking("refused"))
    deployed.eventually(lambda: extender.verbs("refused") == ["filter", "filter"], "a pod that was refused twice")
    extender.fits = True
    path = "/api/v1/namespaces/default/pods/refused/status"
    wake = {"status": {"conditions": [{"type": "lading.dev/Room", "status": "True", "message": "released by another pod"}]}}
    extender.central.call("PATCH", path, wake, content_type=STRATEGIC)
    deployed.eventually(lambda: "nodeName" in deployed.api.pod("refused")["spec"], "the pod that was woken", within_s=10.0)
