"""Build the small cluster with Lading installed as in `deploy/`, and the API server's answers that are not objects.

`pages` has these answers by path: the server's version, answers of central's replicas through the server's proxy, and logs (a
container's former log with `?previous`). A test changes objects and pages before they are served.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web

from kubectl_lading.installation.control_checks import SCHEDULER
from kubectl_lading.installation.daemonset_checks import DAEMONSETS as NAMES
from kubectl_lading.installation.daemonset_checks import GUARD, HOOKS
from kubectl_lading.installation.read_installation import (
    CONFIG_MAPS,
    CRDS,
    DAEMONSETS,
    DEPLOYMENTS,
    POLICIES,
    POLICY_BINDINGS,
)
from lading import __version__
from lading.kube.resource import LEASES, PODS, Resource
from lading.vocabulary import CENTRAL, FRONT_END, NODES_NAMESPACE
from simnode.api_server import ApiServer
from simnode.api_store import Call
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import NODES_OF, SmallCluster

NAMESPACE: Final = "lading-system"
DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_INSTALLED: Final = ("crds", "rbac", "central", "scheduler", "admission", "node")
LEADER: Final = f"{CENTRAL}-6d5f-abcde"
STANDBY: Final = f"{CENTRAL}-6d5f-fghij"
SCHEDULERS: Final = (f"{SCHEDULER}-77cc-klmno", f"{SCHEDULER}-77cc-pqrst")
BOOT: Final = "11111111-2222-3333-4444-555555555555"
_VERSION: Final = "v1.36.2"
_BY_KIND: Final = {
    "CustomResourceDefinition": CRDS,
    "ValidatingAdmissionPolicy": POLICIES,
    "ValidatingAdmissionPolicyBinding": POLICY_BINDINGS,
    "Deployment": DEPLOYMENTS,
    "DaemonSet": DAEMONSETS,
    "ClusterRole": Resource("rbac.authorization.k8s.io", "v1", "clusterroles"),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
    "Role": Resource("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io", "v1", "rolebindings"),
}
_METRICS: Final = """# TYPE lading_build_info gauge
lading_build_info{{version="{version}"}} 1.0
# TYPE lading_central_leader gauge
lading_central_leader {leads}
"""

Json = dict[str, Any]


class InstalledCluster(SmallCluster):
    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, bytes | int] = {"/version": json.dumps({"gitVersion": _VERSION}).encode()}
        self._install()
        self._lead()
        for name in (*NODES_OF, "old-1"):
            self._describe(name)
            self.serve(name, ready=name != "old-1")
        self.count()

    def keep(self, path: str, obj: Json) -> None:
        self._keep(path, obj)

    def change(self, path: str, change: Any) -> None:
        """Call `change` with the object at this path, which it modifies."""
        change(self.objects[path])

    def serve(self, node: str, *, ready: bool = True) -> None:
        """Put the pods of the DaemonSets on the node."""
        self._node(node)["metadata"].setdefault("labels", {})[FRONT_END] = "nri"
        for name in (HOOKS, GUARD):
            pod_name, labels = f"{name}-{node}", {"app.kubernetes.io/name": name}
            metadata = {"name": pod_name, "namespace": NODES_NAMESPACE, "labels": labels}
            conditions = [{"type": "Ready", "status": str(ready)}]
            spec = {"nodeName": node, "containers": [{"name": "hooks" if name == HOOKS else "guard"}]}
            pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": conditions}}
            self._keep(PODS.path(NODES_NAMESPACE, pod_name), pod)

    def count(self) -> None:
        """Have the DaemonSets' status say what their pods are."""
        pods = [pod for path, pod in self.objects.items() if path.startswith(PODS.path(NODES_NAMESPACE))]
        for name in NAMES:
            daemonset = self.objects[DAEMONSETS.path(NODES_NAMESPACE, name)]
            ready = [pod["status"]["conditions"][0]["status"] for pod in pods if pod["metadata"]["name"].startswith(name)]
            counts = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled"), len(ready))
            daemonset["status"] = {"observedGeneration": 1, **counts, "numberReady": ready.count("True")}

    def proxied(self, pod: str, page: str) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9442/proxy{page}"

    def log_of(self, pod: str) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log"

    def _install(self) -> None:
        for path in [path for folder in _INSTALLED for path in sorted((DEPLOY / folder).glob("*.yaml"))]:
            for document in yaml.load_all(path.read_text(), yaml.CSafeLoader):
                if document and document.get("kind") in _BY_KIND:
                    resource, metadata = _BY_KIND[document["kind"]], document["metadata"]
                    self._keep(resource.path(metadata.get("namespace", ""), metadata["name"]), document)
        crd = self.objects[CRDS.path(name="nodedevices.devices.lading.dev")]
        crd["status"] = {"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1alpha1"]}
        for name, config, image in (
            (CENTRAL, "central.toml", f"{CENTRAL}:{__version__}"),
            (SCHEDULER, "config.yaml", f"kube-scheduler:{_VERSION}"),
        ):
            deployment = self.objects[DEPLOYMENTS.path(NAMESPACE, name)]
            deployment["metadata"]["generation"] = 1
            counts = ("readyReplicas", "updatedReplicas", "replicas")
            deployment["status"] = {"observedGeneration": 1} | dict.fromkeys(counts, 2)
            spec = deployment["spec"]["template"]["spec"]
            spec["containers"][0]["image"] = image
            for volume in spec["volumes"]:
                if volume["name"] == "config":
                    volume["configMap"]["name"] = f"{name}-config-7f6g"
            text = (DEPLOY / name.removeprefix("lading-") / config).read_text()
            where = CONFIG_MAPS.path(NAMESPACE, f"{name}-config-7f6g")
            self._keep(where, {"metadata": {"name": f"{name}-config-7f6g"}, "data": {config: text}})

        for name in NAMES:
            daemonset = self.objects[DAEMONSETS.path(NODES_NAMESPACE, name)]
            daemonset["metadata"]["generation"] = 1
            for one in daemonset["spec"]["template"]["spec"]["containers"]:
                one["image"] = f"registry.example/lading-node:{__version__}"

    def _lead(self) -> None:
        for n, (pod, of) in enumerate(((LEADER, CENTRAL), (STANDBY, CENTRAL), *((pod, SCHEDULER) for pod in SCHEDULERS))):
            labels = {"app.kubernetes.io/name": of}
            metadata = {"name": pod, "namespace": NAMESPACE, "labels": labels, "creationTimestamp": "2026-11-20T00:00:00Z"}
            spec = {"nodeName": "desk-1", "containers": [{"name": of.removeprefix("lading-")}]}
            self._keep(
                PODS.path(NAMESPACE, pod),
                {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "podIP": f"10.0.0.{n + 7}"}},
            )
            self.pages[self.log_of(pod)] = f"level=info event=daemon.started pod={pod}\n".encode()
        lease = {"holderIdentity": f"{LEADER}_0b6f", "leaseDurationSeconds": 15, "renewTime": "2026-11-21T11:59:59.000000Z"}
        self._keep(LEASES.path(NAMESPACE, CENTRAL), {"metadata": {"name": CENTRAL}, "spec": lease})
        slices = Resource("discovery.k8s.io", "v1", "endpointslices")
        self._keep(slices.path(NAMESPACE, CENTRAL), {"metadata": {"name": CENTRAL}, "endpoints": [{"addresses": ["10.0.0.7"]}]})
        for pod in (LEADER, STANDBY):
            leads = int(pod == LEADER)
            bindings = "lading_central_bindings_open 0\n" if leads else ""
            metrics = _METRICS.format(version=__version__, leads=leads) + bindings
            self.pages[self.proxied(pod, "/metrics")] = metrics.encode()
            ready = {"ready": True, "conditions": [{"name": "lists-read", "ok": True, "why": "", "required": True}]}
            self.pages[self.proxied(pod, "/readyz")] = json.dumps(ready).encode()

    def _describe(self, name: str) -> None:
        node = self._node(name)
        info = {"bootID": BOOT, "kubeletVersion": _VERSION, "containerRuntimeVersion": "containerd://1.7.28"}
        node["status"]["nodeInfo"] = info
        report = next(one for path, one in self.objects.items() if path.endswith(f"/nodedevices/{name}"))
        report["metadata"]["managedFields"] = [
            {"manager": "lading-hooks", "operation": "Apply", "subresource": "status", "time": "2026-11-21T11:58:00Z"}
        ]

    def _node(self, name: str) -> Json:
        return next(one for path, one in self.objects.items() if path.endswith(f"/nodes/{name}"))


class PagedServer(ApiServer):
    """Serve pages. A page that is a number is answered with this status; 404 has no Status body, as for an unknown resource."""

    pages: dict[str, bytes | int]

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        previous = "?previous" if "previous" in call.query else ""
        page = self.pages.get(call.path + previous)
        match page:
            case bytes():
                return web.Response(body=page)
            case 404:
                return web.Response(status=404, text="404 page not found\n")
            case int():
                body = {"kind": "Status", "code": page, "reason": "Forbidden", "message": f"{call.path} is forbidden"}
                return web.json_response(body, status=page)
            case None:
                return await super()._answer(request, call)


@contextmanager
def served_installation(cluster: InstalledCluster, folder: Path) -> Iterator[Cli]:
    server = PagedServer(first_version=1000)
    server.pages = cluster.pages
    with served(cluster, folder, server=server) as cli:
        yield cli
