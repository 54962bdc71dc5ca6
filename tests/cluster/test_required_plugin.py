"""Test the annotation for containerd's default validator on a real API server: which pods get it. All requests are dry runs."""

from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeApi
from tests.cluster.conftest import applied

NAMESPACE: Final = "required-plugin"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
KEY: Final = "required-plugins.noderesource.dev"
REQUIRED: Final = {KEY: '["lading"]'}
CARD: Final = {"lading.dev/gpu": "1"}
ASSIGNED: Final = {"lading.dev/gpus": "0"}


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """Install the policy until the end of the module, because other modules use the same control plane."""
    control_plane.create_namespace(NAMESPACE)
    with applied(control_plane, "required-plugin") as api:
        control_plane.eventually(lambda: annotations(api, limits=CARD) == REQUIRED, "the policy")
        yield api


def annotations(
    api: KubeApi, given: Mapping[str, str] | None = None, *, limits: Mapping[str, str] | None = None, init: bool = False
) -> dict[str, str]:
    """Return the annotations of a pod as the API server would store it. `limits` are those of its init container or
    container."""
    container = {"name": "main", "image": "x"}
    asking = {"name": "asks", "image": "x", "resources": {"limits": dict(limits or {})}}
    spec = {"automountServiceAccountToken": False, "containers": [container if init else asking]}
    pod = {"metadata": {"name": "new", "annotations": dict(given or {})}, "spec": {**spec, "initContainers": [asking] * init}}
    result: dict[str, str] = api.call("POST", PODS, pod)["metadata"].get("annotations", {})
    return result


def test_a_pod_that_requests_devices_gets_the_annotation(api: KubeApi) -> None:
    assert annotations(api, limits=CARD) == REQUIRED
    assert annotations(api, limits=CARD, init=True) == REQUIRED
    assert annotations(api, {"other": "x"}, limits=CARD) == {**REQUIRED, "other": "x"}


def test_a_pod_with_an_assignment_gets_the_annotation(api: KubeApi) -> None:
    assert annotations(api, ASSIGNED) == {**REQUIRED, **ASSIGNED}


def test_other_pods_do_not_get_the_annotation(api: KubeApi) -> None:
    assert annotations(api) == {}
    assert annotations(api, {"other": "x"}, limits={"cpu": "1"}) == {"other": "x"}


@pytest.mark.parametrize("key", [KEY, f"{KEY}/container.asks"])
def test_an_annotation_of_the_pods_author_stays(api: KubeApi, key: str) -> None:
    assert annotations(api, {key: '["other", "lading"]'}, limits=CARD) == {key: '["other", "lading"]'}
