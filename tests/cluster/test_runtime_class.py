"""Test the RuntimeClass of the runtime handler on a real API server: which pods get it, and on which nodes they run. All
requests are dry runs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeApi, KubeError
from tests.cluster.conftest import applied

NAMESPACE: Final = "runtime-class"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
CARD: Final = {"lading.dev/gpu": "1"}
ASSIGNED: Final = {"lading.dev/gpus": "0"}
LABEL: Final = {"lading.dev/runtime-handler": "true"}


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """Install the policy until the end of the module, because other modules use the same control plane."""
    control_plane.create_namespace(NAMESPACE)
    with applied(control_plane, "runtime-class") as api:
        api.call("POST", CLASSES, {"metadata": {"name": "other"}, "handler": "other"})
        control_plane.eventually(lambda: given(spec(api, limits=CARD)) == ("lading", LABEL), "the policy")
        yield api
        api.call("DELETE", f"{CLASSES}/other")
    control_plane.eventually(lambda: is_away(api), "the end of the policy, which is felt for a moment")


def is_away(api: KubeApi) -> bool:
    try:
        return given(spec(api, limits=CARD)) == (None, {})
    except KubeError:  # the policy gives a class that is gone already
        return False


def spec(
    api: KubeApi, annotations: Mapping[str, str] | None = None, *, limits: Mapping[str, str] | None = None, **more: Any
) -> Any:
    """Return the spec of a pod as the API server would store it."""
    container = {"name": "asks", "image": "x", "resources": {"limits": dict(limits or {})}}
    asked = {"automountServiceAccountToken": False, "containers": [container], **more}
    return api.call("POST", PODS, {"metadata": {"name": "new", "annotations": dict(annotations or {})}, "spec": asked})["spec"]


def given(spec: Any) -> tuple[str | None, dict[str, str]]:
    return spec.get("runtimeClassName"), spec.get("nodeSelector", {})


def test_a_pod_with_a_request_or_an_assignment_gets_the_runtime_class_and_its_nodes(api: KubeApi) -> None:
    assert given(spec(api, limits=CARD)) == ("lading", LABEL)
    assert given(spec(api, ASSIGNED)) == ("lading", LABEL)
    assert given(spec(api, ASSIGNED, nodeSelector={"zone": "a"})) == ("lading", {"zone": "a", **LABEL})
    asks_first = {"name": "first", "image": "x", "resources": {"limits": CARD}}
    assert given(spec(api, initContainers=[asks_first])) == ("lading", LABEL)


def test_other_pods_do_not_get_the_runtime_class(api: KubeApi) -> None:
    assert given(spec(api)) == (None, {})
    assert given(spec(api, {"other": "x"}, limits={"cpu": "1"})) == (None, {})


def test_a_runtime_class_of_the_pods_author_stays(api: KubeApi) -> None:
    assert given(spec(api, limits=CARD, runtimeClassName="other")) == ("other", {})
