"""Test flavors on a real API server: which amounts a container gets in place of a flavor, and what is denied. All requests are
dry runs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeApi, KubeError
from tests.cluster.conftest import applied

NAMESPACE: Final = "flavors"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
HALF: Final = {"lading.dev/gpu-memory": "39Gi", "lading.dev/gpu-core": "50"}
EIGHTH: Final = {"lading.dev/gpu-memory": "9Gi", "lading.dev/gpu-core": "12"}


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """Install the policies until the end of the module, because other modules use the same control plane."""
    control_plane.create_namespace(NAMESPACE)
    with applied(control_plane, "flavors") as api:
        control_plane.eventually(lambda: _denies(api) and limits_of(api, {_name("half"): "1"}) == HALF, "flavors")
        yield api


def _name(flavor: str) -> str:
    return f"flavors.lading.dev/{flavor}"


def container(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "image": "x", "resources": {"limits": dict(limits)}}


def create(api: KubeApi, *containers: Any, init: tuple[Any, ...] = ()) -> Any:
    spec = {"automountServiceAccountToken": False, "containers": containers, "initContainers": init}
    return api.call("POST", PODS, {"metadata": {"name": "new"}, "spec": spec})["spec"]


def limits_of(api: KubeApi, limits: Mapping[str, str]) -> dict[str, str]:
    (made,) = create(api, container("main", limits))["containers"]
    resources = made["resources"]
    assert resources["requests"] == resources["limits"]
    result: dict[str, str] = resources["limits"]
    return result


def _denies(api: KubeApi) -> bool:
    try:
        create(api, container("main", {_name("unknown"): "1"}))
    except KubeError:
        return True
    return False


def test_a_flavor_becomes_its_amounts(api: KubeApi) -> None:
    assert limits_of(api, {_name("half"): "1"}) == HALF
    assert limits_of(api, {_name("eighth"): "1", "cpu": "2"}) == {**EIGHTH, "cpu": "2"}


def test_several_units_of_a_flavor_are_on_several_cards(api: KubeApi) -> None:
    assert limits_of(api, {_name("half"): "2"}) == {**HALF, "lading.dev/gpu": "2"}


def test_each_container_has_a_flavor_of_its_own(api: KubeApi) -> None:
    spec = create(
        api,
        container("a", {_name("half"): "1"}),
        container("b", {}),
        container("c", {_name("eighth"): "1"}),
        init=(container("i", {_name("eighth"): "1"}), container("j", {"cpu": "1"})),
    )
    assert [one["resources"].get("limits") for one in spec["containers"]] == [HALF, None, EIGHTH]
    assert [one["resources"]["limits"] for one in spec["initContainers"]] == [EIGHTH, {"cpu": "1"}]


def test_a_pod_without_a_flavor_stays_as_it_is(api: KubeApi) -> None:
    assert limits_of(api, {"lading.dev/gpu-memory": "1Gi"}) == {"lading.dev/gpu-memory": "1Gi"}


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({_name("third"): "1"}, "flavors.lading.dev/third"),
        ({_name("half"): "1", _name("eighth"): "1"}, "flavors.lading.dev/half"),
        ({_name("half"): "1", "lading.dev/gpu": "1"}, "flavors.lading.dev/half"),
        ({_name("half"): "1", "lading.dev/gpu-memory": "1Gi"}, "flavors.lading.dev/half"),
    ],
)
def test_an_invalid_flavor_is_denied_with_the_name_of_the_container(api: KubeApi, limits: dict[str, str], named: str) -> None:
    with pytest.raises(KubeError, match=r"resources\.limits of container main: ") as e:
        create(api, container("main", limits))
    assert named in str(e.value)
    assert "write one flavor" in str(e.value)


def test_a_quota_counts_amounts(api: KubeApi) -> None:
    hard = {"requests.lading.dev/gpu-memory": "30Gi"}
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    made = api.call("POST", quotas, {"metadata": {"name": "memory"}, "spec": {"hard": hard}})
    used = dict.fromkeys(hard, "0")
    # The quota's controller writes its status like this.
    api.call("PUT", f"{quotas}/memory/status", {**made, "status": {"hard": hard, "used": used}})
    try:
        assert limits_of(api, {_name("eighth"): "1"}) == EIGHTH
        with pytest.raises(KubeError, match="exceeded quota: memory"):
            create(api, container("main", {_name("half"): "1"}))
    finally:
        api.call("DELETE", f"{quotas}/memory")
