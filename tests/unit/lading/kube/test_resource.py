"""Test the paths of kinds."""

from lading.kube.resource import LEASES, NODE_DEVICES, NODES, PODS


def test_core_and_named_groups() -> None:
    assert NODES.path() == "/api/v1/nodes"
    assert NODES.path(name="n1") == "/api/v1/nodes/n1"
    assert PODS.path("default", "train", "binding") == "/api/v1/namespaces/default/pods/train/binding"
    assert LEASES.path("kube-system") == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    assert NODE_DEVICES.path(name="n1", subresource="status") == "/apis/devices.lading.dev/v1alpha1/nodedevices/n1/status"


def test_a_name_cannot_leave_its_place() -> None:
    assert PODS.path("default", "../nodes/n1?x=1") == "/api/v1/namespaces/default/pods/..%2Fnodes%2Fn1%3Fx%3D1"
