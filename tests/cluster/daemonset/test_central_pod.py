"""Test the way from one command to the first pod with a card that central chose: central runs as a pod of the image, on its own
node.

Two things are not as in `deploy/`, because the rig has no network between pods: central has the host's network, so that its
namespace is not `restricted` here, and kube-scheduler, of which there is no image, runs beside, with the deployed
configuration, certificates and rights.
"""

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from central.daemon.certificates import DAYS, render_secrets
from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE
from simnode.build import build
from simnode.cluster import Cluster
from simnode.containerd import PrivateContainerd
from simnode.control_plane import free_port
from simnode.daemons import render_flat_toml
from simnode.scheduling import SCHEDULER
from tests.cluster.conftest import DEPLOY, NODE
from tests.cluster.daemonset.site import PARTS, NodeSite
from tests.cluster.pods import Pods, container

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

PORTS: Final = ("extender", "page", "metrics", "probes")


@dataclass(kw_only=True)
class CentralSite(NodeSite):
    """Install `deploy/` without kube-scheduler's Deployment."""

    parts: Sequence[str] = (*PARTS, "central")
    of_central: Mapping[str, int] = field(default_factory=lambda: {name: free_port() for name in PORTS})

    def write(self, **settings: object) -> Path:
        overlay = super().write(assignments=["signed"], **settings)
        central = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        listens = {"extender": "listen", "page": "page_listen", "metrics": "metrics", "probes": "probes"}
        ours = {key: f"0.0.0.0:{self.of_central[name]}" for name, key in listens.items()}
        text = (DEPLOY / "central/central.toml").read_text().splitlines(keepends=True)
        theirs = "".join(line for line in text if line.partition(" =")[0] not in ours)
        (overlay / "central.toml").write_text(theirs + render_flat_toml(ours))
        config = {
            "name": "lading-central-config",
            "namespace": SYSTEM_NAMESPACE,
            "behavior": "replace",
            "files": ["central.toml"],
        }
        central["configMapGenerator"].append(config)
        key = f"private.pem={(overlay / 'central-1.pem').name}"
        central["secretGenerator"] = [
            {
                "name": "lading-central-signing",
                "namespace": SYSTEM_NAMESPACE,
                "files": [key],
                "options": {"disableNameSuffixHash": True},
            }
        ]
        secrets = render_secrets(SYSTEM_NAMESPACE, days=DAYS)
        (overlay / "certificates.yaml").write_text(yaml.safe_dump_all(secrets))
        central["resources"].append("certificates.yaml")
        target = {"kind": "Deployment", "name": CENTRAL}
        central["patches"].append({"target": target, "patch": json.dumps(self._of_deployment())})
        label = {"pod-security.kubernetes.io/enforce": "privileged"}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE, "labels": label}}
        central["patches"].append({"patch": json.dumps(space)})
        (overlay / "kustomization.yaml").write_text(json.dumps(central))
        return overlay

    def start_scheduler(self) -> None:
        """Start it with what it would mount."""
        plane, folder = self.cluster.control_plane, self.folder / "scheduler"
        folder.mkdir()
        secret = plane.api.call("GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{SCHEDULER}-tls")
        for name, value in secret["data"].items():
            (folder / name).touch(mode=0o600)
            (folder / name).write_bytes(base64.b64decode(value))
        config: dict[str, Any] = yaml.safe_load((DEPLOY / "scheduler/config.yaml").read_text())
        for extender in config["extenders"]:
            host = extender["urlPrefix"].removeprefix("https://").partition(":")[0]
            extender["urlPrefix"] = f"https://127.0.0.1:{self.of_central['extender']}"
            files = {key: str(folder / Path(value).name) for key, value in extender["tlsConfig"].items()}
            extender["tlsConfig"] = {**files, "serverName": host}
        config["clientConnection"]["kubeconfig"] = str(plane.sign_in_account(SCHEDULER, SYSTEM_NAMESPACE, SCHEDULER))
        plane.start_scheduler(config, name=SCHEDULER)

    def _of_deployment(self) -> list[Any]:
        host, port = self.cluster.control_plane.server_address
        container = "/spec/template/spec/containers/0"
        server = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
        ports = [{"name": name, "containerPort": number} for name, number in self.of_central.items()]
        return [
            {"op": "replace", "path": "/spec/replicas", "value": 1},
            {"op": "add", "path": "/spec/template/spec/hostNetwork", "value": True},
            {"op": "replace", "path": f"{container}/ports", "value": ports},
            *(
                {"op": "add", "path": f"{container}/env/-", "value": {"name": name, "value": value}}
                for name, value in server.items()
            ),
        ]


@pytest.fixture(scope="module")
def site(cluster: Cluster, runtime: PrivateContainerd) -> Iterator[CentralSite]:
    folder = runtime.layout.folder.parent / "node"
    site = CentralSite(folder=folder, cluster=cluster, runtime=runtime, node=build("demo-8gpu", folder / "sim"))
    yield site
    site.remove_all()


def test_from_one_command_to_the_first_pod_with_a_card_that_central_chose(site: CentralSite, pods: Pods) -> None:
    cluster = site.cluster
    began = time.monotonic()
    site.apply()
    site.label("nri")
    site.start_scheduler()
    limits = {"limits": {"lading.dev/gpu": "2"}}
    pods.create("first", containers=[container(resources=limits)], schedulerName="lading")
    applied = time.monotonic() - began
    cluster.eventually(lambda: pods.ready("first"), "the first pod", within_s=300.0)
    running = time.monotonic() - began
    print(f"\napplied after {applied:.1f} s, first pod with cards running after {running:.1f} s")
    assert len(pods.cards("first")) == 2
    pod = cluster.api.pod("first")
    assert pod["spec"]["nodeName"] == NODE
    assert "lading.dev/assignment-signature" in pod["metadata"]["annotations"]
    (central,) = cluster.api.call("GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods")["items"]
    lease = cluster.api.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{CENTRAL}")
    assert lease["spec"]["holderIdentity"].startswith(central["metadata"]["name"])
