"""Apply deploy/samples/networks.yaml to a real API server, and check how a Binding changes `k8s.v1.cni.cncf.io/networks`.

Multus itself is not here: its resource definition is one with the same names, and what it would read is the pod.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from central.assignment.networks import VfNetwork, add_networks
from lading.vocabulary import NETWORKS, PciAddress
from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeError
from tests.cluster.conftest import DEPLOY

PODS: Final = "/api/v1/namespaces/networks/pods"
DEFAULT_NETWORK: Final = "v1.multus-cni.io/default-network"
MERGE: Final = "application/merge-patch+json"
VF: Final = PciAddress("0000:3b:00.2")
TAKEN: Final = '[{"name":"lading-vf-0000-3b-00-2","namespace":"lading-system"}]'
DEFINITIONS: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
    "spec": {
        "group": "k8s.cni.cncf.io",
        "scope": "Namespaced",
        "names": {"plural": "network-attachment-definitions", "kind": "NetworkAttachmentDefinition"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"config": {"type": "string"}}}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def plane(deployed: ControlPlane) -> Iterator[ControlPlane]:
    deployed.create_namespace("networks")
    deployed.api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITIONS)
    sample = str(DEPLOY / "samples/networks.yaml")
    deployed.eventually(lambda: deployed.kubectl("apply", "-f", sample).returncode == 0, "the sample to apply", within_s=20.0)
    deployed.eventually(lambda: refused(deployed, {NETWORKS: TAKEN}), "the policy to be in force", within_s=20.0)
    yield deployed
    assert deployed.kubectl("delete", "-f", sample).returncode == 0


def pod(name: str, annotations: dict[str, str]) -> Any:
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody"},
    }


def refused(plane: ControlPlane, annotations: dict[str, str]) -> bool:
    try:
        plane.api.call("POST", f"{PODS}?dryRun=All", pod("new", annotations))
    except KubeError as e:
        if "lading-networks" not in str(e):
            raise
        return True
    return False


@pytest.mark.parametrize(
    "annotations",
    [
        {NETWORKS: TAKEN},
        {NETWORKS: "storage, lading-system/lading-vf-0000-3b-00-2@net1"},
        {NETWORKS: '[{"name":"\\u006cading-vf-0000-3b-00-2","namespace":"lading-system"}]'},
        {NETWORKS: '[{"name":"other","deviceID":"0000:3b:00.2"}]'},
        {NETWORKS: '[{"name":"other","DEVICEID":"0000:3b:00.2"}]'},
        {DEFAULT_NETWORK: "lading-system/lading-vf-0000-3b-00-2"},
    ],
)
def test_a_pod_that_names_a_network_of_a_vf_is_denied(annotations: dict[str, str], plane: ControlPlane) -> None:
    assert refused(plane, annotations)


@pytest.mark.parametrize(
    "annotations", [{}, {NETWORKS: "storage"}, {NETWORKS: '[{"name":"storage","mac":"02:00:00:00:00:01"}]'}]
)
def test_a_pod_with_other_networks_is_admitted(annotations: dict[str, str], plane: ControlPlane) -> None:
    assert not refused(plane, annotations)


def test_a_binding_writes_node_and_networks_at_once_and_the_pod_keeps_its_own(plane: ControlPlane) -> None:
    api, own = plane.api, "storage"
    made = api.call("POST", PODS, pod("bound", {NETWORKS: own, "other": "stays"}))
    network = VfNetwork(namespace="lading-system", name="lading-vf-{vf}")
    wanted = add_networks(own, "networks", [(VF, "rdma0")], network)
    assert isinstance(wanted, str)
    metadata = {"name": "bound", "uid": made["metadata"]["uid"], "annotations": {NETWORKS: wanted}}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n1"}}
    api.call("POST", f"{PODS}/bound/binding", body)
    now = api.call("GET", f"{PODS}/bound")
    assert now["spec"]["nodeName"] == "n1"
    assert now["metadata"]["annotations"]["other"] == "stays"
    assert [one["name"] for one in json.loads(now["metadata"]["annotations"][NETWORKS])] == ["storage", network.of(VF)]
    # Multus writes the status when it is done; no one may write the networks.
    status = {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/network-status": "[]"}}}
    api.call("PATCH", f"{PODS}/bound/status", status, content_type=MERGE)
    another = {"metadata": {"annotations": {NETWORKS: TAKEN}}}
    with pytest.raises(KubeError, match="lading-networks"):
        api.call("PATCH", f"{PODS}/bound/status", another, content_type=MERGE)
